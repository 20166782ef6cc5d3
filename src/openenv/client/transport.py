"""The contract between a conversation and the road its frames take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ..errors import OpenEnvError
from .way import Way

__all__ = ["Connect", "Receiver", "Transport"]


class Receiver(Protocol):
    """Who gets what comes from a server. Called on the event loop that made the connection."""

    def received(self, frame: bytes) -> None:
        """One frame has come."""

    def lost(self, error: OpenEnvError) -> None:
        """The connection has ended; nothing follows."""


class Transport(Protocol):
    """An open connection to a server.

    Attributes:
        subprotocol: What was agreed on in the handshake; None for protocol v1.
        way: How its server was reached.
    """

    @property
    def subprotocol(self) -> str | None: ...

    @property
    def way(self) -> Way: ...

    def send(self, frame: bytes) -> None:
        """Sends one frame, as the subprotocol has it: binary or text.

        On a connection that has ended, nothing happens: the receiver knows.
        """

    def drop(self) -> None:
        """Closes without waiting for anything: this connection is of no further use."""

    async def aclose(self) -> None:
        """Closes in good order, within a bounded time. May be called repeatedly."""


Connect = Callable[[Callable[[str | None], Receiver]], Awaitable[Transport]]
"""Opens a connection. The receiver is made when the subprotocol is known, before the first frame is read."""
