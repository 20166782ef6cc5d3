"""Make the app that serves an environment: assembly, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .. import __version__
from ..settings import ServerSettings
from ..types import ConcurrencyConfig, ServerMode, State
from .server import HTTPEnvServer


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
    env: Callable[[], Any],
    action_cls: Any,
    observation_cls: Any,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: Any = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: Any = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """Makes an app that serves an environment over WebSocket and HTTP, for any ASGI server.

    The app is an ordinary FastAPI app: add routes and middleware to it, mount it, delete its routes. Its
    `state.openenv` is the `HTTPEnvServer` behind it, which documents the arguments and errors that are not here. The
    web UI is at `/web`, and `/` leads there unless something else is served there; not in production mode, and not
    with ENABLE_WEB_INTERFACE=false.

    Args:
        gradio_builder: Makes a page for people, which is mounted at `/web/custom` where Gradio is installed
            (`server.gradio.add_page`); not in production mode, and not with ENABLE_WEB_INTERFACE=false.
        custom_tab_name: Taken and not used: the page stands alone.
        custom_tab_primary: The same.
        show_default_tab: The same.
        title_override: Title of that page.
        mode: `simulation`, or `production`, in which clients use tools only; None: as OPENENV_MODE says.
    """
    if mode is not None:  # before anything is made of it: session processes get it from the factory
        settings = (settings or ServerSettings.read()).model_copy(update={"mode": mode})
    server = HTTPEnvServer(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        reset_observation_cls=reset_observation_cls,
        settings=settings,
    )
    app = FastAPI(
        title=f"{server.env_name} environment",
        version=__version__,
        description="Drive it with `openenv.EnvClient` over the WebSocket at `/ws`, or over these routes.",
    )
    server.register_routes(app, mode=mode)
    if gradio_builder is not None and server.settings.web_interface and not server.authenticator.production:
        from .page.gradio import add_page

        add_page(app, server, gradio_builder, title_override)
    return app


create_web_interface_app = create_app


def create_fastapi_app(
    env: Callable[[], Any],
    action_cls: Any,
    observation_cls: Any,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: Any = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: Any = None,
) -> FastAPI:
    """`create_app` with the argument order that existing code uses under this name."""
    return create_app(
        env,
        action_cls,
        observation_cls,
        env_name,
        max_concurrent_envs,
        concurrency_config,
        state_cls=state_cls,
        mode=mode,
        reset_observation_cls=reset_observation_cls,
    )
