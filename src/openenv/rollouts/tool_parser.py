"""From a completion's text to a message, for endpoints that continue token ids and so return plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ..llm.messages import assistant_message
from ..llm.sender import as_json
from .records import ChatMessage

TextParser = Callable[[str], ChatMessage]
"""From the text that a model sampled to its assistant message."""

_THOUGHTS = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def parse_hermes(text: str) -> ChatMessage:
    """Reads `<think>` and `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write them.

    A call that is no such JSON stays in the text, where the environment's answer can name it.
    """
    thoughts = _THOUGHTS.match(text)
    calls: list[dict[str, str]] = []

    def take(found: re.Match[str]) -> str:
        call = as_json(found[1])
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return found[0]
        arguments = call.get("arguments", {})
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append({"id": f"call_{len(calls)}", "name": call["name"], "arguments": shown})
        return ""

    content = _CALL.sub(take, text[thoughts.end() :] if thoughts else text)
    return assistant_message(content, calls, reasoning_content=thoughts[1].strip() if thoughts else "")
