"""A client's request to speak WebSocket on the environment endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from ..protocol.negotiation import choose
from .porter import fields_of

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
        """The worker process that the client wants, if it names one."""
        return parse_qs(self.query).get("worker", [None])[0] if "worker=" in self.query else None

    def canonical(self) -> bytes:
        """The request in the only form that picows takes (one `Connection` token, no extensions)."""
        return (
            b"GET / HTTP/1.1\r\nHost: openenv\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % self.key
        )
