"""What is said on the wire. No sockets, no clock, no event loop: bytes in, typed messages out, and back.

Names are imported when they are first used: a client does not load the server's side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import ClientProtocol, Reply, Request
    from .client_v2 import Answer, ClientProtocolV2, Event
    from .codec import Body, Codec, codec_of
    from .negotiation import SUBPROTOCOLS, choose
    from .payload import encode_observation, encode_state
    from .server import ClientMessage, ServerProtocol
    from .server_v2 import ServerProtocolV2

__all__ = [
    "SUBPROTOCOLS",
    "Answer",
    "Body",
    "ClientMessage",
    "ClientProtocol",
    "ClientProtocolV2",
    "Codec",
    "Event",
    "Reply",
    "Request",
    "ServerProtocol",
    "ServerProtocolV2",
    "choose",
    "codec_of",
    "encode_observation",
    "encode_state",
]

_HOMES = {
    "SUBPROTOCOLS": "negotiation",
    "Answer": "client_v2",
    "Body": "codec",
    "ClientMessage": "server",
    "ClientProtocol": "client",
    "ClientProtocolV2": "client_v2",
    "Codec": "codec",
    "Event": "client_v2",
    "Reply": "client",
    "Request": "client",
    "ServerProtocol": "server",
    "ServerProtocolV2": "server_v2",
    "choose": "negotiation",
    "codec_of": "codec",
    "encode_observation": "payload",
    "encode_state": "payload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
