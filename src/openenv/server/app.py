"""Make the app that serves an environment: its table of routes, and its lifespan."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from .. import __version__
from ..environment import Environment
from ..errors import InvalidArgument, UsageError
from ..messages import HealthResponse, ResetResponse, SchemaResponse, StepResponse
from ..settings import ServerSettings
from ..types import Action, EnvironmentMetadata, ServerMode
from . import http, mcp
from .auth import SHORT_KEY, is_production
from .declared_types import DeclaredTypes, declared_types
from .harness import HARNESS_PATH, harness_socket, may_be_harness
from .mcp_methods import set_mode
from .middleware import AuthMiddleware, install_error_handlers, may_control, redact_logs
from .page import endpoints, files
from .page.endpoints import SOCKET_PATH, episode_socket
from .prometheus import metrics
from .server import EnvironmentServer, check_factory
from .transports.asgi import environment_socket

__all__ = ["create_app"]

ENVIRONMENT_PATH = "/ws"


class RouteSpec(NamedTuple):
    """One route of the table.

    Attributes:
        control: Whether production mode hides it from every key that lacks the scope control.
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
# Routes of the web UI; never in production mode.
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
# Routes with a session named in the request.
_NAMES_SESSION = {
    "parameters": [
        {"name": name, "in": place, "required": False, "schema": {"type": "string"}}
        for name, place in ((http.HEADER, "header"), (http.COOKIE, "cookie"))
    ]
}
_OF_SESSIONS = ("/reset", "/step", "/state")


class ControlRoute(APIRoute):
    """A route that answers 404 to clients that may not use it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        server = getattr(getattr(scope.get("app"), "state", None), "openenv", None)
        if isinstance(server, EnvironmentServer) and not may_control(scope, server):
            return Match.NONE, {}
        return super().matches(scope)


def protect(app: FastAPI, server: EnvironmentServer) -> None:
    """Installs the error handlers of an app, and authentication in front of every route."""
    install_error_handlers(app)
    redact_logs()
    # Not `add_middleware`, which fails once the app has started. Ours is the innermost, so that middleware that adds
    # headers to responses, such as CORS, adds them to refusals too.
    app.user_middleware.append(Middleware(AuthMiddleware, server=server, is_for_all=files.is_public))
    if app.middleware_stack is not None:
        app.middleware_stack = app.build_middleware_stack()


logger = logging.getLogger("openenv.server")


def install_lifespan(app: FastAPI, server: EnvironmentServer) -> None:
    """Starts a server before the owner's lifespan of its app, and closes its sessions after that."""
    owners = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        if server.warns_about_keys:
            if server.settings.api_keys is None:
                advice = "set OPENENV_API_KEYS to require a key, or to none to accept this"
                logger.warning(
                    "%s accepts every client that can reach it, without a key: %s", server.env_name, advice
                )
            for number in server.authenticator.keys.short:
                weak = "key %d of OPENENV_API_KEYS is short enough to be guessed: use at least %d characters"
                logger.warning(weak, number, SHORT_KEY)
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


class HTTPEnvServer(EnvironmentServer):
    """Serves sessions of one environment class, over HTTP too. Arguments and errors as for `EnvironmentServer`."""

    def register_routes(self, app: FastAPI, mode: ServerMode | str | None = None) -> None:
        """Adds this server's routes to an app, which then serves this environment and no other.

        Sessions that are still open when the app stops are closed then.

        Args:
            app: The app that gets the routes.
            mode: Replaces the setting `mode`. In production, only keys of scope control reset, step and read state.

        Raises:
            InvalidArgument: The mode is unknown.
        """
        if mode is not None:
            self.authenticator.production = is_production(mode)
            set_mode(self.manager.maker.factory, mode)
        app.state.openenv = self
        has_page = self.settings.web_interface and not self.authenticator.production
        for route in (*ROUTES, *WEB_ROUTES) if has_page else ROUTES:
            app.router.add_api_route(
                # The literal name: a pattern would shadow routes that the app's owner adds under other names.
                route.path.replace("{environment}", self.env_name),
                route.endpoint,
                methods=[route.method],
                response_model=route.response_model,
                response_class=route.response_class,
                tags=[route.tag],
                include_in_schema=not (route.control and self.authenticator.production),
                openapi_extra=_NAMES_SESSION if route.path.endswith(_OF_SESSIONS) else None,
                route_class_override=ControlRoute if route.control else None,
            )
        app.router.default = http.task_route_fallback(app.router.default, self.env_name)
        app.add_api_websocket_route(ENVIRONMENT_PATH, environment_socket)
        app.add_api_websocket_route(mcp.MCP_PATH, mcp.socket)
        if self.authenticator.production and may_be_harness(self.env_factory):
            app.add_api_websocket_route(HARNESS_PATH, harness_socket)
        if has_page:
            for path, endpoint in PAGE_ROUTES.items():
                app.router.add_api_route(
                    path, endpoint, methods=["GET", "HEAD"], response_class=HTMLResponse, include_in_schema=False
                )
            app.add_api_websocket_route(SOCKET_PATH, episode_socket)
            app.router.default = files.RootRedirect(app.router.default)
        protect(app, self)
        install_lifespan(app, self)


@dataclass
class GetEndpointConfig:
    """One GET route.

    Attributes:
        path: Its path.
        handler: Returns the response. It is called on the event loop, so it must not block.
        response_model: The type that FastAPI validates the response with.
        tag: The group of the route in the OpenAPI document.
        summary: One line about it, for that document.
        description: A longer text about it, for that document.
    """

    path: str
    handler: Callable[[], BaseModel | dict[str, Any]]
    response_model: type[BaseModel] | type[dict[str, Any]]
    tag: str
    summary: str
    description: str

    async def endpoint(self) -> Any:
        """Answers the request on the event loop. FastAPI would run a synchronous handler on another thread."""
        return self.handler()


def register_get_endpoints(app: FastAPI, configs: Iterable[GetEndpointConfig]) -> None:
    """Adds a GET route to an app for each entry of a list."""
    for config in configs:
        app.add_api_route(
            config.path,
            config.endpoint,
            methods=["GET"],
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )


def create_app(
    environment: Callable[[], Any],
    *,
    action: Any = None,
    observation: Any = None,
    name: str | None = None,
    max_sessions: int | None = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """Makes an app that serves an environment over WebSocket and HTTP, for any ASGI server::

        app = create_app(GuessEnvironment)

    The app is an ordinary FastAPI app: add routes and middleware to it, mount it, delete its routes. Its
    `state.openenv` is the `HTTPEnvServer` behind it. The web UI is at `/web`, and `/` leads there unless something
    else is served there; not in production mode, and not with ENABLE_WEB_INTERFACE=false.

    Args:
        environment: An `Environment` class, or a function that makes one; each session has an instance.
        action: The type of its actions; by default the one that the class declares, `Environment[A, O, S]`.
        observation: The type of its observations; by default the one that the class declares.
        name: The environment's name for clients; by default the name of the class.
        max_sessions: Most concurrent sessions. By default 1 for a class that does not declare
            `SUPPORTS_CONCURRENT_SESSIONS`, and 20,000 for one that does. OPENENV_MAX_SESSIONS overrides it.
        settings: The settings; by default read from environment variables.

    Raises:
        TypeError: `environment` is an instance.
        ConcurrencyConfigurationError: More than one session for a class that does not support it.
        UsageError: A type is neither given nor declared. `max_sessions` is below 1. A setting or the class's
            `execution` is invalid. The folder for records is not writable.
        MissingExtra: `tracing` is set, and the extra `otel` is not installed.
    """
    check_factory(environment)
    if max_sessions is not None and max_sessions < 1:
        raise InvalidArgument(f"max_sessions is {max_sessions}: it must be at least 1")
    types = declared_types(environment)
    if action is not None:
        types = types._replace(action_cls=action)
    if observation is not None:
        types = types._replace(observation_cls=observation)
    known = types.complete(environment, "create_app")
    return app_of(
        HTTPEnvServer(environment, **known, max_concurrent_envs=max_sessions, env_name=name, settings=settings)
    )


def app_of(server: HTTPEnvServer) -> FastAPI:
    """The app of a server, with its routes."""
    app = FastAPI(
        title=f"{server.env_name} environment",
        version=__version__,
        description="Drive it with `openenv.EnvClient` over the WebSocket at `/ws`, or over these routes.",
    )
    server.register_routes(app)
    return app


def app_in_process(env: Any, client_types: tuple[Any, ...] = ()) -> FastAPI:
    """An app for an environment that its client steps in this process.

    Args:
        env: An `Environment` class, `functools.partial` of one, or a function that makes one.
        client_types: Action, observation and state of the client, used if `env` does not declare its types.

    Raises:
        UsageError: `env` is an instance, or is not callable, or its types are not declared.
    """
    if isinstance(env, Environment):
        name = type(env).__name__
        raise UsageError(f"env is an instance of {name}: pass the class, env={name}, and each session has its own")
    if not callable(env):
        raise UsageError(f"env is {env!r}: pass an Environment class, or a function that makes one")
    types = declared_types(env)
    if types.action_cls is None and client_types and inspect.isclass(client_types[0]):
        types = DeclaredTypes(*client_types) if issubclass(client_types[0], Action) else types
    return app_of(HTTPEnvServer(env, **types.complete(env, "env")))
