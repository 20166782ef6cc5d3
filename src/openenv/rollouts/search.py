"""Search the messages, actions and observations of rollouts for a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from .records import ChatMessage

# Characters shown before and after a match.
CONTEXT = 60
# A longer text without a space is data, such as an image.
MOST_WORD = 10_000
DEEPEST = 32
# Parts of a message that are no text of it.
_MARKS = frozenset({"role", "type", "id", "tool_call_id"})


class _SearchedStep(msgspec.Struct, gc=False):
    action: Any = None
    tool: str | None = None
    observation: Any = None
    error: str | None = None


class _SearchedTurn(msgspec.Struct):
    prompt: list[ChatMessage] = []
    completion: ChatMessage = {}
    steps: list[_SearchedStep] = []


class _SearchedRollout(msgspec.Struct):
    """The texts of a `Rollout`. The decoder skips token ids and logprobs."""

    turns: list[_SearchedTurn] = []


_NOT_ASCII = re.compile(r"[^\x20-\x7e]+")
_decode = msgspec.json.Decoder(_SearchedRollout).decode


class TextMatch(msgspec.Struct):
    """The first match in a rollout.

    Attributes:
        turn: Index of the turn.
        part: `prompt`, `completion` or `step`.
        before, found, after: The match, and some text around it.
        count: Number of texts of the rollout that match.
    """

    turn: int
    part: str
    before: str
    found: str
    after: str
    count: int = 1


class TextSearch:
    """Finds a text in the lines of rollouts, in lower or upper case.

    Args:
        text: The text.
    """

    def __init__(self, text: str):
        self._text = text.lower()
        # The part of the text that every encoder of JSON writes alike: most lines are without it, and not decoded.
        part = max(_NOT_ASCII.split(self._text), key=len)
        self._encoded = json.dumps(part)[1:-1].encode()

    def find(self, line: bytes) -> TextMatch | None:
        """The match in a rollout, given as its JSON line.

        Raises:
            msgspec.DecodeError: The line is no rollout.
        """
        if self._encoded not in line.lower():
            return None
        first: TextMatch | None = None
        for turn, part, text in _texts(_decode(line)):
            at = text.lower().find(self._text)
            if at < 0:
                continue
            if first is None:
                end = at + len(self._text)
                before, after = text[max(0, at - CONTEXT) : at], text[end : end + CONTEXT]
                first = TextMatch(turn, part, before, text[at:end], after)
            else:
                first.count += 1
        return first


def _texts(rollout: _SearchedRollout) -> Iterator[tuple[int, str, str]]:
    for number, turn in enumerate(rollout.turns):
        yield from ((number, "prompt", text) for text in _strings(turn.prompt, _MARKS))
        yield from ((number, "completion", text) for text in _strings(turn.completion, _MARKS))
        for step in turn.steps:
            values = [step.action, step.tool, step.observation, step.error]
            yield from ((number, "step", text) for text in _strings(values))


def _strings(value: Any, without: frozenset[str] = frozenset(), depth: int = 0) -> Iterator[str]:
    """The texts in a JSON value, without the names of its fields, and without the fields with one of these names."""
    if isinstance(value, str):
        if len(value) < MOST_WORD or " " in value[:MOST_WORD]:
            yield value
    elif depth < DEEPEST and isinstance(value, dict | list):
        parts = [part for name, part in value.items() if name not in without] if isinstance(value, dict) else value
        for part in parts:
            yield from _strings(part, without, depth + 1)
