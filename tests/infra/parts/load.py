"""What a place and the gateway before it promise together: even load, and faults that stay where they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import SessionLost
from openenv.providers import Deployment, Gateway

from ...chaos.proxy import Proxy
from .crowd import Crowd, spread

__all__ = ["SOME", "SOON_S", "LoadChecks", "tell", "until"]

SESSIONS = 4096
# For what is not about how many there are.
SOME = 512
CLIENTS = 48
SOON_S = 5.0
LIMIT_S = 60.0


class LoadChecks:
    """Tests of servers of the benchmark environment, each on a machine with a name of its own, behind the gateway.

    A subclass has a fixture `behind`, which gives a deployment and its gateway, and says how a server is killed. Its
    servers keep lost sessions for 3 seconds (OPENENV_RESUME_WINDOW_S).

    Attributes:
        replicas: How many servers there are.
    """

    replicas: ClassVar[int]

    async def kill(self, deployment: Deployment, host: str) -> None:
        """Kills the server on the machine with that name, from one moment to the other."""
        raise NotImplementedError

    async def heal(self, deployment: Deployment) -> None:
        """Has the place start a server in place of one that was killed, where it does not do so by itself."""

    def conduct(self, behind: tuple[Deployment, Gateway], test: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Runs a test, and waits until all servers are there again."""
        deployment, gateway = behind

        async def conducted() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(deployment, gateway)
                await self.heal(deployment)
                await until(lambda: self._whole(deployment, gateway), LIMIT_S)

        asyncio.run(conducted())

    def test_thousands_of_sessions_are_spread_evenly(
        self, behind: tuple[Deployment, Gateway], capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def test(deployment: Deployment, gateway: Gateway) -> None:
            for name, urls in (("without", deployment.urls), ("with", [gateway.url])):
                async with Crowd(urls, SESSIONS, deployment.api_key) as crowd:
                    assert await crowd.step() == []
                    assert crowd.failures == {}
                    assert len(crowd.hosts) == self.replicas
                    assert spread(crowd.hosts) <= 0.1, crowd.hosts
                times = f"connect P50 {crowd.connect_s(0.5):.2f} s, P99 {crowd.connect_s(0.99):.2f} s"
                tell(capsys, f"{SESSIONS} sessions {name} Envoy: {times}, {sorted(crowd.hosts.values())}")

        self.conduct(behind, test)

    def test_a_server_that_is_killed_takes_its_own_sessions_along_and_no_others(
        self, behind: tuple[Deployment, Gateway], capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def test(deployment: Deployment, gateway: Gateway) -> None:
            async with Crowd([gateway.url], SESSIONS, deployment.api_key) as crowd, AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(_client(gateway.url, deployment)) for _ in range(CLIENTS)]
                hosts = [(await client.reset()).observation["host_url"] for client in clients]
                victim = hosts[0]
                await self.kill(deployment, victim)
                killed = time.monotonic()

                async def elsewhere() -> bool:
                    async with Crowd([gateway.url], 32, deployment.api_key) as late:
                        others = len(late.hosts) >= self.replicas - 1
                        return not late.failures and victim not in late.hosts and others

                await until(elsewhere, SOON_S)
                tell(
                    capsys, f"new sessions land elsewhere {time.monotonic() - killed:.2f} s after a server was killed"
                )
                steps = (client.step({"wait_seconds": 0.0}, timeout_s=30.0) for client in clients)
                for host, outcome in zip(hosts, await asyncio.gather(*steps, return_exceptions=True), strict=True):
                    if host == victim:
                        assert isinstance(outcome, SessionLost), outcome
                    else:
                        assert not isinstance(outcome, BaseException), outcome
                        assert outcome.observation["host_url"] == host
                failed = await crowd.step()
                assert {seat.host for seat in failed} == {victim}
                assert len(failed) == crowd.hosts[victim]

        self.conduct(behind, test)

    def test_a_server_that_is_added_takes_load(
        self, behind: tuple[Deployment, Gateway], capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def test(deployment: Deployment, gateway: Gateway) -> None:
            async with Crowd([gateway.url], SOME, deployment.api_key) as crowd:
                await deployment.scale(self.replicas + 1)
                await deployment.ready()

                async def reached() -> bool:
                    async with Crowd([gateway.url], 8 * self.replicas, deployment.api_key) as late:
                        assert late.failures == {}
                        return bool(set(late.hosts) - set(crowd.hosts))

                loaded = await until(reached, SOON_S)
                tell(capsys, f"a server that was added takes load {loaded:.2f} s after it was ready")
                assert await crowd.step() == []  # and nobody else has noticed
            await deployment.scale(self.replicas)

        self.conduct(behind, test)

    def test_a_session_whose_connection_was_cut_goes_on_behind_the_gateway(
        self, behind: tuple[Deployment, Gateway]
    ) -> None:
        async def test(deployment: Deployment, gateway: Gateway) -> None:
            with Proxy(urlsplit(gateway.url).port or 0, seed=5) as proxy:
                async with AsyncExitStack() as stack:
                    clients = [
                        await stack.enter_async_context(_client(proxy.url, deployment)) for _ in range(CLIENTS)
                    ]
                    first = [(await client.reset()).observation for client in clients]
                    assert len({before["host_url"] for before in first}) == self.replicas
                    for number in range(1, 4):
                        steps = asyncio.gather(*(client.step({"wait_seconds": 0.2}) for client in clients))
                        await asyncio.sleep(0.1)  # into the middle of the steps
                        await asyncio.to_thread(proxy.cut_all)
                        for before, result in zip(first, await steps, strict=True):
                            assert result.observation["step_count"] == number
                            assert result.observation["session_hash"] == before["session_hash"]
                            assert result.observation["host_url"] == before["host_url"]

        self.conduct(behind, test)

    async def _whole(self, deployment: Deployment, gateway: Gateway) -> bool:
        """Whether all servers run, and the gateway has them."""
        servers = await deployment.refresh()
        known = {backend.name for backend in gateway.topology.backends}
        return known == {server.name for server in servers if server.gone is None} and len(known) == self.replicas


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float) -> float:
    """Waits for something, and returns how long it took."""
    began = time.monotonic()
    while not await holds():
        assert time.monotonic() < began + limit_s, f"not within {limit_s} s"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def _client(url: str, deployment: Deployment) -> GenericEnvClient:
    return GenericEnvClient(url, api_key=deployment.api_key, connect_timeout_s=10.0)


def tell(capsys: pytest.CaptureFixture[str], what: str) -> None:
    """Tells the reader of a test run what was measured."""
    with capsys.disabled():
        print(f"\n{what}", end="")  # noqa: T201
