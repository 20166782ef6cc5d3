"""From an environment class to an app: assembly, no behaviour."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from .. import __version__
from ..settings import ServerSettings
from ..types import ConcurrencyConfig, State
from .environment_server import HTTPEnvServer
from .keys import SHORT_KEY

__all__ = ["create_app", "create_fastapi_app"]

logger = logging.getLogger("openenv.server")


def create_app(
    env: Callable[[], Any],
    action_cls: Any,
    observation_cls: Any,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    *,
    state_cls: Any = State,
    reset_observation_cls: Any = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """Makes an app that serves an environment over WebSocket and HTTP, for any ASGI server.

    The app is an ordinary FastAPI app: add routes and middleware to it, mount it, delete its routes. Its
    `state.openenv` is the `HTTPEnvServer` behind it, which documents the arguments and errors.
    """
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
        lifespan=_lifespan,
    )
    server.register_routes(app)
    return app


def create_fastapi_app(
    env: Callable[[], Any],
    action_cls: Any,
    observation_cls: Any,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: Any = State,
    *,
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
        reset_observation_cls=reset_observation_cls,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server = app.state.openenv
    _say_who_may_come_in(server)
    server.manager.warm()
    yield
    await server.aclose()


def _say_who_may_come_in(server: HTTPEnvServer) -> None:
    keys = server.porter.keys
    if server.settings.api_keys is None:
        advice = "set OPENENV_API_KEYS to ask for a key, or to none if that is meant"
        logger.warning("%s is open to everybody who can reach it: %s", server.env_name, advice)
    for number in keys.short:
        logger.warning("key %d of OPENENV_API_KEYS can be guessed: use %d characters or more", number, SHORT_KEY)
