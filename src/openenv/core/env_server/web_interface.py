"""`create_app` with the arguments of existing code, and pages about environments under their older name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from ...server.app import HTTPEnvServer, app_of
from ...server.page.gradio import add_page
from ...settings import ServerSettings
from ...types import ConcurrencyConfig, ServerMode, State
from .._homes import *

__all__ = [
    "Action",
    "ActionLog",
    "Environment",
    "EnvironmentMetadata",
    "EpisodeState",
    "Observation",
    "State",
    "WebInterfaceManager",
    "build_gradio_app",
    "create_web_interface_app",
    "deserialize_action_with_preprocessing",
    "get_gradio_display_title",
    "get_quick_start_markdown",
    "load_environment_metadata",
    "serialize_observation",
]

__getattr__, __dir__ = take(__name__, [*__all__, "OPENENV_GRADIO_CSS", "OPENENV_GRADIO_THEME"])


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
    """Makes the app that `openenv.create_app` makes. `HTTPEnvServer` documents the arguments that are not here.

    Args:
        gradio_builder: Makes a page for people, which is mounted at `/web/custom` where Gradio is installed
            (`server.page.gradio.add_page`); not in production mode, and not with ENABLE_WEB_INTERFACE=false.
        custom_tab_name: Accepted and ignored: the page has no tabs.
        custom_tab_primary: Accepted and ignored.
        show_default_tab: Accepted and ignored.
        title_override: Title of that page.
        mode: `simulation`, or `production`, in which clients only use tools; by default OPENENV_MODE.
    """
    if mode is not None:  # before the factory is used: session processes get the mode from it
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
    app = app_of(server)
    if gradio_builder is not None and server.settings.web_interface and not server.authenticator.production:
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
    """`create_app` with the order of arguments that existing code uses under this name."""
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
