"""What is still there when the process ends goes with it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from typing import TYPE_CHECKING

from ..background import shared_loop

if TYPE_CHECKING:
    from .deployment import Deployment

__all__ = ["add", "before", "farewell", "living"]

# Seconds for the last deployments of a process to be removed, when it ends.
FAREWELL_S = 30.0
_log = logging.getLogger("openenv.providers")

living: set[Deployment] = set()
"""Deployments that may have something at their places."""


def add(deployment: Deployment) -> None:
    """Counts a deployment, until it is taken from `living`."""
    living.add(deployment)


async def _stop(deployments: list[Deployment]) -> None:
    stops = {asyncio.ensure_future(deployment._stop()): deployment for deployment in deployments}
    await asyncio.wait(stops, timeout=FAREWELL_S)
    for stop, deployment in stops.items():
        reason = f"not within {FAREWELL_S:g} s" if not stop.done() else stop.exception()
        if reason is not None:
            _log.error("%s was not removed (%s): `openenv providers gc` finds it", deployment.name, reason)


def farewell() -> None:
    """Stops what this process has, in a bounded time. Called when the process ends."""
    mine = [deployment for deployment in list(living) if deployment._owner == os.getpid()]
    if mine:
        shared_loop().run(_stop(mine))


atexit.register(farewell)


def before() -> None:
    """Has this go before all that was to happen at the process's end until now: before a library leaves its place."""
    atexit.unregister(farewell)
    atexit.register(farewell)
