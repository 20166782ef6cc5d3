"""The turns of one session as a graph: what extends what, kept as what each turn adds.

Token ids and messages stay JSON text, as engine and agent wrote them: whether a prompt extends another one is a
comparison of bytes, and only what is new is ever parsed.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..rollouts.records import BreakKind

_COMMA = 44
_NO_JSON = msgspec.Raw(b"null")


class PrefixStore:
    """Texts of comma-separated items, each kept as what it adds to another one.

    Attributes:
        size: Bytes of what is kept.
    """

    def __init__(self) -> None:
        self.size = 0
        self._bases: list[int] = []
        self._shared: list[int] = []
        self._added: list[bytes] = []
        self._lengths: list[int] = []
        # The latest text, which the next one most often extends, in the parts that it was added in.
        self._latest: list[bytes] = []
        self._copied = 0  # bytes of them that are a copy

    def __len__(self) -> int:
        return len(self._bases)

    def add(self, base: int, shared: int, added: bytes) -> int:
        """Adds a text: the first `shared` bytes of that with the number `base`, and `added`.

        Returns:
            Its number.
        """
        number = len(self._bases)
        extends = base == number - 1 and (base < 0 or shared == self._lengths[base])
        self._bases.append(base)
        self._shared.append(shared)
        self._added.append(added)
        self._lengths.append(shared + len(added))
        self.size += len(added)
        if extends:
            self._latest.append(added)
        else:
            self._latest = [self.text(number)]
            self.size += self._lengths[number] - self._copied
            self._copied = self._lengths[number]
        return number

    def length(self, number: int) -> int:
        """Length of a text."""
        return self._lengths[number]

    def added(self, number: int) -> bytes:
        """What a text adds to the one that it is kept with."""
        return self._added[number]

    def text(self, number: int) -> bytes:
        """A whole text."""
        path = []
        each = number
        while each >= 0:
            path.append(each)
            each = self._bases[each]
        text = bytearray()
        for each in reversed(path):
            del text[self._shared[each] :]
            text += self._added[each]
        return bytes(text)

    def end_of_latest(self, text: bytes, place: int = 0) -> int:
        """Where the latest text ends, if another one has it at a place; -1 if it has not, or there is none."""
        for part in self._latest:
            if not text.startswith(part, place):
                return -1
            place += len(part)
        return place if self._latest else -1

    def extends_latest(self, text: bytes) -> int:
        """The number of the latest text if the given one begins with it, else -1."""
        end = self.end_of_latest(text)
        return len(self) - 1 if end == len(text) or (end >= 0 and text[end] == _COMMA) else -1

    def find(self, text: bytes) -> tuple[list[int], int, int]:
        """Compares a text with all others.

        Returns:
            The numbers of those that it begins with; the number of the one that it shares most with, and how many
            bytes. -1 and 0 if it shares nothing with any.
        """
        matched: list[int] = []
        whole: list[int] = []
        nearest, most = -1, 0
        for number, (base, shared, added) in enumerate(zip(self._bases, self._shared, self._added, strict=True)):
            before = matched[base] if base >= 0 else 0
            same = before if before < shared else shared + _common(text, shared, added)
            matched.append(same)
            if same == self._lengths[number] and (same == len(text) or same == 0 or text[same] == _COMMA):
                whole.append(number)
            if same > most:
                nearest, most = number, same
        return whole, nearest, most


def _common(text: bytes, offset: int, other: bytes) -> int:
    """How many bytes of a text, from an offset on, are those of another one."""
    if text.startswith(other, offset):
        return len(other)
    low, high = 0, min(len(text) - offset, len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[low:middle], offset + low):
            low = middle
        else:
            high = middle - 1
    return low


def count_of(text: bytes) -> int:
    """The number of items in the text of a list of numbers."""
    return text.count(b",") + 1 if text else 0


def numbers_of(text: bytes) -> list[int]:
    """The numbers in the text of a list."""
    return msgspec.json.decode(b"[" + text + b"]", type=list[int])


class TurnRecord(msgspec.Struct, tag="turn", omit_defaults=True):
    """A turn, as a line of the journal has it. In memory, the graph has the parts that other turns build on.

    Attributes:
        call: Identity of the call, which its retries have too: the idempotency key's digest, if it has one.
        rest: Checksum of the request without its messages.
        messages: What the request's messages add to those of the turn `messages_base`, of which they share the first
            `messages_shared` bytes; -1 for none.
        prompt_ids: What the prompt's ids add, in the same way, to a text of ids of the graph.
        completion_ids, logprobs: Those of the completion; None if the engine gave none.
        message: The assistant message in the form of chat completions.
        head: The answer without the message: id, model, usage, finish reason.
        parent: The turn that this prompt begins with, prompt and completion; -1 for none.
        follows: The turn that this one continues by its messages though not by its ids; -1 for none.
        prefix_break: Why it does not by its ids.
        position: Index of the first token that differs then.
        tools: The request's tools, if they differ from those of the turn before; `n_tools` is their number.
        params: The request's other fields; `sent` those that the proxy changed.
        finish, model, dialect: Of the answer and the request.
        agent: The agent's own name for its conversation, by a header of its request.
        time, seconds: Unix time of the answer, and the duration of the call.
    """

    call: str
    rest: int
    messages_base: int
    messages_shared: int
    messages: msgspec.Raw
    message: msgspec.Raw
    head: msgspec.Raw
    ids_base: int = -1
    ids_shared: int = 0
    prompt_ids: msgspec.Raw = _NO_JSON
    completion_ids: msgspec.Raw = _NO_JSON
    logprobs: msgspec.Raw = _NO_JSON
    parent: int = -1
    follows: int = -1
    prefix_break: BreakKind | None = None
    position: int = 0
    tools: msgspec.Raw = _NO_JSON
    n_tools: int = 0
    params: msgspec.Raw = _NO_JSON
    sent: msgspec.Raw = _NO_JSON
    finish: str = ""
    model: str = ""
    dialect: str = "chat"
    agent: str | None = None
    time: float = 0.0
    seconds: float = 0.0


def _items(raw: msgspec.Raw) -> bytes:
    """The text between the brackets of a list; empty for null."""
    text = bytes(raw)
    return b"" if text == b"null" else text[1:-1]


def _added(text: bytes, shared: int) -> msgspec.Raw:
    return msgspec.Raw(b"[" + (text[shared + 1 :] if shared else text) + b"]")


class SessionGraph:
    """The turns of a session.

    Attributes:
        turns: The turns; the number of a turn is its place.
        calls: Arguments of tool calls as the model wrote them, by id, for APIs that have them as objects.
    """

    def __init__(self) -> None:
        self.turns: list[TurnRecord] = []
        self.calls: dict[str, str] = {}
        self._rest = 0
        self._ids = PrefixStore()  # 2n: the prompt of turn n; 2n + 1: prompt and completion
        self._messages = PrefixStore()
        self._logprobs: list[bytes] = []
        self._tools: list[bytes] = []
        self._children: list[int] = []  # by turn

    def record(
        self, turn: TurnRecord, messages: bytes, ends: Sequence[int], prompt_ids: bytes, completion_ids: bytes
    ) -> None:
        """Fills in where a turn belongs, and what it adds. `take` then adds it.

        Args:
            turn: The turn.
            messages: The items of the request's messages.
            ends: Offsets in `messages` at which a message ends.
            prompt_ids, completion_ids: Items; empty if the engine gave none.
        """
        base = self._messages.extends_latest(messages)
        logical = [base] if base >= 0 else []
        if base >= 0:
            shared = self._messages.length(base)
        else:
            logical, base, most = self._messages.find(messages)
            shared = ends[place - 1] if (place := bisect_right(ends, most)) else 0
            base = base if shared else -1
        turn.messages_base, turn.messages_shared = base, shared
        turn.messages = _added(messages, shared)
        if prompt_ids:
            self._link_ids(turn, prompt_ids, completion_ids)
        else:
            turn.parent = self._continued(logical, messages)
        if turn.parent < 0 or (logical and max(logical) != turn.parent):
            self._explain(turn, logical, messages, prompt_ids)

    def _link_ids(self, turn: TurnRecord, prompt_ids: bytes, completion_ids: bytes) -> None:
        base = self._ids.extends_latest(prompt_ids)
        if base >= 0 and base % 2:
            turn.parent, shared = base // 2, self._ids.length(base)
        else:
            whole, base, most = self._ids.find(prompt_ids)
            contexts = [each for each in whole if each % 2 and self.turns[each // 2].completion_ids != _NO_JSON]
            turn.parent = max(contexts, key=self._ids.length, default=-1) // 2 if contexts else -1
            at_end = most == len(prompt_ids) or prompt_ids[most] == _COMMA
            shared = most if at_end and base in whole else prompt_ids.rfind(b",", 0, most)
            base, shared = (base, shared) if shared > 0 else (-1, 0)
        turn.ids_base, turn.ids_shared = base, shared
        turn.prompt_ids = _added(prompt_ids, shared)
        turn.completion_ids = msgspec.Raw(b"[" + completion_ids + b"]")

    def _continued(self, logical: Sequence[int], messages: bytes) -> int:
        """The turn that the messages begin with, request and answer; -1 for none."""
        for number in sorted(logical, key=self._messages.length, reverse=True):
            rest = messages[self._messages.length(number) + 1 :]
            if rest and _same_answer(rest, self.turns[number].message):
                return number
        return -1

    def _explain(self, turn: TurnRecord, logical: Sequence[int], messages: bytes, prompt_ids: bytes) -> None:
        """Finds out what a turn continues that its ids do not."""
        follows = self._continued(logical, messages)
        if turn.parent >= 0 and follows in (-1, turn.parent):
            return
        if follows >= 0:
            dropped = b'"reasoning_content"' in bytes(self.turns[follows].message)
            turn.follows, turn.prefix_break = follows, "reasoning_dropped" if dropped else "other"
        elif turn.parent < 0 and turn.messages_shared and (last := self._same_system(messages)) >= 0:
            turn.follows, turn.prefix_break = last, "compaction"
        if turn.prefix_break is not None and prompt_ids:
            context = self._ids.text(2 * turn.follows + 1)
            same = _common(prompt_ids, 0, context)
            turn.position = prompt_ids.count(b",", 0, same)

    def _same_system(self, messages: bytes) -> int:
        """The latest turn with the same system message, if it has a shorter request now; -1 for none."""
        first = next(iter(items_of(messages)), b"")
        if b'"system"' not in first or not self.turns:
            return -1
        number = len(self.turns) - 1
        before = self._messages.text(number)
        return number if before.startswith(first) and len(messages) < len(before) else -1

    def take(self, turn: TurnRecord, logprobs: Sequence[float] | None = None) -> int:
        """Adds a turn that `record` has filled in, or that a journal has.

        Args:
            turn: The turn.
            logprobs: Its log probabilities, if they are at hand; else they are read from its text.

        Returns:
            The number of the turn.
        """
        added = _items(turn.messages)
        comma = b"," if turn.messages_shared and added else b""
        self._messages.add(turn.messages_base, turn.messages_shared, comma + added)
        ids, completion = _items(turn.prompt_ids), _items(turn.completion_ids)
        comma = b"," if turn.ids_shared and ids else b""
        number = self._ids.add(turn.ids_base, turn.ids_shared, comma + ids)
        tail = b"," + completion if completion else b""
        self._ids.add(number, self._ids.length(number), tail)
        self._logprobs.append(array("d", _floats(turn.logprobs) or () if logprobs is None else logprobs).tobytes())
        tools = _items(turn.tools)
        if turn.tools != _NO_JSON:
            self._tools.append(tools)
        elif self._tools:
            self._tools.append(self._tools[-1])
        else:
            self._tools.append(b"")
        turn.messages = turn.prompt_ids = turn.logprobs = turn.tools = _NO_JSON
        turn.completion_ids = msgspec.Raw(b"[]") if completion else _NO_JSON
        if turn.dialect in _WITH_OBJECTS:
            for call in msgspec.json.decode(turn.message).get("tool_calls") or ():
                self.calls[call["id"]] = call["function"]["arguments"]
        self.turns.append(turn)
        self._children.append(0)
        for other in (turn.parent, turn.follows):
            if other >= 0:
                self._children[other] += 1
        kept = sum(len(bytes(part)) for part in (turn.message, turn.head, turn.params, turn.sent))
        self._rest += kept + len(self._logprobs[-1]) + _RECORD_BYTES
        return len(self.turns) - 1

    @property
    def size(self) -> int:
        """Bytes that the graph keeps, roughly."""
        return self._messages.size + self._ids.size + self._rest

    def same_messages(self, messages: bytes) -> Iterator[int]:
        """The turns that had exactly these messages as request, the latest first."""
        for number in range(len(self.turns) - 1, -1, -1):
            if self._messages.length(number) == len(messages) and self._messages.text(number) == messages:
                yield number

    # What a turn has.

    def messages(self, number: int) -> list[dict[str, Any]]:
        """The messages of a turn's request."""
        found: list[dict[str, Any]] = msgspec.json.decode(b"[" + self._messages.text(number) + b"]")
        return found

    def prompt_ids(self, number: int) -> list[int]:
        """The ids of a turn's prompt; empty without."""
        return numbers_of(self._ids.text(2 * number))

    def completion_ids(self, number: int) -> list[int]:
        """The ids of a turn's completion; empty without."""
        return numbers_of(self._ids.added(2 * number + 1).removeprefix(b","))

    def n_prompt(self, number: int) -> int:
        """The number of ids of a turn's prompt."""
        return count_of(self._ids.text(2 * number))

    def n_completion(self, number: int) -> int:
        """The number of ids of a turn's completion."""
        return count_of(self._ids.added(2 * number + 1).removeprefix(b","))

    def logprobs(self, number: int) -> list[float]:
        """The log probabilities of a turn's completion; empty without."""
        return list(array("d", self._logprobs[number]))

    def tools(self, number: int) -> list[dict[str, Any]]:
        """The tools of a turn's request."""
        found: list[dict[str, Any]] = msgspec.json.decode(b"[" + self._tools[number] + b"]")
        return found

    def last_tools(self) -> bytes:
        """The items of the latest request's tools."""
        return self._tools[-1] if self._tools else b""

    def end_of_ids(self, ids: bytes) -> int:
        """Where the ids of the latest turn end, if a prompt begins with them; -1 if it does not."""
        return self._ids.end_of_latest(ids)

    def end_of_messages(self, body: bytes, place: int) -> int:
        """Where the latest request's messages end, if a request has them at a place; -1 if it has not."""
        return self._messages.end_of_latest(body, place)

    # The graph.

    def path(self, number: int) -> list[int]:
        """The turns from the root to this one."""
        path = [number]
        while (parent := self.turns[path[-1]].parent) >= 0:
            path.append(parent)
        return path[::-1]

    def discarded(self) -> set[int]:
        """The turns that the agent has dropped: nothing continues them, but another answer to the same prompt."""
        continued: dict[object, bool] = {}
        keys: list[object] = []
        for number, turn in enumerate(self.turns):
            key = ("child", turn.parent) if turn.parent >= 0 else ("root", self._messages.text(number))
            keys.append(key)
            continued[key] = continued.get(key, False) or bool(self._children[number])
        return {number for number, key in enumerate(keys) if continued[key] and not self._children[number]}


_RECORD_BYTES = 2000
_WITH_OBJECTS = ("anthropic", "google")
_floats = msgspec.json.Decoder(list[float] | None).decode


def items_of(messages: bytes) -> list[bytes]:
    """The JSON values in the text between the brackets of a list."""
    return [bytes(each) for each in msgspec.json.decode(b"[" + messages + b"]", type=list[msgspec.Raw])]


def _same_answer(messages: bytes, answer: msgspec.Raw) -> bool:
    """Whether the first of some messages repeats an answer, in any form in which agents keep it."""
    said = msgspec.json.decode(items_of(messages)[0])
    return bool(_essence(said) == _essence(msgspec.json.decode(answer)))


def _essence(message: dict[str, Any]) -> Any:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        with contextlib.suppress(TypeError, ValueError):
            arguments = msgspec.json.decode(arguments or "{}")
        calls.append((function.get("name"), arguments))
    return message.get("role"), str(content).strip(), calls
