"""What a server does when the app that it serves starts and stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from .keys import SHORT_KEY
from .routes import protect

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["attend"]

logger = logging.getLogger("openenv.server")


def attend(app: FastAPI, server: HTTPEnvServer) -> None:
    """Has a server start before whatever its app's owner does at the start, and close its sessions after all else."""
    owners = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        _say_who_may_come_in(server)
        if running is not app:
            _move_in(running, server)
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


def _move_in(host: FastAPI, server: HTTPEnvServer) -> None:
    """The routes were included into another app: what stands around them is to stand there too."""
    if getattr(host.state, "openenv", None) is None:
        host.state.openenv = server
        protect(host, server)


def _say_who_may_come_in(server: HTTPEnvServer) -> None:
    keys = server.porter.keys
    if server.settings.api_keys is None:
        advice = "set OPENENV_API_KEYS to ask for a key, or to none if that is meant"
        logger.warning("%s is open to everybody who can reach it: %s", server.env_name, advice)
    for number in keys.short:
        logger.warning("key %d of OPENENV_API_KEYS can be guessed: use %d characters or more", number, SHORT_KEY)
