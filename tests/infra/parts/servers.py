"""Real servers for gateways: `openenv serve` as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openenv.providers import LaunchSpec, LocalProvider
from openenv.providers.deployment import Deployment, Server

from .placed import TARGET

__all__ = ["ROOT", "deployed", "end", "kill", "pid_of"]

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def deployed(replicas: int, key: str = "", **settings: Any) -> AsyncIterator[Deployment]:
    """Servers of the placed counter, ready; without a key unless one is given."""
    spec = LaunchSpec(target=TARGET, replicas=replicas, api_key=key, options=settings)
    async with await LocalProvider(folder=ROOT).launch(spec) as servers:
        await servers.ready(60.0)
        yield servers


def pid_of(server: Server) -> int:
    """The process of a server with one worker."""
    pid: int = server.handle.process.pid
    return pid


async def kill(server: Server) -> None:
    """Ends a server as the kernel does that is out of memory."""
    os.kill(pid_of(server), signal.SIGKILL)
    await asyncio.to_thread(server.handle.process.wait)


def end(server: Server) -> None:
    """Tells a server to end when its sessions have."""
    os.kill(pid_of(server), signal.SIGTERM)
