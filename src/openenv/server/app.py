"""Make the app that serves an environment: assembly, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .. import __version__
from ..errors import InvalidArgument
from ..settings import ServerSettings
from ..types import ServerMode
from .auth import is_production
from .declared_types import DeclaredTypes, declared_types
from .mcp_methods import set_mode
from .routes import install_lifespan, register
from .server import EnvironmentServer, check_factory


class HTTPEnvServer(EnvironmentServer):
    """Serves sessions of one environment class, over HTTP too. Arguments and errors as for `EnvironmentServer`."""

    def register_routes(self, app: FastAPI, mode: ServerMode | str | None = None) -> None:
        """Adds this server's routes to an app, which then serves this environment and no other.

        Sessions that are still open when the app stops are closed then.

        Args:
            app: Gets them.
            mode: Instead of the setting `mode`: in production, only keys of scope control reset, step and read state.

        Raises:
            InvalidArgument: There is no such mode.
        """
        if mode is not None:
            self.authenticator.production = is_production(mode)
            set_mode(self.manager.maker.factory, mode)
        app.state.openenv = self
        register(app)
        install_lifespan(app, self)


__all__ = ["create_app"]


@dataclass
class GetEndpointConfig:
    """One GET route.

    Attributes:
        path: Its path.
        handler: Returns the response. It is called on the event loop, so it must not block.
        response_model: What FastAPI validates the response with.
        tag: The group of the route in the OpenAPI document.
        summary: One line about it, for that document.
        description: More about it, for that document.
    """

    path: str
    handler: Callable[[], BaseModel | dict[str, Any]]
    response_model: type[BaseModel] | type[dict[str, Any]]
    tag: str
    summary: str
    description: str


def register_get_endpoints(app: FastAPI, configs: Iterable[GetEndpointConfig]) -> None:
    """Adds a GET route to an app for each entry of a list."""
    for config in configs:
        app.add_api_route(
            config.path,
            _endpoint(config.handler),
            methods=["GET"],
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )


def _endpoint(handler: Callable[[], Any]) -> Callable[[], Any]:
    # FastAPI runs a synchronous function on another thread; handlers here run on the event loop.
    async def endpoint() -> Any:
        return handler()

    return endpoint


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
        action: The type of its actions; None takes that of the class, `Environment[A, O, S]`.
        observation: The type of its observations; None takes that of the class.
        name: Name to list it by; None takes that of the class.
        max_sessions: Most sessions at one time. By default 1 for a class that does not declare
            `SUPPORTS_CONCURRENT_SESSIONS`, and plenty for one that does. OPENENV_MAX_SESSIONS goes before it.
        settings: None reads them from the process's environment.

    Raises:
        TypeError: `environment` is an instance.
        ConcurrencyConfigurationError: More than one session for a class that does not support it.
        UsageError: A type is neither given nor declared. `max_sessions` is below 1. A setting, or the class's
            `execution`, is not valid, or the folder for records cannot be written.
        MissingExtra: `tracing` is set, and the extra `otel` is not installed.
    """
    check_factory(environment)
    if max_sessions is not None and max_sessions < 1:
        raise InvalidArgument(f"max_sessions is {max_sessions}: it must be at least 1")
    types = declared_types(environment)
    if action is not None:
        types = types._replace(action=action)
    if observation is not None:
        types = types._replace(observation=observation)
    return app_of(
        server_of(environment, types.complete(environment, "create_app"), max_sessions, name=name, settings=settings)
    )


def server_of(
    environment: Callable[[], Any],
    types: DeclaredTypes,
    max_sessions: int | None = None,
    *,
    name: str | None = None,
    settings: ServerSettings | None = None,
) -> HTTPEnvServer:
    """A server of an environment whose types are known. Arguments and errors as for `create_app`."""
    return HTTPEnvServer(
        environment,
        types.action,
        types.observation,
        max_sessions,
        env_name=name,
        state_cls=types.state,
        reset_observation_cls=types.reset_observation,
        settings=settings,
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
