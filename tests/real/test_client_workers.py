"""The client and a server of several workers: where sessions come back, and what a dead worker takes along."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import SessionLost

from ..chaos.proxy import Proxy
from ..cli.process import serving
from ..supervisor.whereabouts import whereabouts

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

# Those of a dead worker must be told within this time.
TOLD_S = 1.0


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(whereabouts(tmp_path), "--workers", "3") as server:
        yield server


async def test_a_session_comes_back_to_its_worker(server):
    with Proxy(urlsplit(server.url).port) as proxy:
        async with AsyncExitStack() as stack:
            envs = [await stack.enter_async_context(GenericEnvClient(proxy.url)) for _ in range(6)]
            places = [(await env.reset()).observation["pid"] for env in envs]
            assert set(Counter(places).values()) == {2}
            for _ in range(3):
                await asyncio.to_thread(proxy.cut_all, 1, 0.01)
                results = await asyncio.gather(*(env.step({}) for env in envs))
                assert [result.observation["pid"] for result in results] == places
            assert proxy.accepted >= 4 * 6


async def test_a_dead_worker_takes_only_its_sessions_along_and_says_so_at_once(server):
    async with (
        AsyncExitStack() as stack,
        VectorEnvClient(GenericEnvClient, server.url, num_envs=6, connections=3) as vector,
    ):
        envs = [await stack.enter_async_context(GenericEnvClient(server.url)) for _ in range(6)]
        places = [(await env.reset()).observation["pid"] for env in envs]
        seats = [result.observation["pid"] for result in await vector.reset()]
        victim = places[0]
        assert victim in seats
        before = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        results = await asyncio.gather(*(env.step({}) for env in envs), return_exceptions=True)
        told = await vector.step([{}] * 6)
        assert time.monotonic() - before < TOLD_S
        assert [isinstance(result, SessionLost) for result in results] == [place == victim for place in places]
        assert [isinstance(result.error, SessionLost) for result in told] == [seat == victim for seat in seats]
        assert (await envs[0].reset()).observation["pid"] != victim
