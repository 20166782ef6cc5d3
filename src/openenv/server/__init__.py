"""Serves an environment: the ASGI app, its endpoints and the connections of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .app import HTTPEnvServer

__all__ = ["HTTPEnvServer"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "HTTPEnvServer": f"{__name__}.app",
        # Existing code imports these names from here.
        "create_app": "openenv.core.env_server.web_interface",
        "create_fastapi_app": "openenv.core.env_server.web_interface",
    },
)
