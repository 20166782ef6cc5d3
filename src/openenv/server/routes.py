"""The routes of a server as a table, and what an app does with them at its start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from ..messages import HealthResponse, ResetResponse, SchemaResponse, StepResponse
from ..types import EnvironmentMetadata
from . import http, mcp
from .auth import SHORT_KEY
from .error_handlers import install_error_handlers
from .middleware import AuthMiddleware, may_control, redact_logs
from .page import endpoints, files
from .page.endpoints import SOCKET_PATH, episode_socket
from .prometheus import metrics
from .server import EnvironmentServer
from .transports.asgi import environment_socket

ENVIRONMENT_PATH = "/ws"


class RouteSpec(NamedTuple):
    """A line of the table.

    Attributes:
        control: It is hidden in production mode from all but keys of scope control.
    """

    method: str
    path: str
    endpoint: Callable[..., Any]
    response_model: Any
    tag: str
    response_class: type[Response] = JSONResponse
    control: bool = False


ROUTES = (
    RouteSpec("GET", "/health", http.health, HealthResponse, "server"),
    RouteSpec("GET", "/ready", http.ready, None, "server"),
    RouteSpec("GET", "/metadata", http.metadata, EnvironmentMetadata, "server"),
    RouteSpec("GET", "/schema", http.schema, SchemaResponse, "server"),
    RouteSpec("GET", "/metrics", metrics, None, "server", PlainTextResponse),
    RouteSpec("GET", "/list_environments", http.environments, list[str], "server"),
    RouteSpec("GET", "/sessions", http.sessions, None, "sessions", control=True),
    RouteSpec("POST", "/sessions", http.open_, None, "sessions", control=True),
    RouteSpec("DELETE", "/sessions/{session_id}", http.close, None, "sessions", control=True),
    RouteSpec("POST", "/reset", http.reset, ResetResponse, "environment", control=True),
    RouteSpec("POST", "/step", http.step, StepResponse, "environment", control=True),
    RouteSpec("GET", "/state", http.state, None, "environment", control=True),
    RouteSpec("POST", mcp.MCP_PATH, mcp.post, None, "mcp"),
    RouteSpec("GET", mcp.MCP_PATH, mcp.stream, None, "mcp"),
    RouteSpec("DELETE", mcp.MCP_PATH, mcp.delete, None, "mcp"),
    RouteSpec("GET", "/{environment}/splits", http.splits, None, "tasks", control=True),
    RouteSpec("POST", "/{environment}/tasks", http.tasks, None, "tasks", control=True),
    RouteSpec("POST", "/{environment}/num_tasks", http.num_tasks, None, "tasks", control=True),
    RouteSpec("POST", "/{environment}/task", http.task, None, "tasks", control=True),
    RouteSpec("POST", "/{environment}/task_range", http.task_range, None, "tasks", control=True),
)
# Where the web UI is on; never in production mode.
WEB_ROUTES = (
    RouteSpec("GET", "/web/metadata", endpoints.metadata, None, "web"),
    RouteSpec("GET", "/web/panel", endpoints.panel, None, "web", HTMLResponse),
    RouteSpec("POST", "/web/reset", endpoints.reset, None, "web"),
    RouteSpec("POST", "/web/step", endpoints.step, None, "web"),
    RouteSpec("GET", "/web/state", endpoints.state, None, "web"),
)
PAGE_ROUTES: dict[str, Callable[..., Any]] = {
    "/web": files.page,
    "/web/": files.slash,
    "/web/frame": files.frame,
    "/web/assets/{name}": files.asset,
}
# Where a request may name its session.
_NAMES_SESSION = {
    "parameters": [
        {"name": http.HEADER, "in": "header", "required": False, "schema": {"type": "string"}},
        {"name": http.COOKIE, "in": "cookie", "required": False, "schema": {"type": "string"}},
    ]
}
_OF_SESSIONS = ("/reset", "/step", "/state")


class ControlRoute(APIRoute):
    """A route that does not exist for clients that may not use it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        server = getattr(getattr(scope.get("app"), "state", None), "openenv", None)
        if isinstance(server, EnvironmentServer) and not may_control(scope, server):
            return Match.NONE, {}
        return super().matches(scope)


def register(app: FastAPI) -> None:
    """Adds every route, the WebSocket endpoints, the error handlers and the authentication to an app."""
    server: EnvironmentServer = app.state.openenv
    has_page = server.settings.web_interface and not server.authenticator.production
    for route in (*ROUTES, *WEB_ROUTES) if has_page else ROUTES:
        app.router.add_api_route(
            # The name itself: a pattern would take what the app's owner serves under others.
            route.path.replace("{environment}", server.env_name),
            route.endpoint,
            methods=[route.method],
            response_model=route.response_model,
            response_class=route.response_class,
            tags=[route.tag],
            include_in_schema=not (route.control and server.authenticator.production),
            openapi_extra=_NAMES_SESSION if route.path.endswith(_OF_SESSIONS) else None,
            route_class_override=ControlRoute if route.control else None,
        )
    app.router.default = http.TaskRouteFallback(app.router.default, server.env_name)
    app.add_api_websocket_route(ENVIRONMENT_PATH, environment_socket)
    app.add_api_websocket_route(mcp.MCP_PATH, mcp.socket)
    if has_page:
        _add_page(app)
    protect(app, server)


def _add_page(app: FastAPI) -> None:
    for path, endpoint in PAGE_ROUTES.items():
        app.router.add_api_route(
            path, endpoint, methods=["GET", "HEAD"], response_class=HTMLResponse, include_in_schema=False
        )
    app.add_api_websocket_route(SOCKET_PATH, episode_socket)
    app.router.default = files.RootRedirect(app.router.default)


def protect(app: FastAPI, server: EnvironmentServer) -> None:
    """Installs the error handlers of an app, and the authentication before all that it serves."""
    install_error_handlers(app)
    redact_logs()
    # Not `add_middleware`, which an app that has started refuses; ours is the innermost, so that what adds headers to
    # answers, as for CORS, adds them to refusals too.
    app.user_middleware.append(Middleware(AuthMiddleware, server=server, is_for_all=files.is_public))
    if app.middleware_stack is not None:
        app.middleware_stack = app.build_middleware_stack()


logger = logging.getLogger("openenv.server")


def install_lifespan(app: FastAPI, server: EnvironmentServer) -> None:
    """Starts a server before the owner's lifespan of its app, and closes its sessions after that."""
    owners = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        _log_access(server)
        if running is not app and getattr(running.state, "openenv", None) is None:
            # The routes were included into another app, which needs the same middleware and error handlers.
            running.state.openenv = server
            protect(running, server)
        server.manager.warm()
        if server.recorder is not None:
            server.recorder.start()
        if (page := getattr(app.state, "openenv_page", None)) is not None:
            page.home = asyncio.get_running_loop()
        try:
            async with owners(running) as state:
                yield state
        finally:
            await server.aclose()

    app.router.lifespan_context = lifespan


def _log_access(server: EnvironmentServer) -> None:
    keys = server.authenticator.keys
    if server.settings.api_keys is None:
        advice = "set OPENENV_API_KEYS to ask for a key, or to none if that is meant"
        logger.warning("%s is open to everybody who can reach it: %s", server.env_name, advice)
    for number in keys.short:
        logger.warning("key %d of OPENENV_API_KEYS can be guessed: use %d characters or more", number, SHORT_KEY)
