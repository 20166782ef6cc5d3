"""Serves an environment: the ASGI app, its endpoints and the connections of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .app import create_app, create_fastapi_app
    from .server import HTTPEnvServer

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "HTTPEnvServer": f"{__name__}.server",
        "create_app": f"{__name__}.app",
        "create_fastapi_app": f"{__name__}.app",
    },
)
