"""Connections that are cut in the middle, with our own server at their end: each step is executed once."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest

from openenv import _backoff
from openenv.client import VectorEnvClient, session, websocket
from openenv.errors import SessionLost, StepTimeout
from openenv.protocol.codecs import SUBPROTOCOLS
from openenv.server.transports.uvicorn import FastPath

from ..asynchronous import until
from ..chaos.proxy import Proxy
from ..client.environments import Bell, Counter, CounterAction, CounterEnv, RingingCounter, ThreadCounter, app_of
from ..server.wires import served

pytestmark = pytest.mark.real

ONE = CounterAction(by=1)
CUTS = 10
SERVERS = {
    "fast": {"loop": "uvloop", "http": "httptools", "ws": FastPath},
    "stock": {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"},
}


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)


@pytest.fixture(params=[(server, subprotocol) for server in SERVERS for subprotocol in SUBPROTOCOLS], ids="-".join)
def behind(request, monkeypatch):
    """Serves an app behind a proxy that cuts."""
    server, subprotocol = request.param
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", (subprotocol,))
    with ExitStack() as stack:

        def serve(app, seed=1):
            address = stack.enter_context(served(app, **SERVERS[server]))
            return stack.enter_context(Proxy(urlsplit(f"//{address}").port, seed))

        yield serve


@pytest.mark.parametrize("factory", [Counter, ThreadCounter])
async def test_a_session_survives_cuts_at_any_byte(behind, factory):
    app = app_of(factory)
    proxy = behind(app)
    rewards = []
    async with CounterEnv(proxy.url) as env:
        proxy.doom()
        await env.reset()
        while proxy.accepted < CUTS + 1:
            proxy.doom()
            rewards += [(await env.step(ONE)).reward for _ in range(3)]
        assert rewards == [float(number) for number in range(1, len(rewards) + 1)]
        assert (await env.state()).step_count == len(rewards)
        assert app.state.openenv.active_sessions == 1
    await until(lambda: app.state.openenv.active_sessions == 0)


@pytest.mark.parametrize("connections", [1, 3])
async def test_the_sessions_of_a_vector_survive_cuts_at_any_byte(behind, connections):
    app = app_of(ThreadCounter, sessions=12)
    proxy = behind(app)
    count = 0
    async with VectorEnvClient(CounterEnv, proxy.url, num_envs=12, connections=connections) as envs:
        proxy.doom(2000)
        assert [result.error for result in await envs.reset()] == [None] * 12
        while proxy.accepted < CUTS * connections:
            proxy.doom(2000)
            for _ in range(3):
                count += 1
                results = await envs.step([ONE] * 12)
                assert [(result.error, result.reward) for result in results] == [(None, float(count))] * 12
        assert app.state.openenv.active_sessions == 12
    await until(lambda: app.state.openenv.active_sessions == 0)


async def test_an_idle_session_survives_a_cut(behind):
    app = app_of()
    proxy = behind(app)
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        before = proxy.accepted
        await asyncio.to_thread(proxy.cut_all, 1, 0.01)
        await until(lambda: proxy.accepted > before and env._held._returning is None)
        assert (await env.step(ONE)).reward == 1.0


async def test_a_server_that_cannot_be_reached_for_a_while(behind):
    proxy = behind(app_of())
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        proxy.refuse()
        await asyncio.to_thread(proxy.cut_all, 1, 0.01)
        step = asyncio.create_task(env.step(ONE))
        before = proxy.accepted
        await until(lambda: proxy.accepted > before + 2)
        proxy.refuse(False)
        assert (await step).reward == 1.0


async def test_a_server_that_seems_to_be_there(behind):
    """Half-open: nothing comes through, and nobody is told. The server may have executed the step."""
    app = app_of(ThreadCounter, sessions=1)
    proxy = behind(app)
    pings = {"websocket_ping_interval_s": 0.1, "websocket_ping_timeout_s": 0.1, "connect_timeout_s": 10.0}
    async with CounterEnv(proxy.url, **pings) as env:
        await env.reset()
        for count in (1.0, 2.0):
            before = proxy.accepted
            proxy.freeze()
            step = asyncio.create_task(env.step(ONE))
            await until(lambda before=before: proxy.accepted > before)
            assert not step.done()
            await asyncio.to_thread(proxy.thaw)
            assert (await step).reward == count
        assert app.state.openenv.active_sessions == 1


async def test_the_window_of_the_server_is_over(behind):
    app = app_of(resume_window_s=0.2)
    proxy = behind(app)
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        proxy.refuse()
        await asyncio.to_thread(proxy.cut_all, 1, 0.01)
        with pytest.raises(SessionLost, match="resume_window_s"):
            await env.step(ONE)
        await until(lambda: app.state.openenv.active_sessions == 0)
        proxy.refuse(False)
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0


async def test_without_a_window_a_cut_is_the_end(behind):
    proxy = behind(app_of(resume_window_s=0))
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        await asyncio.to_thread(proxy.cut_all, 1, 0.01)
        await until(lambda: env._held.error)
        with pytest.raises(SessionLost):
            await env.step(ONE)
        assert proxy.accepted == 1


async def test_replies_that_are_later_than_the_client_waits(behind):
    """None of them reaches another call, and the episode goes on."""
    proxy = behind(app_of())
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        env._message_timeout_s = 0.1
        proxy.freeze()
        with pytest.raises(StepTimeout):
            await env.step(CounterAction(by=10))
        await asyncio.to_thread(proxy.thaw)
        env._message_timeout_s = 30.0
        result = await env.step(CounterAction(by=100))
        assert (result.reward, result.observation.total) == (2.0, 110)
        assert (await env.state()).step_count == 2


async def test_a_step_that_does_not_end_is_stopped_by_the_server(behind, monkeypatch):
    monkeypatch.setattr(session, "LATE_S", 30.0)  # the client leaves it to the server
    bell = Bell()
    proxy = behind(app_of(partial(RingingCounter, bell)))
    async with CounterEnv(proxy.url) as env:
        await env.reset()
        env._message_timeout_s = 0.1
        with pytest.raises(StepTimeout, match="deadline_s"):
            await env.step(ONE)
        assert bell.waiting[0].cancelled()
        env._message_timeout_s = 30.0
        assert (await env.state()).step_count == 0
