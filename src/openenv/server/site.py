"""What is the same for every connection to one uvicorn server."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match, Router
from uvicorn.config import Config
from uvicorn.middleware.message_logger import MessageLoggerMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from .environment_server import HTTPEnvServer
from .guard import Guard
from .heartbeat import Heartbeat
from .turn import Turn
from .websocket import environment_socket

__all__ = ["Site", "server_inside"]

# Middleware that lets WebSocket connections pass untouched, and ours, whose part of it the fast path does itself;
# behind any other it is not taken.
_HARMLESS = (BaseHTTPMiddleware, CORSMiddleware, GZipMiddleware, Guard)


class Site:
    """One uvicorn server whose app is ours: where the environment endpoint lies, and what its connections share.

    Attributes:
        server: The environment behind it.
        connections: Those that uvicorn shuts down when it stops.
        max_bytes: Largest message from a client.
        max_unsent: Most bytes that may wait for a client that does not read.
        heartbeat: Watches all connections.
        turn: Collects requests and replies of all connections.
    """

    _known: ClassVar[WeakKeyDictionary[Config, Site | None]] = WeakKeyDictionary()

    def __init__(self, app: Starlette, config: Config, server_state: ServerState):
        self.server: HTTPEnvServer = app.state.openenv
        self.connections: set[Any] = server_state.connections
        self.max_bytes = min(config.ws_max_size, self.server.settings.max_message_bytes)
        self.max_unsent = self.server.settings.max_unsent_bytes
        self.heartbeat = Heartbeat(config.ws_ping_interval)
        self.turn = Turn()
        self.server.manager.afterwards.later = self.turn.afterwards
        self._router = app.router
        self._root_path = config.root_path
        self._served: set[str] = set()

    @classmethod
    def of(cls, config: Config, server_state: ServerState) -> Site | None:
        """The site of a server; None where an ordinary ASGI connection must be used."""
        if config not in cls._known:
            app = _bare_app(config.loaded_app)
            cls._known[config] = None if app is None else cls(app, config, server_state)
        return cls._known[config]

    def serves(self, path: str) -> bool:
        """Whether the first route that matches a path is the environment endpoint, with nothing before it."""
        if path not in self._served and _leads_to_environment(self._router, self._root_path, path):
            self._served.add(path)
        return path in self._served


def server_inside(app: Any) -> HTTPEnvServer | None:
    """The environment server somewhere inside what uvicorn serves, whatever stands before it."""
    while app is not None:
        server = getattr(getattr(app, "state", None), "openenv", None)
        if isinstance(server, HTTPEnvServer):
            return server
        app = getattr(app, "app", None)
    return None


def _bare_app(app: Any) -> Starlette | None:
    """The app of ours inside what uvicorn wrapped around it; None if its owner put something before WebSockets."""
    while isinstance(app, (ProxyHeadersMiddleware, MessageLoggerMiddleware)):
        app = app.app
    if not isinstance(app, Starlette) or not isinstance(getattr(app.state, "openenv", None), HTTPEnvServer):
        return None
    if any(not _harmless(middleware.cls) for middleware in app.user_middleware):
        return None
    return app


def _harmless(middleware: Any) -> bool:
    return isinstance(middleware, type) and issubclass(middleware, _HARMLESS)


def _leads_to_environment(router: Router, root_path: str, path: str) -> bool:
    scope = {
        "type": "websocket",
        "path": root_path + path,
        "root_path": root_path,
        "headers": [],
        "query_string": b"",
    }
    for route in router.routes:
        if route.matches(scope)[0] is not Match.NONE:
            guarded = getattr(route, "dependencies", None) or getattr(router, "dependencies", None)
            return getattr(route, "endpoint", None) is environment_socket and not guarded
    return False
