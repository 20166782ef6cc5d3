"""The ASGI app that serves an environment, and the fast WebSocket path inside uvicorn."""

from .app import create_app, create_fastapi_app
from .server import HTTPEnvServer

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]
