"""Which protocol a connection speaks: agreed on in the WebSocket handshake."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SUBPROTOCOLS", "choose"]

# In the order in which our own client prefers them.
SUBPROTOCOLS = ("openenv.v2.msgpack", "openenv.v2.json")


def choose(offered: Iterable[str]) -> str | None:
    """The subprotocol to answer a handshake with: the first offered one that is known, so the client decides.

    None means that the connection speaks v1, as clients do that offer nothing.
    """
    return next((name for name in offered if name in SUBPROTOCOLS), None)
