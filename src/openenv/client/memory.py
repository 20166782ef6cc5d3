"""The in-process transport: client and server on one event loop, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ConnectionLost, OpenEnvError
from ..protocol.codecs import codec_of
from .connection import Receiver
from .endpoints import ANY_SERVER

CLOSE_TIMEOUT_S = 2.0
SUBPROTOCOL: str | None = "openenv.v2.msgpack"
"""The protocol of both sides; None means v1."""


class _ServerConversation(Protocol):
    def receive(self, frame: bytes) -> None: ...
    def receive_binary(self, frame: bytes) -> None: ...
    def disconnected(self) -> None: ...
    async def aclose(self) -> None: ...


class _InProcessServer(Protocol):
    def connect(self, channel: Any, subprotocol: str | None) -> _ServerConversation: ...


async def connect(app: Any, receiver: Callable[[str | None], Receiver]) -> MemoryTransport:
    """Opens a conversation with an app made by `create_app`.

    Args:
        app: The app.
        receiver: Makes the receiver of its frames, given the subprotocol.

    Raises:
        TypeError: The app serves no environment.
        UsageError: The app has sessions on another event loop.
    """
    server: _InProcessServer | None = getattr(getattr(app, "state", None), "openenv", None)
    if server is None:
        raise TypeError(f"app is {app!r}: pass what openenv.server.create_app returned")
    return MemoryTransport(server, receiver(SUBPROTOCOL), SUBPROTOCOL)


class MemoryTransport:
    """A transport to the client and a channel to the server: what one sends, the other receives."""

    def __init__(self, server: _InProcessServer, receiver: Receiver, subprotocol: str | None):
        self.subprotocol = subprotocol
        self.affinity = ANY_SERVER
        self._server_end = _ServerEnd(receiver)
        self._conversation = server.connect(self._server_end, subprotocol)
        binary = subprotocol is not None and codec_of(subprotocol).binary
        # Hands a frame to the server. Its answer may arrive before this returns.
        self.send = self._conversation.receive_binary if binary else self._conversation.receive

    def drop(self) -> None:
        self._conversation.disconnected()
        self._server_end.end(ConnectionLost("the client has closed"))

    async def aclose(self) -> None:
        """Ends the session and waits until its environment is closed, two seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._conversation.aclose()
        self._server_end.end(ConnectionLost("the client has closed"))


class _ServerEnd:
    """The channel of the server: what it sends, the client's receiver gets until the end."""

    def __init__(self, receiver: Receiver):
        self._receiver: Receiver | None = receiver

    def send(self, frame: bytes) -> None:
        if self._receiver is not None:
            self._receiver.received(frame)

    def close(self, code: int) -> None:
        self.end(ConnectionLost(f"the server closed the conversation with code {code}"))

    def end(self, error: OpenEnvError) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(error)

    def pause(self) -> None:
        """Does nothing: the client waits for each reply."""

    def resume(self) -> None:
        """Does nothing."""
