"""A tokenizer with a chat template: exact both ways, as fast as a copy; a text has several tokenizations.

Two bytes are one token (0 to 65,535), an odd byte at the end is one (from 65,536 on), then come two special tokens.
Ids that a policy sampled byte by byte have the same text as their pairs, and other ids.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

BYTE = 1 << 16
START, END = BYTE + 256, BYTE + 257
SPECIAL = {START: b"<|im_start|>", END: b"<|im_end|>"}
_NAMED = re.compile(r"(<\|im_(?:start|end)\|>)")
_NAMES = {name.decode(): (token,) for token, name in SPECIAL.items()}
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_TOOLS = re.compile(r"\n\n# Tools\n<tools>\n(.*?)\n</tools>", re.DOTALL)
_CALL = re.compile(r"\n?<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class PairTokenizer:
    """The tokenizer of every model of this server, with the methods that users of `transformers` know."""

    eos_token_id = END

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The token ids of a text, with the special tokens that it names."""
        if "<|im_" in text:
            return [token for part in _NAMED.split(text) for token in _NAMES.get(part) or self.encode_plain(part)]
        return list(self.encode_plain(text))

    @staticmethod
    @lru_cache(maxsize=1 << 14)
    def encode_plain(text: str) -> tuple[int, ...]:
        """The token ids of a text in which the names of special tokens are plain text."""
        data = text.encode()
        whole = len(data) & ~1
        odd = (BYTE + data[-1],) if whole < len(data) else ()
        return (*memoryview(data)[:whole].cast("H").tolist(), *odd)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        shown = {} if skip_special_tokens else SPECIAL
        pieces = (
            array("H", (token,)).tobytes()
            if token < BYTE
            else bytes((token - BYTE,))
            if token < START
            else shown.get(token, b"")
            for token in ids
        )
        return b"".join(pieces).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **_: Any,
    ) -> Any:
        """The ids of a conversation; with `tokenize=False` its text."""
        ids: list[int] = []
        if tools and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": ""}, *messages]
        for index, message in enumerate(messages):
            shown = (
                f"\n\n# Tools\n<tools>\n{msgspec.json.encode(tools).decode()}\n</tools>"
                if tools and index == 0
                else ""
            )
            ids.append(START)
            ids += self.encode_plain(f"{message['role']}\n{_text_of(message)}{shown}")
            ids.append(END)
        if add_generation_prompt:
            ids.append(START)
            ids += self.encode_plain("assistant\n")
        return ids if tokenize else self.decode(ids)


def conversation_of(text: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages and tools of a prompt that the chat template wrote."""
    messages: list[dict[str, Any]] = [{"role": role, "content": said} for role, said in _MESSAGE.findall(text)]
    tools: list[Any] = []
    if messages and (found := _TOOLS.search(messages[0]["content"])):
        tools = json.loads(found[1])
        messages[0]["content"] = messages[0]["content"][: found.start()]
    return messages, tools


def written(content: str, calls: Iterable[Mapping[str, Any]]) -> str:
    """What a model writes: text, and tool calls in the form of Hermes' and Qwen's templates."""
    parts = [
        f'<tool_call>\n{{"name": {json.dumps(call["function"]["name"])}, '
        f'"arguments": {call["function"]["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    return "\n".join([content, *parts] if content else parts)


def logprob_of(token: int) -> float:
    """The log probability with which every policy samples a token."""
    return -(token % 997) / 1000


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or f"<{part['type']}>" for part in content)
    return written(content or "", message.get("tool_calls") or ())
