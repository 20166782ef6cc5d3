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

import httpx
import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import SessionLost, UsageError

from ..chaos.proxy import Proxy
from ..cli.process import serving
from ..server.workers.whereabouts import whereabouts

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

# Those of a dead worker must be told within this time.
TOLD_S = 10.0


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
    async with httpx.AsyncClient(trust_env=False) as http:
        metrics = (await http.get(f"{server.url}/metrics")).text
    blames = {
        line.partition('blame="')[2].partition('"')[0]
        for line in metrics.splitlines()
        if line.startswith("openenv_errors_total")
    }
    assert blames == {"infrastructure"}


async def test_a_fork_is_on_the_worker_of_its_session_however_full_that_is(server):
    async with AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(GenericEnvClient(server.url)) for _ in range(3)]
        places = [(await env.reset()).observation["pid"] for env in envs]
        assert len(set(places)) == 3
        forks = [await stack.enter_async_context(await envs[0].fork()) for _ in range(4)]
        second = await stack.enter_async_context(await forks[0].fork())
        results = await asyncio.gather(*(env.step({}) for env in (*forks, second)))
        assert {result.observation["pid"] for result in results} == {places[0]}
        await forks[1].restore(envs[0])
        with pytest.raises(UsageError, match="worker process"):
            await envs[0].restore(envs[1])
        assert (await envs[0].step({})).observation["pid"] == places[0]
        # Its worker takes them all along.
        os.kill(places[0], signal.SIGKILL)
        lost = await asyncio.gather(*(env.step({}) for env in (envs[0], *forks, second)), return_exceptions=True)
        assert all(isinstance(result, SessionLost) for result in lost)
        assert (await envs[1].step({})).observation["pid"] == places[1]


async def test_a_fork_comes_back_to_its_worker_when_its_connection_is_lost(server):
    with Proxy(urlsplit(server.url).port) as proxy:
        async with GenericEnvClient(proxy.url) as env:
            place = (await env.reset()).observation["pid"]
            async with await env.fork() as other:
                await asyncio.to_thread(proxy.cut_all, 1, 0.01)
                results = await asyncio.gather(env.step({}), other.step({}))
                assert {result.observation["pid"] for result in results} == {place}
