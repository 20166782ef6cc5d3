"""The routes of an environment server, as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..errors import OpenEnvError
from ..types import EnvironmentMetadata, HealthResponse, ResetResponse, SchemaResponse, StepResponse
from . import http
from .discretion import keep_keys_out_of_logs
from .exposition import metrics
from .guard import Guard
from .websocket import environment_socket

__all__ = ["ENVIRONMENT_PATH", "ROUTES", "register"]

ENVIRONMENT_PATH = "/ws"


class Route(NamedTuple):
    method: str
    path: str
    endpoint: Callable[..., Any]
    response_model: Any
    tag: str
    response_class: type[Response] = JSONResponse


ROUTES = (
    Route("GET", "/health", http.health, HealthResponse, "server"),
    Route("GET", "/metadata", http.metadata, EnvironmentMetadata, "server"),
    Route("GET", "/schema", http.schema, SchemaResponse, "server"),
    Route("GET", "/metrics", metrics, None, "server", PlainTextResponse),
    Route("GET", "/sessions", http.sessions, None, "server"),
    Route("POST", "/reset", http.reset, ResetResponse, "environment"),
    Route("POST", "/step", http.step, StepResponse, "environment"),
    Route("GET", "/state", http.state, None, "environment"),
)


def register(app: FastAPI) -> None:
    """Adds every route, the WebSocket endpoint, the translation of errors, and the guard before it all to an app."""
    for route in ROUTES:
        app.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            response_model=route.response_model,
            response_class=route.response_class,
            tags=[route.tag],
        )
    app.add_api_websocket_route(ENVIRONMENT_PATH, environment_socket)
    app.add_exception_handler(OpenEnvError, http.on_error)
    keep_keys_out_of_logs()
    # Not `add_middleware`, which an app that has started refuses; ours is the innermost, so that what adds headers to
    # answers, as for CORS, adds them to refusals too.
    app.user_middleware.append(Middleware(Guard, server=app.state.openenv))
    if app.middleware_stack is not None:
        app.middleware_stack = app.build_middleware_stack()
