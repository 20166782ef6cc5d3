"""`openenv.server.app` under its older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "GetEndpointConfig",
    "register_get_endpoints",
]

__getattr__, __dir__ = take(__name__, __all__)
