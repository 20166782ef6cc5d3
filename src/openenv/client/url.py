"""Addresses of servers, in every form that users write them."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import UsageError

__all__ = ["convert_to_ws_url", "http_url", "is_loopback", "mcp_url", "towards", "websocket_url"]

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def websocket_url(base_url: str) -> str:
    """The environment endpoint of a server.

    Args:
        base_url: `http`, `https`, `ws` or `wss` URL, or a bare `host:port`; with or without `/ws` at its end.

    Raises:
        UsageError: None of those.
    """
    text = base_url if "://" in base_url else f"http://{base_url}"
    wrong = UsageError(f"base_url {base_url!r} is no address of a server: write http://host:port or host:port")
    try:
        parts = urlsplit(text)
        _ = parts.port  # read from the text, and checked, only now
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
    """The address of the routes of a server whose environment endpoint is given, without a slash at its end."""
    parts = urlsplit(endpoint)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix("/ws"), "", ""))


def mcp_url(endpoint: str) -> str:
    """The tools of a server whose environment endpoint is given."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=parts.path.removesuffix("/ws") + "/mcp"))


def towards(url: str, worker: str | None, route: str | None = None) -> str:
    """The endpoint again, for a connection that must reach a certain server.

    Args:
        url: The endpoint.
        worker: The worker process, as its hello calls it; None: any.
        route: What a gateway calls the server, in the handshake; None: any.
    """
    wanted = {"worker": worker, "route": route}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in wanted.items() if value is not None)
    return f"{url}{'&' if urlsplit(url).query else '?'}{query}" if query else url


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
