"""The example that trains a model that sees, with a model that is made here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # those of torch and trl

PROJECT = Path(__file__).parents[2]
CALLS = [call_token("name", {"colour": "red"}), call_token("name", {"colour": "blue"})]
IMAGE = "<|image|>"
CONTENT = """{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|image|>{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif %}
"""


def seeing_model() -> tuple[Any, Any]:
    """A model that sees, with its processor."""
    tokenizer = tiny_tokenizer(CALLS)
    tokenizer.add_tokens([AddedToken(IMAGE, normalized=False, special=True)])
    template = tokenizer.chat_template.replace("{{ message.content }}\n", CONTENT)
    tokenizer.chat_template = template
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    # TRL wants tensors, as the processors of torchvision give them always.
    preprocess = pixels.preprocess
    pixels.preprocess = lambda *given, **named: preprocess(*given, **named | {"return_tensors": "pt"})
    processor = LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        chat_template=template,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=vision,
        text_config=tiny_model(tokenizer).config,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=4,
    )
    return LlavaForConditionalGeneration(config), processor


def test_the_model_sees_the_image_and_is_rewarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "examples")
    example = importlib.import_module("grpo_images")
    model, processor = seeing_model()
    seen: list[Any] = []
    model.model.vision_tower.register_forward_hook(lambda *given: seen.append(given))
    trainer = example.make_trainer(
        model,
        processor=processor,
        output_dir=str(tmp_path),
        max_steps=1,
        generation_kwargs={"suppress_tokens": unsaid(processor.tokenizer, CALLS)},
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer.train()
    (step,) = [entry for entry in trainer.state.log_history if "tools/call_frequency" in entry]
    assert step["tools/call_frequency"] > 0
    assert seen
