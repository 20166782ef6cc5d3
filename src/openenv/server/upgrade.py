"""A client's request to speak WebSocket on the environment endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from ..protocol.negotiation import choose
from .porter import fields_of
from .stays import worker_of

__all__ = ["Upgrade"]

_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_OFFER = b"sec-websocket-protocol"


class Upgrade(NamedTuple):
    """A well-formed upgrade request (RFC 6455, section 4.2.1).

    Attributes:
        path: Where to, decoded.
        query: What follows the `?` of the URL, as it was sent.
        key: The client's nonce.
        fields: Its headers, as `porter.fields_of` gives them.
        subprotocol: The one to speak, of those that were offered; None: protocol v1.
    """

    path: str
    query: str
    key: bytes
    fields: Mapping[bytes, bytes]
    subprotocol: str | None

    @classmethod
    def parse(cls, request: bytes) -> Upgrade | None:
        """Reads a whole request; None for one that needs an answer other than yes."""
        head, *lines = request.split(b"\r\n")
        parts = (line.partition(b":") for line in lines if line)
        headers = fields_of((name, value.strip()) for name, _, value in parts)
        key = headers.get(b"sec-websocket-key", b"")
        if headers.get(b"sec-websocket-version") != b"13" or not _KEY.fullmatch(key):
            return None
        subprotocol = None
        if _OFFER in headers:
            subprotocol = choose(offer.strip() for offer in headers[_OFFER].decode("latin-1").split(","))
        path, _, query = head.split(b" ")[1].decode("latin-1").partition("?")
        return cls(unquote(path), query, key, headers, subprotocol)

    @property
    def worker(self) -> str | None:
        """The worker process that the client wants, if it names one; that of the session that it names, otherwise."""
        named = self._named("worker") or None
        session = None if named is not None else self.session
        return named if session is None else worker_of(session)

    @property
    def session(self) -> str | None:
        """The session that the client wants to be attached to, if it names one."""
        return self._named("session_id")

    @property
    def token(self) -> str | None:
        """What it shows for that."""
        return self._named("token")

    def _named(self, name: str) -> str | None:
        return parse_qs(self.query, True).get(name, [None])[0] if f"{name}=" in self.query else None

    def canonical(self) -> bytes:
        """The request in the only form that picows takes (one `Connection` token, no extensions)."""
        return (
            b"GET / HTTP/1.1\r\nHost: openenv\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % self.key
        )
