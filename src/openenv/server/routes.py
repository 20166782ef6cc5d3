"""The routes of an environment server, as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from ..types import EnvironmentMetadata, HealthResponse, ResetResponse, SchemaResponse, StepResponse
from . import http, http_sessions, mcp, tasks, web, web_page
from .discretion import keep_keys_out_of_logs
from .environment_server import HTTPEnvServer
from .exposition import metrics
from .faults import answer_faults
from .guard import Guard, may_control
from .web_socket import SOCKET_PATH, socket
from .websocket import environment_socket

__all__ = ["ENVIRONMENT_PATH", "ROUTES", "protect", "register"]

ENVIRONMENT_PATH = "/ws"


class Route(NamedTuple):
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
    Route("GET", "/health", http.health, HealthResponse, "server"),
    Route("GET", "/ready", http.ready, None, "server"),
    Route("GET", "/metadata", http.metadata, EnvironmentMetadata, "server"),
    Route("GET", "/schema", http.schema, SchemaResponse, "server"),
    Route("GET", "/metrics", metrics, None, "server", PlainTextResponse),
    Route("GET", "/list_environments", tasks.environments, list[str], "server"),
    Route("GET", "/sessions", http.sessions, None, "sessions", control=True),
    Route("POST", "/sessions", http_sessions.open_, None, "sessions", control=True),
    Route("DELETE", "/sessions/{session_id}", http_sessions.close, None, "sessions", control=True),
    Route("POST", "/reset", http.reset, ResetResponse, "environment", control=True),
    Route("POST", "/step", http.step, StepResponse, "environment", control=True),
    Route("GET", "/state", http.state, None, "environment", control=True),
    Route("POST", mcp.MCP_PATH, mcp.post, None, "mcp"),
    Route("GET", mcp.MCP_PATH, mcp.stream, None, "mcp"),
    Route("DELETE", mcp.MCP_PATH, mcp.delete, None, "mcp"),
    Route("GET", "/{environment}/splits", tasks.splits, None, "tasks", control=True),
    Route("POST", "/{environment}/tasks", tasks.tasks, None, "tasks", control=True),
    Route("POST", "/{environment}/num_tasks", tasks.num_tasks, None, "tasks", control=True),
    Route("POST", "/{environment}/task", tasks.task, None, "tasks", control=True),
    Route("POST", "/{environment}/task_range", tasks.task_range, None, "tasks", control=True),
)
# Where the web UI is on; never in production mode.
WEB_ROUTES = (
    Route("GET", "/web/metadata", web.metadata, None, "web"),
    Route("GET", "/web/panel", web.panel, None, "web", HTMLResponse),
    Route("POST", "/web/reset", web.reset, None, "web"),
    Route("POST", "/web/step", web.step, None, "web"),
    Route("GET", "/web/state", web.state, None, "web"),
)
PAGE_ROUTES: dict[str, Callable[..., Any]] = {
    "/web": web_page.page,
    "/web/": web_page.slash,
    "/web/frame": web_page.frame,
    "/web/assets/{name}": web_page.asset,
}
# Where a request may name its session; `http_sessions` reads it.
_NAMES_SESSION = {
    "parameters": [
        {"name": http_sessions.HEADER, "in": "header", "required": False, "schema": {"type": "string"}},
        {"name": http_sessions.COOKIE, "in": "cookie", "required": False, "schema": {"type": "string"}},
    ]
}


_OF_SESSIONS = ("/reset", "/step", "/state")


class ControlRoute(APIRoute):
    """One that is not there for whoever may not use it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        server = getattr(getattr(scope.get("app"), "state", None), "openenv", None)
        if isinstance(server, HTTPEnvServer) and not may_control(scope, server):
            return Match.NONE, {}
        return super().matches(scope)


def register(app: FastAPI) -> None:
    """Adds every route, the WebSocket endpoint, the translation of errors, and the guard before it all to an app."""
    server: HTTPEnvServer = app.state.openenv
    has_page = server.settings.web_interface and not server.porter.production
    for route in (*ROUTES, *WEB_ROUTES) if has_page else ROUTES:
        app.router.add_api_route(
            # The name itself: a pattern would take what the app's owner serves under others.
            route.path.replace("{environment}", server.env_name),
            route.endpoint,
            methods=[route.method],
            response_model=route.response_model,
            response_class=route.response_class,
            tags=[route.tag],
            include_in_schema=not (route.control and server.porter.production),
            openapi_extra=_NAMES_SESSION if route.path.endswith(_OF_SESSIONS) else None,
            route_class_override=ControlRoute if route.control else None,
        )
    app.router.default = tasks.Unserved(app.router.default, server.env_name)
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
    app.add_api_websocket_route(SOCKET_PATH, socket)
    app.router.default = web_page.FrontDoor(app.router.default)


def protect(app: FastAPI, server: HTTPEnvServer) -> None:
    """Has an app answer errors as errors, and puts the guard before all that it serves."""
    answer_faults(app)
    keep_keys_out_of_logs()
    # Not `add_middleware`, which an app that has started refuses; ours is the innermost, so that what adds headers to
    # answers, as for CORS, adds them to refusals too.
    app.user_middleware.append(Middleware(Guard, server=server, is_for_all=web_page.is_for_all))
    if app.middleware_stack is not None:
        app.middleware_stack = app.build_middleware_stack()
