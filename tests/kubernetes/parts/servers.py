"""What the tests start on a cluster, and what they wait for."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady
from openenv.providers import Deployment, LaunchSpec

from .images import mounted

__all__ = ["READY_S", "at_length", "fails", "gone", "plays", "serving"]

READY_S = 180.0
"""Seconds for a server to be ready on a machine that does other work besides."""
TEST_S = 300.0
PAUSE_S = 0.1


def serving(behaviour: str = "serve", **changes: Any) -> LaunchSpec:
    """A server that behaves in one of the ways of `openenv.testing.misbehaving`."""
    spec = LaunchSpec(command=[sys.executable, "-m", "openenv.testing.misbehaving", behaviour], **mounted())
    options = {**spec.options, **changes.pop("options", {})}
    env_vars = {**spec.env_vars, **changes.pop("env_vars", {})}
    return spec.changed(options=options, env_vars=env_vars, **changes)


def at_length(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Gives a coroutine test minutes: a real cluster takes its time."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TEST_S):
                await test(**fixtures)

        asyncio.run(bounded())

    run.__signature__ = inspect.signature(test)
    del run.__wrapped__
    return run


async def plays(deployment: Deployment, number: int = 0) -> None:
    """Plays two steps on a server of a deployment."""
    url = deployment.servers[number].url
    assert url is not None
    async with GenericEnvClient(url, api_key=deployment.api_key) as env:
        await env.reset()
        for message in ("one", "two"):
            assert (await env.step({"message": message})).observation["message"] == message


async def fails(deployment: Deployment, limit_s: float) -> str:
    """What `ready` says of a server that will never be one, long before its time is over."""
    began = time.monotonic()
    with pytest.raises(LaunchFailed) as caught:
        await deployment.ready(10 * limit_s)
    assert not isinstance(caught.value, NotReady)
    assert time.monotonic() - began < limit_s
    return caught.value.message


async def gone(deployment: Deployment, limit_s: float, number: int = 0) -> str:
    """Why a server is gone, as soon as the provider says so."""
    server = deployment.servers[number]
    async with asyncio.timeout(limit_s):
        while server.gone is None:
            await asyncio.sleep(PAUSE_S)
            await deployment.refresh()
    return server.gone
