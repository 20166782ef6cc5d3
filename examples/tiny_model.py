"""A small language model with random weights, and its tokenizer, for examples that download nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END, PAD, UNKNOWN = "<end>", "<pad>", "<unknown>"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %} <end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def make_tokenizer(answers: Sequence[str], reads: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each answer and each word. Other words are not read."""
    marks = [END, PAD, UNKNOWN, "<system>", "<user>", "<assistant>", "<tool>"]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*marks, *reads])}, unk_token=UNKNOWN))
    known = "|".join(map(re.escape, reads))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(rf"\b(?!(?:{known})\b)\w+|[^\w\s]"), " ")]
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=PAD, padding_side="left")
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*marks, *answers)])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, answers: Sequence[str]) -> Qwen2ForCausalLM:
    """A transformer with two layers and random weights, which can say the answers and nothing else."""
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    unsayable = torch.full((len(tokenizer),), -1e4)
    unsayable[tokenizer.convert_tokens_to_ids(list(answers))] = 0.0
    model.lm_head.bias = torch.nn.Parameter(unsayable, requires_grad=False)
    return model
