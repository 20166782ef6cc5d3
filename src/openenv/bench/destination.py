"""Where a storm goes, and from which addresses."""

from __future__ import annotations

import ipaddress
import ssl
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from ..client.url import websocket_url

__all__ = ["Destination", "destination_of"]

# An address has about 28,000 ports for one destination, and one that was used rests for a minute. So few of them
# leave room for many storms a minute, and the kernel finds a free one at its first look.
SESSIONS_PER_SOURCE = 1024
_SOURCES_PER_NET = 250


@dataclass(frozen=True, slots=True)
class Destination:
    """A server's environment endpoint, ready for connections.

    Attributes:
        url: In its full form.
        host, port: Where to connect.
        handshake: The request that asks for a WebSocket; the key is in it.
        tls: For `wss`.
        sources: Whether connections may come from any address 127.x.y.z, as they may to such an address on Linux.
    """

    url: str
    host: str
    port: int
    handshake: bytes = field(repr=False)
    tls: ssl.SSLContext | None
    sources: bool

    def source(self, number: int) -> tuple[str, int] | None:
        """The local address for a session, by its number within the storm; None leaves it to the system."""
        if not self.sources:
            return None
        net, place = divmod(number // SESSIONS_PER_SOURCE, _SOURCES_PER_NET)
        return f"127.0.{1 + net}.{1 + place}", 0


@lru_cache
def destination_of(url: str, api_key: str | None = None) -> Destination:
    """Reads an address in any form that `EnvClient` takes. Proxies of the environment are not used.

    Args:
        url: The address.
        api_key: The key that the server asks for.

    Raises:
        UsageError: It is none.
    """
    full = websocket_url(url)
    parts = urlsplit(full)
    host, secure = parts.hostname or "", parts.scheme == "wss"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    key = "" if api_key is None else f"Authorization: Bearer {api_key}\r\n"
    return Destination(
        url=full,
        host=host,
        port=parts.port or (443 if secure else 80),
        handshake=(
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: b25lIGtleSBmb3IgYWxsLg==\r\n{key}\r\n"
        ).encode(),
        tls=ssl.create_default_context() if secure else None,
        sources=sys.platform == "linux" and _is_ipv4_loopback(host),
    )


def _is_ipv4_loopback(host: str) -> bool:
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False
