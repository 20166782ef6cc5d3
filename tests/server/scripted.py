"""The other end of a v2 connection, in the process of the server and driven by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from openenv.server.auth import ANONYMOUS, Principal

__all__ = ["TOKEN", "End"]

TOKEN = "a-token-that-nobody-guesses"


class End:
    """A connection to a server whose frames are kept. It can be cut without a word.

    Attributes:
        replies: By the id of the request, all that came under it.
        events: What came unasked.
    """

    def __init__(self, server: Any, subprotocol: str = "openenv.v2.json", principal: Principal = ANONYMOUS):
        self.replies: dict[int, list[Any]] = {}
        self.events: list[Any] = []
        self.closed: int | None = None
        self._read: Any = msgspec.msgpack.decode if subprotocol.endswith("msgpack") else json.loads
        self._binary = subprotocol.endswith("msgpack")
        self._last_id = 0
        self.connection = server.connect(self, subprotocol, principal)

    def tell(self, op: str, **fields: Any) -> int:
        """Sends a request and returns its id."""
        self._last_id += 1
        message = {"id": self._last_id, "op": op, **fields}
        if self._binary:
            self.connection.receive_binary(msgspec.msgpack.encode(message))
        else:
            self.connection.receive(json.dumps(message).encode())
        return self._last_id

    def now(self, op: str, **fields: Any) -> Any:
        """A request that is answered before it returns."""
        (reply,) = self.replies[self.tell(op, **fields)]
        return reply

    def error(self, number: int) -> str:
        """The name of the error that a request was answered with."""
        (reply,) = self.replies[number]
        return reply["error"]["error"]

    def step(self, seq: int, kind: str = "ok", session: str = "one", **fields: Any) -> int:
        return self.tell("step", session=session, seq=seq, action={"kind": kind, "number": seq}, **fields)

    def cut(self) -> None:
        self.connection.disconnected()

    # What the server calls.

    def send(self, frame: bytes) -> None:
        message = self._read(frame)
        if "event" in message:
            self.events.append(message)
        else:
            self.replies.setdefault(message["id"], []).append(message)

    def close(self, code: int) -> None:
        self.closed = code

    def pause(self) -> None: ...

    def resume(self) -> None: ...
