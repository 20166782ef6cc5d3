"""`openenv.server` under its older name."""

from __future__ import annotations

from ...server import HTTPEnvServer, create_app, create_fastapi_app

__all__ = [
    "HTTPEnvServer",
    "create_app",
    "create_fastapi_app",
]
