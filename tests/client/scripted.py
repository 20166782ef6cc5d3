"""A server of protocol v2 without a socket, that says what a test wants it to say, right or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from openenv.errors import OpenEnvError
from openenv.protocol.codecs import codec_of

from ..asynchronous import until

__all__ = ["HELLO", "ScriptedApp", "ScriptedPeer", "fault", "outcome"]

HELLO = {
    "event": "hello",
    "protocol": 2,
    "server": "test",
    "environment": "scripted",
    "limits": {"max_message_bytes": 1 << 20, "max_sessions": 100, "max_in_flight": 64, "max_batch": 1024},
    "heartbeat_s": None,
    "resume_window_s": 0,
    "capabilities": [],
    "worker": None,
}


def outcome(reward: float | None = None, done: bool = False, truncated: bool = False, **observation: Any) -> dict:
    """The fields of a reply to reset or step."""
    terminated = done and not truncated
    return {
        "ok": True,
        "observation": observation,
        "reward": reward,
        "done": done,
        "terminated": terminated,
        "truncated": truncated,
    }


def fault(error: str = "StepFailed", message: str = "a fault", code: str = "EXECUTION_ERROR") -> dict:
    """The fields of a reply that is an error."""
    facts = {"message": message, "code": code, "error": error, "blame": "environment", "retryable": False}
    return {"error": facts}


class ScriptedPeer:
    """The server's end of one connection.

    Attributes:
        requests: What the client has sent, in order.
        closed: The client has closed.
        reflex: Called with each request as it comes.
    """

    def __init__(self, channel: Any, subprotocol: str):
        self._channel = channel
        self._codec = codec_of(subprotocol)
        self.requests: list[dict[str, Any]] = []
        self.closed = False
        self.reflex: Callable[[dict[str, Any]], None] = lambda request: None

    def say(self, message: dict[str, Any]) -> None:
        """Sends a frame."""
        self._channel.send(self._codec.encode(message))

    def say_raw(self, frame: bytes) -> None:
        self._channel.send(frame)

    def reply(self, request: dict[str, Any], fields: dict[str, Any]) -> None:
        """Answers a request."""
        self.say({"id": request["id"], **fields})

    def results(self, batch: dict[str, Any], results: dict[int, dict[str, Any]], more: bool = False) -> None:
        """Answers calls of a batch, by place."""
        items = [{"call": place, "session": batch["calls"][place]["session"], **results[place]} for place in results]
        self.say({"id": batch["id"], "ok": True, "results": items, "more": more})

    def hang_up(self) -> None:
        """Closes the connection."""
        self._channel.close(1001)

    async def asked(self, count: int) -> dict[str, Any]:
        """Waits until so many requests have come; gives the last of them."""
        await until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    # What the transport calls.

    def receive(self, frame: bytes) -> None:
        self.requests.append(self._codec.decode(frame))
        self.reflex(self.requests[-1])

    receive_binary = receive

    def disconnected(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class ScriptedApp:
    """Passes for an app; each connection is a `ScriptedPeer` that has said hello.

    Attributes:
        peers: The connections it has had.
        hello: What they say first; None for nothing.
        refusals: What the next attempts to connect get instead of a connection.

    Args:
        window_s: How long it says that sessions wait for their client.
        limits: Those that its hello names.
    """

    def __init__(self, window_s: float = 0, **limits: int):
        self.peers: list[ScriptedPeer] = []
        self.hello: dict[str, Any] | None = {
            **HELLO,
            "limits": {**HELLO["limits"], **limits},
            "resume_window_s": window_s,
        }
        self.refusals: list[OpenEnvError] = []
        self.state = SimpleNamespace(openenv=self)

    def connect(self, channel: Any, subprotocol: str) -> ScriptedPeer:
        if self.refusals:
            raise self.refusals.pop(0)
        peer = ScriptedPeer(channel, subprotocol)
        self.peers.append(peer)
        if self.hello is not None:
            # As on a socket: not before the transport is there.
            asyncio.get_running_loop().call_soon(peer.say, self.hello)
        return peer

    async def peer(self, number: int = 0) -> ScriptedPeer:
        """Waits for a connection."""
        await until(lambda: len(self.peers) > number)
        return self.peers[number]
