"""A client of protocol v2 that knows no more than the document says: for tests of the server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from .wires import WIRES, Wire

__all__ = ["LINES", "Talk", "error_of", "few_lines"]

SUBPROTOCOLS = ("openenv.v2.msgpack", "openenv.v2.json")
LINES = [(transport, subprotocol) for transport in WIRES for subprotocol in SUBPROTOCOLS]

# For tests of what lies above the transports: one that has none, and the one that most use.
few_lines = pytest.mark.parametrize("line", [line for line in LINES if line[0] in {"memory", "fast"}], indirect=True)


def error_of(reply: Any) -> Any:
    assert "ok" not in reply, reply
    return reply["error"]


class Talk:
    """A v2 conversation over a wire. Sessions count their calls here, as a client must."""

    def __init__(self, wire: Wire):
        self.wire = wire
        self.binary = wire.subprotocol == "openenv.v2.msgpack"
        assert wire.subprotocol in SUBPROTOCOLS
        self.seq: dict[str, int] = {}
        self.tokens: dict[str, str] = {}
        self._last_id = 0
        self.hello = self.receive()

    def write(self, message: Any) -> str | bytes:
        return msgspec.msgpack.encode(message) if self.binary else json.dumps(message)

    def read(self, frame: str | bytes) -> Any:
        assert isinstance(frame, bytes) is self.binary
        return msgspec.msgpack.decode(frame) if self.binary else json.loads(frame)

    def receive(self) -> Any:
        return self.read(self.wire.receive_frame())

    def tell(self, op: str, **fields: Any) -> int:
        """Sends a request and returns its id."""
        self._last_id += 1
        self.wire.send(self.write({"id": self._last_id, "op": op, **fields}))
        return self._last_id

    def ask(self, op: str, **fields: Any) -> Any:
        """Sends a request and returns its reply, which must be the next frame."""
        number = self.tell(op, **fields)
        reply = self.receive()
        assert reply["id"] == number, reply
        return reply

    def open(self, session: str, **fields: Any) -> Any:
        """Opens a session. Raises `AssertionError` for an error."""
        reply = self.ask("open", session=session, **fields)
        assert reply.get("ok") is True, reply
        self.seq[session] = reply["seq"]
        self.tokens[session] = reply["token"]
        return reply

    def call(self, op: str, session: str, **fields: Any) -> dict[str, Any]:
        """A counted call for a batch or for `tell`: everything but its id."""
        self.seq[session] += 1
        return {"op": op, "session": session, "seq": self.seq[session], **fields}

    def step_call(self, session: str, kind: str = "ok", number: int = 0) -> dict[str, Any]:
        return self.call("step", session, action={"kind": kind, "number": number})

    def step(self, session: str, kind: str = "ok", number: int = 0) -> Any:
        return self.ask(**self.step_call(session, kind, number))

    def tell_step(self, session: str, kind: str = "ok", number: int = 0) -> int:
        return self.tell(**self.step_call(session, kind, number))

    def batch(self, *calls: dict[str, Any], **fields: Any) -> list[Any]:
        """Sends a batch and returns its frames."""
        number = self.tell("batch", calls=list(calls), **fields)
        frames = [self.receive()]
        while frames[-1].get("more"):
            frames.append(self.receive())
        assert all(frame["id"] == number for frame in frames)
        return frames

    def assert_lives(self, session: str) -> None:
        assert self.step(session, number=7)["observation"]["value"] == 7
