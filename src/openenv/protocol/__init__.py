"""The wire protocol. No sockets, no clock, no event loop: bytes in, typed messages out, and back.

Names are imported on first use, so that a client does not load the server's side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .client import Answer, ClientProtocol, ClientProtocolV2, Event, Reply, Request
    from .codecs import SUBPROTOCOLS, Body, Codec, choose, codec_of
    from .encoding import encode_observation, encode_state
    from .server import ClientMessage, ServerProtocol, ServerProtocolV2

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
        "SUBPROTOCOLS": "openenv.protocol.codecs",
        "Answer": "openenv.protocol.client",
        "Body": "openenv.protocol.codecs",
        "ClientMessage": "openenv.protocol.server",
        "ClientProtocol": "openenv.protocol.client",
        "ClientProtocolV2": "openenv.protocol.client",
        "Codec": "openenv.protocol.codecs",
        "Event": "openenv.protocol.client",
        "Reply": "openenv.protocol.client",
        "Request": "openenv.protocol.client",
        "ServerProtocol": "openenv.protocol.server",
        "ServerProtocolV2": "openenv.protocol.server",
        "choose": "openenv.protocol.codecs",
        "codec_of": "openenv.protocol.codecs",
        "encode_observation": "openenv.protocol.encoding",
        "encode_state": "openenv.protocol.encoding",
    },
)
