"""Which web pages may use a server: browsers say in `Origin` where a page comes from. Pure."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import Forbidden, UsageError

__all__ = ["MOST_SHOWN", "Origins", "is_loopback"]

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_ANY = "*"
# Of what somebody sent, shown in an error.
MOST_SHOWN = 200


class _Origin(NamedTuple):
    scheme: str
    host: str | None
    port: int | None


class Origins:
    """The origins that may use a server beside its own.

    Args:
        text: The setting `allowed_origins`.

    Raises:
        UsageError: It names what is no origin.
    """

    def __init__(self, text: str | None):
        names = [name for part in (text or "").split(",") if (name := part.strip())]
        self._any = _ANY in names
        self._allowed = {_allowed(name) for name in names if name != _ANY}

    def check(self, origin: bytes, host: bytes, local: str | None) -> None:
        """Checks one request of a web page.

        A page whose name was made to point to this machine after it was loaded (DNS rebinding) has the origin that
        the request's `Host` says. So a server on a loopback address knows only the names of loopback as its own.

        Args:
            origin: Its `Origin` header.
            host: Its `Host` header.
            local: The address that it came to; None where that is not known.

        Raises:
            Forbidden: Pages from there may not use this server.
        """
        page = _parse(origin.decode("latin-1"))
        if self._any or page in self._allowed:
            return
        own = _parse(f"{page.scheme}://{host.decode('latin-1')}")
        if page.host is not None and page == own and (not is_loopback(local) or is_loopback(page.host)):
            return
        shown = origin[:MOST_SHOWN].decode("latin-1")
        raise Forbidden(
            f"pages from {shown} may not use this server: "
            "name their origin in allowed_origins (--allowed-origins, OPENENV_ALLOWED_ORIGINS)"
        )


def is_loopback(host: str | None) -> bool:
    """Whether a name or an address means this machine, and is reached from no other."""
    if host is None:
        return False
    host = host.lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return ip.is_loopback or (mapped is not None and mapped.is_loopback)


def _parse(text: str) -> _Origin:
    """An origin in parts. What is none, as `null` of a page without a place, has no host and equals itself alone."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port
    except ValueError:
        return _Origin(text, None, None)
    if not parts.scheme or not parts.hostname or parts.path.strip("/") or parts.query or parts.username is not None:
        return _Origin(text, None, None)
    return _Origin(parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme))


def _allowed(name: str) -> _Origin:
    origin = _parse(name)
    if origin.host is None and name != "null":
        raise UsageError(
            f"setting allowed_origins (OPENENV_ALLOWED_ORIGINS): {name!r} is none: write https://example.org:8443"
        )
    return origin
