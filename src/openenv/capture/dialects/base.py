"""What a dialect is: it reads requests as chat completions, and writes answers, events and errors of its API."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

encode = msgspec.json.Encoder().encode
Json = dict[str, Any]
KnownMessages = Callable[[bytes, int], int]
"""Where the messages of the latest request end, if a body has them at a place; -1 if it has not."""


class RequestRefused(Exception):
    """The proxy refuses a request.

    Args:
        status: HTTP status of the answer.
        message: What is wrong, and what to do next.
        kind: Kind of the error in OpenAI's words.
    """

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error"):
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(slots=True)
class ModelCall:
    """A request of an agent, as chat completions have it.

    Attributes:
        messages: JSON text of the messages, without the brackets around them.
        ends: Offsets in `messages` at which a message ends.
        params: The other fields, but for `model`, `stream` and `tools`.
        tools, n_tools: JSON text of the tools in the same form, and their number.
        model: The model that the agent asks for.
        stream: Whether it wants a stream.
        wanted: What the answer must have beyond the usual: `usage` in a stream, `logprobs`.
        request: Facts of the request that its dialect needs for the answer.
    """

    messages: bytes
    ends: Sequence[int]
    params: Json
    tools: bytes = b""
    n_tools: int = 0
    model: str = ""
    stream: bool = False
    wanted: frozenset[str] = frozenset()
    request: Json = field(default_factory=dict)

    @property
    def rest(self) -> int:
        """Checksum of what the request has beside its messages."""
        kind = f"{self.model} {self.stream} {sorted(self.wanted)}".encode()
        return zlib.crc32(encode(self.params), zlib.crc32(self.tools, zlib.crc32(kind)))


@dataclass(slots=True)
class EngineAnswer:
    """An answer of the engine.

    Attributes:
        message: The assistant message, as JSON.
        head: The answer without it: `"message":null` stands for it.
        finish: `stop`, `length`, `tool_calls`, `content_filter`.
        prompt_ids, completion_ids: Items of the lists of ids; empty without.
        logprobs: Log probabilities of the sampled tokens; empty without.
    """

    message: bytes
    head: bytes
    finish: str
    prompt_ids: bytes = b""
    completion_ids: bytes = b""
    logprobs: Sequence[float] = ()

    @property
    def facts(self) -> Json:
        """The head, parsed."""
        found: Json = msgspec.json.decode(self.head)
        return found


class EventWriter(ABC):
    """Writes the events of one streamed answer."""

    @abstractmethod
    def chunk(self, chunk: Json) -> bytes:
        """The events for a chunk of the engine's stream of chat completions."""

    @abstractmethod
    def end(self) -> bytes:
        """The events behind the last chunk."""

    @abstractmethod
    def failure(self, message: str) -> bytes:
        """The event for an engine that fails in the middle of its answer."""


class Dialect(ABC):
    """One API.

    Attributes:
        name: Its name in records.
    """

    name: ClassVar[str]

    @abstractmethod
    def read(self, body: bytes, target: str, known: KnownMessages, calls: Mapping[str, str]) -> ModelCall:
        """Reads a request.

        Args:
            body: Its body.
            target: Its path, with the query.
            known: Finds the messages of the session's latest request, with which this one often begins.
            calls: Arguments of the session's tool calls as the model wrote them, by the ids of the calls.

        Raises:
            RequestRefused: It is malformed, or needs what the proxy does not have.
        """

    @abstractmethod
    def answer(self, answer: EngineAnswer, call: ModelCall) -> bytes:
        """The body of an answer."""

    @abstractmethod
    def events(self, call: ModelCall) -> EventWriter:
        """Writes the events of a streamed answer."""

    def error(self, status: int, message: str, kind: str) -> bytes:
        """The body of an error."""
        return encode({"error": {"message": message, "type": kind, "param": None, "code": None}})

    def count(self, tokens: int) -> bytes:
        """The body of an answer that counts tokens."""
        return encode({"input_tokens": tokens})


def read_object(body: bytes) -> Json:
    """The JSON object in a body. Raises `RequestRefused` if it is none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestRefused(400, f"the body of the request is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestRefused(400, "the body of the request must be a JSON object")
    return found


def list_in(body: Mapping[str, Any], name: str, required: bool = False) -> list[Json]:
    """A list of objects in a body.

    Raises:
        RequestRefused: It is something else; or it is missing or empty though it is required.
    """
    found = body.get(name)
    if found is None and not required:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found) or (required and not found):
        raise RequestRefused(400, f"`{name}` must be a list of objects{', and not empty' if required else ''}")
    return found


def chat_call(messages: Sequence[Json], tools: Sequence[Json], **facts: Any) -> ModelCall:
    """The call for messages and function tools in the form of chat completions."""
    texts = [encode(message) for message in messages]
    params = {name: value for name, value in facts.pop("params").items() if value is not None}
    return ModelCall(
        b",".join(texts), ends_of(texts), params, b",".join(map(encode, tools)), n_tools=len(tools), **facts
    )


def ends_of(texts: Sequence[bytes], start: int = 0) -> list[int]:
    """Offsets at which items of a list end, if the first one begins at an offset."""
    ends: list[int] = []
    for text in texts:
        start += len(text)
        ends.append(start)
        start += 1
    return ends


def event(data: Json, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + encode(data) + b"\n\n"


def chunks_of(answer: EngineAnswer) -> Iterator[Json]:
    """The chunks of a stream for an answer that the engine gave at once, or that is repeated."""
    facts, message = answer.facts, msgspec.json.decode(answer.message)
    head: Json = {"id": "", "object": "chat.completion.chunk"}
    head |= {name: facts[name] for name in ("id", "created", "model") if name in facts}
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{name: message[name]} for name in ("reasoning_content", "refusal", "content") if message.get(name)]
    deltas += [
        {"tool_calls": [{"index": index, **call}]} for index, call in enumerate(message.get("tool_calls") or ())
    ]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    choice = {name: value for name, value in facts["choices"][0].items() if name not in ("message", "logprobs")}
    yield {**head, "choices": [{**choice, "delta": {}}]}
    if facts.get("usage"):
        yield {**head, "choices": [], "usage": facts["usage"]}


def written_arguments(given: Any, call_id: str | None, calls: Mapping[str, str]) -> str:
    """Arguments as JSON text: as the model wrote them, if it did, since other spaces are other tokens."""
    written = calls.get(call_id or "")
    if written is not None and msgspec.json.decode(written) == given:
        return written
    return encode(given).decode()


def arguments_of(call: Json) -> Json:
    """The arguments of a tool call as an object; text that is none stays, under the name `invalid`."""
    text = call["function"].get("arguments") or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"invalid": text}
