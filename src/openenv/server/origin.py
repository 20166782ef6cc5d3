"""Which web pages may use a server: browsers send `Origin`, `Host` and `Sec-Fetch-Site`. Pure."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import Forbidden, UsageError

__all__ = ["MOST_SHOWN", "Origins", "is_loopback"]

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_ANY = "*"
_ELSEWHERE = frozenset({b"cross-site", b"same-site"})
# Of what somebody sent, shown in an error.
MOST_SHOWN = 200


class _Origin(NamedTuple):
    scheme: str
    host: str | None
    port: int | None


class Origins:
    """The origins that may use a server beside its own, and the names that a server on loopback goes by.

    Args:
        origins: The setting `allowed_origins`.
        hosts: The setting `allowed_hosts`.

    Raises:
        UsageError: One of them names no origin, or no host.
    """

    def __init__(self, origins: str | None, hosts: str | None = None):
        names = _listed(origins)
        self._any = _ANY in names
        self._allowed = {_allowed(name) for name in names if name != _ANY}
        named = _listed(hosts)
        self._any_host = _ANY in named
        self._hosts = {_host(name) for name in named if name != _ANY}
        self._hosts |= {origin.host for origin in self._allowed if origin.host is not None}

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

    def check_host(self, host: bytes | None, local: str | None) -> None:
        """Checks whose name a request to a loopback address was sent to.

        A page whose name was made to point to this machine after it was loaded (DNS rebinding) sends no `Origin`
        with a GET of its own, and may read the answer. Its name is in `Host`.

        Args:
            host: Its `Host` header; None where it has none, which no browser does.
            local: The address that it came to; None where that is not known.

        Raises:
            Forbidden: This server does not know the name.
        """
        if host is None or self._any_host or not is_loopback(local):
            return
        name = _parse(f"http://{host.decode('latin-1')}").host
        if name is not None and (is_loopback(name) or name in self._hosts):
            return
        shown = host[:MOST_SHOWN].decode("latin-1")
        raise Forbidden(
            f"this server listens on loopback and does not know the host name {shown!r}: name it in allowed_hosts "
            "(--allowed-hosts, OPENENV_ALLOWED_HOSTS), for example where a reverse proxy passes it on"
        )

    def check_site(self, site: bytes) -> None:
        """Checks a request without an `Origin` by its `Sec-Fetch-Site`.

        Raises:
            Forbidden: A page of another site sent it: as the address of a picture, of a frame, or as a link.
        """
        if site in _ELSEWHERE and not self._any:
            raise Forbidden(f"a page elsewhere may not send this (Sec-Fetch-Site: {site.decode()})")


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


def _listed(text: str | None) -> list[str]:
    return [name for part in (text or "").split(",") if (name := part.strip())]


def _host(name: str) -> str:
    host = _parse(f"http://{name}").host
    if host is None or " " in host:
        raise UsageError(
            f"setting allowed_hosts (OPENENV_ALLOWED_HOSTS): {name!r} is no host name: write example.org"
        )
    return host


def _allowed(name: str) -> _Origin:
    origin = _parse(name)
    if origin.host is None and name != "null":
        raise UsageError(
            f"setting allowed_origins (OPENENV_ALLOWED_ORIGINS): {name!r} is none: write https://example.org:8443"
        )
    return origin
