"""Where a path of the local proxy leads, who may take it, and what is said on the way. Pure, but for the job."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConnectTimeout, NotReady, OpenEnvError, Unauthorized, UsageError
from .job import Job

__all__ = ["SERVER_KEY", "Headers", "Patience", "Route", "answer_of"]

Headers = list[tuple[bytes, bytes]]
SERVER_KEY = b"x-openenv-key"
"""The header that shows the server's own key, where Authorization is for the Hub."""
# For one connection alone (RFC 9110, 7.6.1), or replaced.
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = frozenset({b"host", b"authorization", SERVER_KEY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the proxy waits for a sandbox.

    Attributes:
        connect_s: Seconds for a connection to it.
        read_s: Seconds without anything from it while an answer to an HTTP request is due.
        ping_s: Seconds between pings on a WebSocket, and until each one's answer.
    """

    connect_s: float = 20.0
    read_s: float = 600.0
    ping_s: float = 20.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "read_s", "ping_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} of a Patience must be more than 0, got {getattr(self, name)!r}")


@dataclass(eq=False, slots=True)
class Route:
    """The way to one sandbox.

    Attributes:
        name: The first part of its path.
        keys: Any of them lets a client take it.
        job: Where it leads.
        patience: How long it is waited for.
        shows_key: Whether the server asks for the key as well.
        closed: Set when it leads nowhere any more.
    """

    name: str
    keys: Sequence[str] = field(repr=False)
    job: Job
    patience: Patience
    shows_key: bool
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The key that a request shows.

        Raises:
            Unauthorized: None, or another one.
        """
        for name, value in headers:
            scheme, _, key = value.partition(b" ")
            if name.lower() == b"authorization" and scheme.lower() == b"bearer" and self._knows(key.strip()):
                return key.strip()
        raise Unauthorized(
            "the way to this sandbox asks for the key of its deployment (api_key): 'Authorization: Bearer KEY'"
        )

    def _knows(self, shown: bytes) -> bool:
        return sum(hmac.compare_digest(key.encode(), shown) for key in self.keys) > 0  # all of them, in the same time

    def outward(self, headers: Iterable[tuple[bytes, bytes]], key: bytes) -> Headers:
        """What the sandbox is told of a request: its headers without the local key, and with the Hub's token."""
        told = _without_hops(headers)
        told.append((b"Authorization", self.job.authorization.encode()))
        if self.shows_key:
            told.append((SERVER_KEY, key))
        return told

    def inward(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Headers:
        """What the client is told of an answer: places at the sandbox become places behind this path."""
        told = _without_hops(headers)
        return [(name, self._moved(value, address) if name.lower() == b"location" else value) for name, value in told]

    def _moved(self, location: bytes, address: str) -> bytes:
        there, text = urlsplit(address), location.decode("latin-1")
        goal = urlsplit(text)
        if goal.netloc not in {"", there.netloc} or not goal.path.startswith("/"):
            return location
        return goal._replace(scheme="", netloc="", path=f"/{self.name}{goal.path}").geturl().encode("latin-1")


def _without_hops(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    told = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in told if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in told if name not in _HOP | _OURS | named]


def answer_of(error: OpenEnvError) -> tuple[int, Headers, bytes]:
    """What a request is answered that reaches no sandbox: status, headers and body."""
    status, headers = _status_of(error), [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    facts: dict[str, Any] = {**error.data, **error.facts(), "detail": error.message}
    body = json.dumps(facts).encode()
    return status, [*headers, (b"content-length", str(len(body)).encode())], body


def _status_of(error: OpenEnvError) -> int:
    if isinstance(error, Unauthorized):
        return 401
    if isinstance(error, UsageError):
        return 404
    if isinstance(error, NotReady):
        return 503
    return 504 if isinstance(error, ConnectTimeout) else 502
