"""What is said on the wire. No sockets, no clock, no event loop: bytes in, typed messages out, and back."""

from .client import ClientProtocol, Reply, Request
from .payload import encode_observation, encode_state
from .server import ClientMessage, ServerProtocol

__all__ = [
    "ClientMessage",
    "ClientProtocol",
    "Reply",
    "Request",
    "ServerProtocol",
    "encode_observation",
    "encode_state",
]
