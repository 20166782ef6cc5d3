"""The client's side of protocols v1 and v2: matches replies to requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..errors import InvalidMessage, OpenEnvError, ProtocolViolation, from_wire
from .codecs import Codec
from .values import UNWRITABLE, portable_v1

_REPLY_TYPES = {"reset": "observation", "step": "observation", "state": "state", "mcp": "mcp"}
_NUMBERS = frozenset({float, int, bool})


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request that awaits its reply.

    Attributes:
        id: Its number on the connection; 0 in v1, which has no numbers.
        op: The name of the operation; in v1 the `type` of the message.
        waiter: An object of the caller, returned with the reply; this module never uses it.
        abandoned: Whether the caller no longer waits; the reply still arrives.
    """

    id: int
    op: str
    waiter: Any = None
    abandoned: bool = False


class Answer(NamedTuple):
    """A reply, or one frame of several to a batch.

    Attributes:
        request: The request it answers; None for an error that does not answer a particular request, such as the
            refusal of a session in v1.
        payload: The fields of the result, if the request succeeded; in v1 its `data`.
        error: The error that the server reports, if the request failed.
        more: Whether further frames for the same request follow.
    """

    request: Request | None
    payload: dict[str, Any]
    error: OpenEnvError | None
    more: bool


class ClientProtocol:
    """The conversation over one connection."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    @property
    def outstanding(self) -> int:
        """The number of replies still to come, including abandoned ones."""
        return len(self._requests)

    def send(self, kind: str, data: Any = None, waiter: Any = None) -> tuple[bytes, Request]:
        """Makes the frame of a request and remembers that its reply is due.

        Args:
            kind: `reset`, `step`, `state` or `mcp`.
            data: The message's `data`; None for a message without data. May contain NaN and infinity.
            waiter: Kept with the request.

        Raises:
            ValueError: `data` has a value that JSON cannot encode.
        """
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            frame = to_json(message, inf_nan_mode="constants")
        except ValueError:  # arrays, or bytes that are not UTF-8
            try:
                frame = to_json(portable_v1(message), inf_nan_mode="constants")
            except UNWRITABLE as error:
                raise ValueError(f"cannot be written as JSON: {error}") from error
        request = Request(0, kind, waiter)
        self._requests.append(request)
        return frame, request

    def withdraw(self, request: Request) -> None:
        """Forgets the newest request, because it was not sent."""
        newest = self._requests.pop()
        assert newest is request

    @staticmethod
    def close() -> bytes:
        """The frame that ends the session. It gets no reply."""
        return b'{"type":"close"}'

    def receive(self, frame: bytes | str) -> Answer:
        """Reads one frame and finds the request it answers.

        Raises:
            ProtocolViolation: The frame is not a v1 reply, or does not answer the oldest request. The connection can
                no longer be used, because replies cannot be matched to requests.
        """
        try:
            message = from_json(frame)
            kind, payload = message["type"], message["data"]
        except (ValueError, KeyError, TypeError):
            raise ProtocolViolation(f"the server sent a frame that is not a reply: {frame[:200]!r}") from None
        request = self._requests.popleft() if self._requests else None
        if kind == "error" and isinstance(payload, dict):
            return Answer(request, {}, from_wire(payload), False)
        if request is None or kind != _REPLY_TYPES[request.op] or not isinstance(payload, dict):
            asked = "nothing"
            if request is not None:
                asked = request.op
                self._requests.appendleft(request)  # still unanswered, so `abandon_all` must find it
            raise ProtocolViolation(f"the server answered {asked} with a message of type {kind!r}")
        return Answer(request, payload, None, False)

    def abandon_all(self) -> list[Request]:
        """Forgets every request, for a connection that has ended. Returns those for which a caller waits."""
        wanted = [request for request in self._requests if not request.abandoned]
        self._requests.clear()
        return wanted


class Event(NamedTuple):
    """A message that the server sends unasked.

    Attributes:
        name: `hello`, `draining` or `session_lost`; later servers may send others.
        fields: Its contents.
    """

    name: str
    fields: dict[str, Any]


class ClientProtocolV2:
    """The conversation over one connection."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._last_id = 0
        self._requests: dict[int, Request] = {}

    @property
    def outstanding(self) -> int:
        """The number of requests whose last reply is still to come, including abandoned ones."""
        return len(self._requests)

    def request(self, op: str, fields: Mapping[str, Any], waiter: Any = None) -> tuple[bytes, Request]:
        """Makes the frame of a request and remembers that its reply is due.

        Args:
            op: The name of the operation.
            fields: The message's other fields: plain values, models, bytes, numpy arrays.
            waiter: Kept with the request.

        Raises:
            ValueError: `fields` has a value that cannot be encoded; no request is remembered.
        """
        number = self._last_id + 1
        frame = self.codec.encode({"id": number, "op": op, **fields})
        self._last_id = number
        request = self._requests[number] = Request(number, op, waiter)
        return frame, request

    def withdraw(self, request: Request) -> None:
        """Forgets a request, because it was not sent."""
        del self._requests[request.id]

    def receive(self, frame: bytes | memoryview | str) -> Answer | Event:
        """Reads one frame and finds the request it answers.

        Raises:
            ProtocolViolation: The frame is not a v2 message, or answers an unknown request.
        """
        try:
            message = self.codec.decode(frame)
        except InvalidMessage as error:
            raise ProtocolViolation(f"the server sent a frame that cannot be decoded: {error.message}") from None
        if not isinstance(message, dict):
            raise ProtocolViolation(f"the server sent {type(message).__name__}, not a message")
        if "event" in message:
            name = message.pop("event")
            if not isinstance(name, str):
                raise ProtocolViolation(f"the server sent an event with an invalid name: {name!r:.50}")
            return Event(name, message)
        return self._answer(message)

    def abandon_all(self) -> list[Request]:
        """Forgets every request, for a connection that has ended. Returns those for which a caller waits."""
        wanted = [request for request in self._requests.values() if not request.abandoned]
        self._requests.clear()
        return wanted

    def _answer(self, message: dict[str, Any]) -> Answer:
        number = message.pop("id", 0)
        ok = message.pop("ok", None)
        facts = message.get("error")
        error = error_of(facts) if ok is not True and isinstance(facts, dict) else None
        if ok is not True and error is None:
            raise ProtocolViolation(f"the server sent a reply without a result or an error: {message!r:.200}")
        if number is None and error is not None:
            return Answer(None, {}, error, False)
        request = self._requests.get(number) if type(number) is int else None
        if request is None:
            raise ProtocolViolation(f"the server answered an unknown request, id {number!r:.50}")
        more = error is None and request.op == "batch" and message.pop("more", False) is True
        if not more:
            del self._requests[request.id]
        return Answer(request, message if error is None else {}, error, more)


def error_of(facts: Mapping[str, Any]) -> OpenEnvError:
    """The exception for the `error` map of a reply, or of one result of a batch."""
    data = facts.get("data")
    said = {key: value for key, value in facts.items() if key != "data"}
    return from_wire({**data, **said} if isinstance(data, dict) else said)


def check_outcome(payload: Mapping[str, Any]) -> None:
    """Checks a reply to reset or step before a client parses it.

    Raises:
        ProtocolViolation: It has no observation, or its reward is neither null nor a finite number.
    """
    if "observation" not in payload:
        raise ProtocolViolation(f"the server sent a reply without an observation: {dict(payload)!r:.200}")
    reward = payload.get("reward")
    if reward is None or (type(reward) in _NUMBERS and reward - reward == 0):
        return
    raise ProtocolViolation(f"the server sent the reward {reward!r:.50}, which is neither a finite number nor null")
