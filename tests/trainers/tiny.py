"""A model of a few thousand weights and its tokenizer, made here: nothing is downloaded.

One token of the vocabulary is one whole tool call, so that a model that has learned nothing still makes some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

__all__ = ["call_token", "tiny_model", "tiny_tokenizer", "unsaid"]

END, PAD = "<|im_end|>", "<|pad|>"

CHAT_TEMPLATE = """
{%- if tools %}<|im_start|>tools
{%- for tool in tools %}{{ tool.function.name }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def call_token(name: str, arguments: Mapping[str, Any]) -> str:
    """The token that is this tool call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tiny_tokenizer(calls: Sequence[str]) -> PreTrainedTokenizerFast:
    """Bytes, two marks, and the tool calls."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=PAD, padding_side="left")
    tokenizer.add_tokens([AddedToken(call, normalized=False) for call in calls])
    tokenizer.chat_template = CHAT_TEMPLATE.strip()
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def unsaid(tokenizer: PreTrainedTokenizerFast, said: Sequence[str]) -> list[int]:
    """All tokens but the end of a turn and those that may be said."""
    allowed = {tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(said))}
    return [number for number in range(len(tokenizer)) if number not in allowed]


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
