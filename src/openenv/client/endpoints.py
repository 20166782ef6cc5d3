"""Addresses of servers, request headers, the choice of a server, and how a session finds its server again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit
from weakref import WeakValueDictionary

from .._backoff import system_random
from ..errors import InvalidArgument, UsageError

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def websocket_url(base_url: str) -> str:
    """The environment endpoint of a server.

    Args:
        base_url: `http`, `https`, `ws` or `wss` URL, or a bare `host:port`; with or without `/ws` at its end.

    Raises:
        UsageError: Other text.
    """
    text = base_url if "://" in base_url else f"http://{base_url}"
    wrong = UsageError(f"base_url {base_url!r} is not the address of a server: write http://host:port or host:port")
    try:
        parts = urlsplit(text)
        _ = parts.port  # parsed and checked only here
    except ValueError:
        raise wrong from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise wrong
    path = parts.path.rstrip("/")
    if not path.endswith("/ws"):
        path += "/ws"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))


def convert_to_ws_url(url: str) -> str:
    """An address with the scheme that WebSockets use: `ws` for `http` or none, `wss` for `https`.

    The path stays, without slashes at its end; the client's own endpoint is `websocket_url`.
    """
    scheme, separator, rest = url.rstrip("/").partition("://")
    return f"{_SCHEMES[scheme]}://{rest}" if separator and scheme in _SCHEMES else f"ws://{url.rstrip('/')}"


def http_url(endpoint: str) -> str:
    """The address of a server's routes, from its environment endpoint, without a slash at its end."""
    parts = urlsplit(endpoint)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix("/ws"), "", ""))


def mcp_url(endpoint: str) -> str:
    """The address of a server's tools, from its environment endpoint."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=parts.path.removesuffix("/ws") + "/mcp"))


Headers = tuple[tuple[str, str], ...]


def headers_of(given: Mapping[str, str], api_key: str | None, else_key: str | None = None) -> Headers:
    """The headers of the handshake.

    Args:
        given: The user's headers.
        api_key: The user's key.
        else_key: The key if neither `api_key` nor a header gives one.

    Raises:
        UsageError: One of them cannot be sent. A key is not repeated in the message.
    """
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)) or any(end in name + value for end in "\r\n"):
            raise UsageError(f"header {name!r} cannot be sent: name and value must be text of one line")
    headers = tuple(given.items())
    own = any(name.lower() == "authorization" for name, _ in headers)
    if own and api_key is not None:
        raise UsageError("api_key and a header Authorization: give one of them")
    key = else_key if api_key is None and not own else api_key
    if key is None:
        return headers
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key or " " in key:
        raise UsageError("api_key (OPENENV_API_KEY) cannot be sent: it must be printable ASCII without spaces")
    return (*headers, ("Authorization", f"Bearer {key}"))


class Affinity(NamedTuple):
    """The server and worker process of a session. None: any.

    Attributes:
        server: The endpoint of the server.
        route: The gateway's name for the server, from the handshake.
        worker: Name of the worker process in its hello.
    """

    server: str | None = None
    route: str | None = None
    worker: str | None = None

    def to(self, endpoint: str) -> str:
        """The address of an endpoint for a connection to this worker by this route."""
        wanted = {"worker": self.worker, "route": self.route}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in wanted.items() if value is not None)
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{query}" if query else endpoint


ANY_SERVER = Affinity()


# Seconds for which an unreachable address is tried last.
REST_S = 2.0


@dataclass(eq=False)
class Endpoint:
    """One server's address, as all clients of this process use it.

    Attributes:
        url: Its environment endpoint.
        connections: Number of this process's connections.
        resting: Monotonic time until which it is tried last.
    """

    url: str
    connections: int = 0
    resting: float = 0.0

    def opened(self) -> None:
        """Counts a connection attempt."""
        self.connections += 1

    def closed(self) -> None:
        """Counts its end or failure."""
        self.connections -= 1

    def failed(self) -> None:
        """It could not be reached."""
        self.resting = time.monotonic() + REST_S


# By address, so that independent clients spread their connections together.
_known: WeakValueDictionary[str, Endpoint] = WeakValueDictionary()
_knowing = threading.Lock()


class Endpoints:
    """The servers of a client, which serve the same environment.

    Args:
        base_urls: Their addresses, in any form that `websocket_url` takes.

    Raises:
        InvalidArgument: The list is empty.
        UsageError: One of them is not an address.
    """

    def __init__(self, base_urls: Sequence[str]):
        urls = dict.fromkeys(map(websocket_url, base_urls))
        if not urls:
            raise InvalidArgument("base_url is an empty list: it needs the address of one server at least")
        with _knowing:
            self.all = tuple(_known.setdefault(url, Endpoint(url)) for url in urls)

    def pick(self, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """The server with the fewest connections of this process; None if all were tried.

        Servers that could not be reached a moment ago come last. Ties are broken at random, so that processes that
        start together do not all choose the same one.
        """
        now = time.monotonic()
        left = [endpoint for endpoint in self.all if endpoint not in tried]
        return min(
            left,
            key=lambda endpoint: (endpoint.resting > now, endpoint.connections, system_random.random()),
            default=None,
        )

    def at(self, url: str) -> Endpoint | None:
        """The server of a URL."""
        return next((endpoint for endpoint in self.all if endpoint.url == url), None)


def _forget() -> None:
    """After a fork: the connections stayed in the parent, and the lock may have been held."""
    global _knowing  # noqa: PLW0603 - one for each process
    _knowing = threading.Lock()
    for endpoint in _known.values():
        endpoint.connections = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
