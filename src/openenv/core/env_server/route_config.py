"""`openenv.server.route_config` under its older name."""

from __future__ import annotations

from ...server.route_config import GetEndpointConfig, register_get_endpoints

__all__ = [
    "GetEndpointConfig",
    "register_get_endpoints",
]
