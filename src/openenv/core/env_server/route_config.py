"""`openenv.server.app` under its older name."""

from __future__ import annotations

from ...server.app import GetEndpointConfig, register_get_endpoints

__all__ = [
    "GetEndpointConfig",
    "register_get_endpoints",
]
