"""What is said on the wire. No sockets, no clock, no event loop: bytes in, typed messages out, and back.

Names are imported when they are first used: a client does not load the server's side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "SUBPROTOCOLS": "openenv.protocol.negotiation",
        "Answer": "openenv.protocol.client_v2",
        "Body": "openenv.protocol.codec",
        "ClientMessage": "openenv.protocol.server",
        "ClientProtocol": "openenv.protocol.client",
        "ClientProtocolV2": "openenv.protocol.client_v2",
        "Codec": "openenv.protocol.codec",
        "Event": "openenv.protocol.client_v2",
        "Reply": "openenv.protocol.client",
        "Request": "openenv.protocol.client",
        "ServerProtocol": "openenv.protocol.server",
        "ServerProtocolV2": "openenv.protocol.server_v2",
        "choose": "openenv.protocol.negotiation",
        "codec_of": "openenv.protocol.codec",
        "encode_observation": "openenv.protocol.payload",
        "encode_state": "openenv.protocol.payload",
    },
)
