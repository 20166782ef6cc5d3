"""Chat templates in the forms of five model families, and a tokenizer, made here: nothing is downloaded.

The tokenizer is a byte-level BPE with its merges learned from `TEXT`, so that one text has many tokenizations.
"""

# ruff: noqa: E501, RUF001 - the templates

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEXT = """The kettle is in the kitchen. The user asks for tea, and the assistant calls a tool to look for it.
<think> I look for the kettle first; then the tea is easy to find. </think> The answer is: green tea, black tea.
{"name": "look_for", "arguments": {"thing": "kettle", "count": 3}} result: {"found": true, "place": "kitchen"}
hello, what do you see in the picture? I see a kettle and a cup of tea. system user assistant tool"""

CHATML = """
{%- macro text(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif -%}
{%- endmacro -%}
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' %}<|im_start|>user
{{ text(message.content) }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{% if message.reasoning_content and loop.index0 > ns.last_user %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{% if message.content %}{{ message.content }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ text(message.content) }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""

LLAMA = """
{{- '<|begin_of_text|>' -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' and message.tool_calls -%}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one tool call at a time') }}{% endif -%}
{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ 'ipython' if message.role == 'tool' else message.role }}<|end_header_id|>

{% if tools and message.role == 'user' and loop.index0 <= 1 %}Tools: {{ tools | tojson }}

{% endif -%}
{%- if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content -%}
{%- if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif %}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

MISTRAL = """
{{- '<s>' -}}
{%- set ns = namespace(last_user=-1, calls=0, expects='user') -%}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]
{%- elif message.role == 'user' -%}
{%- if ns.expects != 'user' %}{{ raise_exception('user and assistant must alternate') }}{% endif -%}
{%- set ns.expects = 'assistant' -%}
{%- if tools and loop.index0 == ns.last_user %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST]
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{%- if part.type == 'image' %}[IMG]{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif %}[/INST]
{%- elif message.role == 'assistant' and message.tool_calls -%}
{%- set ns.calls = message.tool_calls | length -%}
[TOOL_CALLS][{% for call in message.tool_calls -%}
{%- if call.id | length != 9 %}{{ raise_exception('ids of tool calls have 9 characters') }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]</s>
{%- elif message.role == 'tool' -%}
{%- if ns.calls == 0 %}{{ raise_exception('more results than tool calls') }}{% endif -%}
{%- set ns.calls = ns.calls - 1 -%}
[TOOL_RESULTS]{"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]
{%- else -%}
{%- set ns.expects = 'user' -%}
{{- message.content }}</s>
{%- endif -%}
{%- endfor -%}
"""

GEMMA = """
{{- '<bos>' -}}
{%- set ns = namespace(prefix='') -%}
{%- if tools %}{% set ns.prefix = 'Tools: ' + (tools | tojson) + '\\n\\n' %}{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' %}{% set ns.prefix = message.content + '\\n\\n' + ns.prefix %}
{%- else -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}
{% if message.role != 'assistant' %}{{ ns.prefix }}{% set ns.prefix = '' %}{% endif -%}
{%- if message.role == 'tool' %}Result of {{ message.name }}: {% endif -%}
{%- if message.content is string %}{{ message.content | trim }}{% elif message.content %}{% for part in message.content -%}
{%- if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif -%}
{%- for call in message.tool_calls or [] %}{{ '\\n' }}```tool_code
{{ call.function.name }}({{ call.function.arguments | tojson }})
```
{%- endfor %}<end_of_turn>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif -%}
"""

DEEPSEEK = """
{{- '<｜begin▁of▁sentence｜>' -}}
{%- set ns = namespace(is_tool=false, outputs=false) -%}
{%- for message in messages -%}
{%- if message.role == 'system' %}{{ message.content }}{% if tools %}
## Tools
{{ tools | tojson }}{% endif %}
{%- elif message.role == 'user' -%}
{%- if ns.outputs %}<｜tool▁outputs▁end｜>{% set ns.outputs = false %}{% endif -%}
{%- set ns.is_tool = false -%}
<｜User｜>{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{%- if part.type == 'image' %}<｜image｜>{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif %}
{%- elif message.role == 'assistant' and message.tool_calls and not message.content -%}
{%- if ns.outputs %}<｜tool▁outputs▁end｜>{% set ns.outputs = false %}{% else %}<｜Assistant｜>{% endif -%}
<｜tool▁calls▁begin｜>
{%- for call in message.tool_calls -%}
<｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>{{ call.function.arguments + '' }}<｜tool▁call▁end｜>
{%- endfor -%}
<｜tool▁calls▁end｜><｜end▁of▁sentence｜>
{%- elif message.role == 'assistant' -%}
{%- if ns.outputs %}<｜tool▁outputs▁end｜>{% set ns.outputs = false %}{% else %}<｜Assistant｜>{% endif -%}
{{- message.content.split('</think>')[-1].lstrip() }}<｜end▁of▁sentence｜>
{%- elif message.role == 'tool' -%}
{%- if not ns.outputs %}<｜tool▁outputs▁begin｜>{% set ns.outputs = true %}{% endif -%}
<｜tool▁output▁begin｜>{{ message.content }}<｜tool▁output▁end｜>
{%- endif -%}
{%- endfor -%}
{%- if ns.outputs %}<｜tool▁outputs▁end｜>
{%- elif add_generation_prompt %}<｜Assistant｜>{% endif -%}
{%- if add_generation_prompt %}<think>
{% endif -%}
"""


@dataclass(frozen=True)
class Family:
    """A chat template, its special tokens, and the token that ends the model's turn."""

    name: str
    template: str
    special: tuple[str, ...]
    end: str
    parallel_calls: bool = True
    images_in_results: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "chatml",
            CHATML,
            ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|endoftext|>"),
            "<|im_end|>",
            images_in_results=True,
        ),
        Family(
            "llama",
            LLAMA,
            ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|image|>"),
            "<|eot_id|>",
            parallel_calls=False,
        ),
        Family(
            "mistral",
            MISTRAL,
            (
                *("<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
                *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            ),
            "</s>",
        ),
        Family(
            "gemma",
            GEMMA,
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
            "<end_of_turn>",
        ),
        Family(
            "deepseek",
            DEEPSEEK,
            (
                *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜image｜>"),
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
                *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
                *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            ),
            "<｜end▁of▁sentence｜>",
        ),
    )
}


@cache
def merges(count: int = 100) -> tuple[tuple[bytes, bytes], ...]:
    """The merges of a byte-level BPE, learned from `TEXT`."""
    pieces = [[bytes([byte]) for byte in piece.encode()] for piece in _PIECE.findall(TEXT)]
    learned = []
    for _ in range(count):
        [(pair, _)] = Counter(pair for piece in pieces for pair in pairwise(piece)).most_common(1)
        learned.append(pair)
        pieces = [_merge(piece, pair) for piece in pieces]
    return tuple(learned)


_PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


def _merge(piece: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    merged: list[bytes] = []
    for part in piece:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


class BytePairTokenizer:
    """A tokenizer with the methods of `transformers` that a chat template needs."""

    def __init__(self, template: str, special: Sequence[str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
        )
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template.strip("\n"))
        tokens = [*(bytes([byte]) for byte in range(256)), *(one + other for one, other in merges())]
        self._tokens = [*dict.fromkeys(tokens), *(token.encode() for token in special)]
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._split = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self._special = {*special}
        self.arguments_as_text = "arguments + ''" in template
        self.encoded_characters = 0

    def apply_chat_template(
        self, conversation: Any, *, tools: Any, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        return self._template.render(messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.encoded_characters += len(text)
        return [number for piece in self._split.split(text) for number in self._piece_ids(piece)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return b"".join(self._tokens[number] for number in token_ids).decode(errors="replace")

    def sample(self, text: str, random: Random) -> list[int]:
        """One of the many tokenizations of a text, as a model may sample it: letters here, merged tokens there."""
        ids = []
        for piece in self._split.split(text):
            if piece in self._special or random.random() < 0.3:
                ids += self._piece_ids(piece)
            else:
                for word in re.findall(r"\s*\S+|\s+", piece):
                    apart = random.random() < 0.5
                    ids += list(word.encode()) if apart else self._piece_ids(word)
        return ids

    def _piece_ids(self, text: str) -> list[int]:
        if text in self._special:
            return [self._ids[text.encode()]]
        return [number for piece in _PIECE.findall(text) for number in self._word_ids(piece)]

    def _word_ids(self, word: str) -> list[int]:
        parts = [bytes([byte]) for byte in word.encode()]
        for pair in merges():
            parts = _merge(parts, pair)
        return [self._ids[part] for part in parts]


def _refuse(message: str) -> None:
    raise ValueError(message)
