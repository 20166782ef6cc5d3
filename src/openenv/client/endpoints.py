"""The servers that a client may use, and which of them is to get its next connection."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from weakref import WeakValueDictionary

from ..chance import CHANCE
from ..errors import InvalidArgument
from .url import websocket_url

__all__ = ["Endpoint", "Endpoints"]

# Seconds in which an address that could not be reached comes last.
REST_S = 2.0


class Endpoint:
    """One server's address, as all clients of this process use it.

    Attributes:
        url: Its environment endpoint.
        connections: How many connections this process has there.
        resting: Until when it comes last, by the monotonic clock.
    """

    def __init__(self, url: str):
        self.url = url
        self.connections = 0
        self.resting = 0.0

    def opened(self) -> None:
        """A connection is there, or on its way."""
        self.connections += 1

    def closed(self) -> None:
        """It is gone, or did not come about."""
        self.connections -= 1

    def failed(self) -> None:
        """It could not be reached."""
        self.resting = time.monotonic() + REST_S


# By address, so that clients that know nothing of one another spread their connections together.
_known: WeakValueDictionary[str, Endpoint] = WeakValueDictionary()
_knowing = threading.Lock()


class Endpoints:
    """Servers that do the same.

    Args:
        base_urls: Their addresses, in every form that a single one may have.

    Raises:
        InvalidArgument: There are none.
        UsageError: One of them is no address.
    """

    def __init__(self, base_urls: Sequence[str]):
        urls = dict.fromkeys(map(websocket_url, base_urls))
        if not urls:
            raise InvalidArgument("base_url is an empty list: it needs the address of one server at least")
        with _knowing:
            self.all = tuple(_known.setdefault(url, Endpoint(url)) for url in urls)

    def pick(self, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """The one with the fewest connections of this process; None where all were tried.

        Those that could not be reached a moment ago come last. Among equals, chance decides: many processes that
        begin together do not all begin with the same one.
        """
        now = time.monotonic()
        left = [endpoint for endpoint in self.all if endpoint not in tried]
        return min(
            left,
            key=lambda endpoint: (endpoint.resting > now, endpoint.connections, CHANCE.random()),
            default=None,
        )

    def at(self, url: str) -> Endpoint | None:
        """The one with an address."""
        return next((endpoint for endpoint in self.all if endpoint.url == url), None)


def _forget() -> None:
    """After a fork: the connections stayed in the parent, and the lock may have been held."""
    global _knowing  # noqa: PLW0603 - one for each process
    _knowing = threading.Lock()
    for endpoint in _known.values():
        endpoint.connections = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
