"""Clients of several servers that do the same, without a balancer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from openenv import _backoff
from openenv.client import GenericEnvClient, VectorEnvClient, session
from openenv.errors import ConnectionFailed, ProviderFailed, SessionLost
from openenv.providers import LocalProvider

from ..asynchronous import until
from ..chaos.proxy import Proxy
from ..client.environments import CounterAction, CounterEnv, app_of
from ..server.wires import served

pytestmark = pytest.mark.real

FAST = "openenv.server.transports.uvicorn:FastPath"
ONE = CounterAction(by=1)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)


@pytest.fixture
def apps() -> list[Any]:
    return [app_of() for _ in range(3)]


@pytest.fixture
def urls(apps: list[Any]) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(served(app, ws=FAST)) for app in apps]


def sessions(apps: list[Any]) -> list[int]:
    return [app.state.openenv.active_sessions for app in apps]


async def test_sessions_are_spread_evenly(apps: list[Any], urls: list[str]) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(12):
            env = await stack.enter_async_context(CounterEnv(urls))
            await env.reset()
        assert sessions(apps) == [4, 4, 4]
        others = [await env.new_session() for _ in range(3)]
        for other in others:
            await other.reset()
        assert sessions(apps) == [5, 5, 5]
    await until(lambda: sessions(apps) == [0, 0, 0])


async def test_whoever_left_makes_room(apps: list[Any], urls: list[str]) -> None:
    envs = [CounterEnv(urls) for _ in range(3)]
    for env in envs:
        await env.reset()
    await envs[1].close()
    await until(lambda: sum(sessions(apps)) == 2)
    async with CounterEnv(urls) as another:
        await another.reset()
        assert sessions(apps) == [1, 1, 1]
        for env in envs:
            await env.close()


async def test_a_vector_uses_all_of_them(apps: list[Any], urls: list[str]) -> None:
    async with VectorEnvClient(CounterEnv, urls, num_envs=9, connections=3) as envs:
        await envs.reset()
        assert sessions(apps) == [3, 3, 3]
        assert [result.reward for result in await envs.step([ONE] * 9)] == [1.0] * 9


async def test_one_that_is_not_there_is_passed_over(apps: list[Any], urls: list[str]) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(6):
            env = await stack.enter_async_context(CounterEnv(["127.0.0.1:1", *urls[:2]]))
            await env.reset()
        assert sessions(apps) == [3, 3, 0]
    with pytest.raises(ConnectionFailed, match="is the server up"):
        await CounterEnv(["127.0.0.1:1", "127.0.0.2:1"]).reset()


async def test_one_whose_place_is_gone_is_passed_over(apps: list[Any], urls: list[str]) -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(ProviderFailed("the job is ERROR").facts()).encode()
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(await asyncio.start_server(tell, "127.0.0.1", 0))
        gone = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for _ in range(4):
            env = await stack.enter_async_context(CounterEnv([gone, *urls[:2]]))
            await env.reset()
        assert sessions(apps) == [2, 2, 0]
        with pytest.raises(ProviderFailed, match="the job is ERROR"):
            await CounterEnv(gone).reset()


async def test_a_session_comes_back_to_its_own_server(apps: list[Any], urls: list[str]) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(urlsplit(f"//{url}").port, 1)) for url in urls]
        async with AsyncExitStack() as clients:
            envs = [await clients.enter_async_context(CounterEnv([p.url for p in proxies])) for _ in range(6)]
            for env in envs:
                await env.reset()
            for number in range(1, 9):
                for proxy in proxies:
                    proxy.doom()
                assert [(await env.step(ONE)).reward for env in envs] == [float(number)] * 6
            assert sum(proxy.accepted for proxy in proxies) > 6
            assert sessions(apps) == [2, 2, 2]


@pytest.mark.slow
async def test_a_server_that_dies_takes_its_sessions_and_no_others() -> None:
    apps = [app_of(resume_window_s=2.0) for _ in range(2)]  # so long, its return is waited for
    with ExitStack() as others, ExitStack() as doomed:
        urls = [others.enter_context(served(apps[0], ws=FAST))]
        proxy = doomed.enter_context(Proxy(urlsplit(f"//{others.enter_context(served(apps[1], ws=FAST))}").port, 1))
        urls.append(proxy.url)
        envs = [CounterEnv(urls) for _ in range(4)]
        for env in envs:
            await env.reset()
        assert sessions(apps) == [2, 2]
        doomed.close()
        lost = 0
        for env in envs:
            try:
                assert (await env.step(ONE)).reward == 1.0
            except SessionLost:
                lost += 1
                await env.reset()  # elsewhere
                assert (await env.step(ONE)).reward == 1.0
        assert lost == 2
        assert sessions(apps[:1]) == [4]
        for env in envs:
            await env.close()


def test_without_a_loop_and_as_many_as_a_provider_has() -> None:
    provider = LocalProvider("echo")
    with GenericEnvClient(["localhost:1", provider.start()]) as env:
        env.reset()
        assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    provider.stop()
