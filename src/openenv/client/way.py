"""How a server was reached, which is how a client comes back to it."""

from __future__ import annotations

from typing import NamedTuple

from .url import towards

__all__ = ["ANY", "Way"]


class Way(NamedTuple):
    """What leads to a session: its server, among several; what a gateway calls that; its worker process. None: any.

    Attributes:
        server: The endpoint of the server.
        route: What a gateway called the server that it chose, in the handshake.
        worker: The worker process, as its hello calls it.
    """

    server: str | None = None
    route: str | None = None
    worker: str | None = None

    def to(self, endpoint: str) -> str:
        """The address of an endpoint, for a connection that must come to this worker by this route."""
        return towards(endpoint, self.worker, self.route)


ANY = Way()
