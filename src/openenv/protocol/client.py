"""The client's side of protocol v1: which reply belongs to which request.

v1 has no ids, so order is everything. Each request leaves an entry in a queue and each reply takes the
oldest one. A caller that gives up marks its entry; the reply that comes later is dropped with the entry
and cannot be taken for the answer to another request.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..errors import OpenEnvError, ProtocolViolation, from_wire
from .portable import UNWRITABLE, portable_v1

__all__ = ["ClientProtocol", "Reply", "Request"]

_REPLY_TYPES = {"reset": "observation", "step": "observation", "state": "state", "mcp": "mcp"}


class Request:
    """One request whose reply is awaited.

    Attributes:
        kind: `reset`, `step`, `state` or `mcp`.
        waiter: Whatever the transport wants back with the reply; this module never looks at it.
        abandoned: The caller has given up, so the reply is dropped.
    """

    __slots__ = ("abandoned", "kind", "waiter")

    def __init__(self, kind: str, waiter: Any = None):
        self.kind = kind
        self.waiter = waiter
        self.abandoned = False


class Reply(NamedTuple):
    """What a frame from the server means.

    Attributes:
        request: The request it answers; None for an error that the server sent unasked (a refused session).
        payload: The `data` object, when the request succeeded.
        error: The error the server reports, when it did not.
    """

    request: Request | None
    payload: dict[str, Any]
    error: OpenEnvError | None


class ClientProtocol:
    """The conversation over one connection."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    @property
    def outstanding(self) -> int:
        """Replies still to come, abandoned ones included."""
        return len(self._requests)

    def send(self, kind: str, data: Any = None, waiter: Any = None) -> tuple[bytes, Request]:
        """Makes the frame of a request and remembers that its reply is due.

        Args:
            kind: `reset`, `step`, `state` or `mcp`.
            data: The message's `data`, None for a message without; NaN and infinity travel as themselves.
            waiter: Kept with the request.

        Raises:
            ValueError: `data` holds what JSON cannot say.
        """
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            frame = to_json(message, inf_nan_mode="constants")
        except ValueError:  # arrays, or bytes that are no text
            frame = _encode(message)
        request = Request(kind, waiter)
        self._requests.append(request)
        return frame, request

    def withdraw(self, request: Request) -> None:
        """Forgets the newest request, which was not sent after all."""
        newest = self._requests.pop()
        assert newest is request

    @staticmethod
    def close() -> bytes:
        """The frame that ends the session; it has no reply."""
        return b'{"type":"close"}'

    def receive(self, frame: bytes | str) -> Reply:
        """Reads one frame and finds the request it answers.

        Raises:
            ProtocolViolation: The frame is no v1 reply, or not one to the oldest request. The connection is of
                no further use: replies could no longer be told apart.
        """
        try:
            message = from_json(frame)
            kind, payload = message["type"], message["data"]
        except (ValueError, KeyError, TypeError):
            raise ProtocolViolation(f"the server sent what is no reply: {frame[:200]!r}") from None
        request = self._requests.popleft() if self._requests else None
        if kind == "error" and isinstance(payload, dict):
            return Reply(request, {}, from_wire(payload))
        if request is None or kind != _REPLY_TYPES[request.kind] or not isinstance(payload, dict):
            asked = "nothing"
            if request is not None:
                asked = request.kind
                self._requests.appendleft(request)  # not answered: `abandon_all` must find it
            raise ProtocolViolation(f"the server answered {asked} with a message of type {kind!r}")
        return Reply(request, payload, None)

    def abandon_all(self) -> list[Request]:
        """Forgets every request, for a connection that has ended; returns those that were still wanted."""
        wanted = [request for request in self._requests if not request.abandoned]
        self._requests.clear()
        return wanted


def _encode(message: dict[str, Any]) -> bytes:
    try:
        return to_json(portable_v1(message), inf_nan_mode="constants")
    except UNWRITABLE as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error
