"""What the swarm and the gateway promise together: even load, and faults that stay where they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import SessionLost
from openenv.launch import Gateway
from openenv.providers import Deployment, DockerSwarmProvider, LaunchSpec
from openenv.providers.owner import DEPLOYMENT

from ..chaos.proxy import Proxy
from .parts.crowd import Crowd, spread
from .parts.image import QUICK
from .parts.swarm import Node, everywhere, swarm_of

pytestmark = pytest.mark.real

REPLICAS = 4
SESSIONS = 4096
# For those parts that are about who fails, and not about how many there are.
SOME = 512
CLIENTS = 48
FEW = 64
SOON_S = 5.0
# A client looks for a lost session for so long.
WINDOW_S = 3.0
BENCHMARK = LaunchSpec(
    image=QUICK.image,
    command=QUICK.serving("benchmark"),
    replicas=REPLICAS,
    env_vars={**QUICK.variables, "OPENENV_RESUME_WINDOW_S": f"{WINDOW_S:g}"},
    options={"mounts": QUICK.mounts, "workdir": "/", "init": True},
)


Test = Callable[[Deployment, Gateway], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    pytest.importorskip("docker")
    pytest.importorskip("envoy")
    with swarm_of(2) as nodes:
        everywhere(nodes)
        yield nodes


@pytest.fixture(scope="module")
def behind(nodes: list[Node]) -> Iterator[Callable[[Test], None]]:
    """Runs tests with a deployment of 4 servers on 2 nodes, and the gateway before it."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DOCKER_HOST", nodes[0].engine.host)
        swarm = stack.enter_context(contextlib.closing(DockerSwarmProvider(publish="host", auto_init_swarm=False)))
        deployment = stack.enter_context(asyncio.run(swarm.launch(BENCHMARK)))
        asyncio.run(deployment.ready())
        gateway = stack.enter_context(Gateway(deployment))

        async def conducted(test: Test) -> None:
            async with asyncio.timeout(60):
                await test(deployment, gateway)
                await until(lambda: whole(deployment, gateway), 20.0)

        yield lambda test: asyncio.run(conducted(test))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str, float], None]:
    """Tells the reader of a test run how long something took."""

    def tell(what: str, seconds: float) -> None:
        with capsys.disabled():
            print(f"\n{what} after {seconds:.2f} s", end="")  # noqa: T201

    return tell


def client_of(url: str, deployment: Deployment) -> GenericEnvClient:
    return GenericEnvClient(url, api_key=deployment.api_key, connect_timeout_s=10.0)


def test_thousands_of_sessions_are_spread_evenly(behind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async def test(deployment: Deployment, gateway: Gateway) -> None:
        for name, urls in (("without", deployment.urls), ("with", [gateway.url])):
            async with Crowd(urls, SESSIONS, deployment.api_key) as crowd:
                assert await crowd.step() == []
                assert crowd.failures == {}
                assert len(crowd.hosts) == REPLICAS
                assert spread(crowd.hosts) <= 0.1, crowd.hosts
            with capsys.disabled():
                times = f"P50 {crowd.connect_s(0.5):.2f} s, P99 {crowd.connect_s(0.99):.2f} s"
                print(f"\n{SESSIONS} sessions {name} Envoy: {times}, {sorted(crowd.hosts.values())}")  # noqa: T201

    behind(test)


def test_a_server_that_is_killed_takes_its_own_sessions_along_and_no_others(behind: Any, nodes: list[Node]) -> None:
    async def test(deployment: Deployment, gateway: Gateway) -> None:
        async with Crowd([gateway.url], SOME, deployment.api_key) as crowd, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(gateway.url, deployment)) for _ in range(CLIENTS)]
            hosts = [(await client.reset()).observation["host_url"] for client in clients]
            victim = hosts[0]
            await asyncio.to_thread(kill, nodes, deployment, victim)
            outcomes = await asyncio.gather(
                *(client.step({"wait_seconds": 0.0}, timeout_s=30.0) for client in clients), return_exceptions=True
            )
            for host, outcome in zip(hosts, outcomes, strict=True):
                if host == victim:
                    assert isinstance(outcome, SessionLost), outcome
                else:
                    assert not isinstance(outcome, BaseException), outcome
                    assert outcome.observation["host_url"] == host
            failed = await crowd.step()
            assert {seat.host for seat in failed} == {victim}
            assert len(failed) == crowd.hosts[victim]

    behind(test)


def test_new_sessions_land_elsewhere_at_once_and_then_on_its_successor(
    behind: Any, nodes: list[Node], told: Any
) -> None:
    async def test(deployment: Deployment, gateway: Gateway) -> None:
        async with Crowd([gateway.url], SOME, deployment.api_key) as before:
            (victim, _), *_ = before.hosts.most_common()
        await asyncio.to_thread(kill, nodes, deployment, victim)

        async def elsewhere() -> bool:
            async with Crowd([gateway.url], FEW, deployment.api_key) as after:
                assert victim not in after.hosts
                return not after.failures and len(after.hosts) >= REPLICAS - 1

        told("of a server that was killed, its share goes elsewhere", await until(elsewhere, SOON_S))
        succeeded = await until(lambda: reached(gateway, deployment, known=set(before.hosts)), 4 * SOON_S)
        told("and its successor takes load", succeeded)

    behind(test)


def test_a_server_that_is_added_takes_load(behind: Any, told: Any) -> None:
    async def test(deployment: Deployment, gateway: Gateway) -> None:
        async with Crowd([gateway.url], SOME, deployment.api_key) as crowd:
            await deployment.scale(REPLICAS + 1)
            await deployment.ready()
            loaded = await until(lambda: reached(gateway, deployment, known=set(crowd.hosts)), SOON_S)
            told("a server that was added takes load", loaded)
            assert await crowd.step() == []  # and nobody else has noticed
        await deployment.scale(REPLICAS)

    behind(test)


def test_a_session_whose_connection_was_cut_goes_on_behind_the_gateway(behind: Any) -> None:
    async def test(deployment: Deployment, gateway: Gateway) -> None:
        port = int(gateway.url.rpartition(":")[2])
        with Proxy(port, seed=5) as proxy:
            async with contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(client_of(proxy.url, deployment)) for _ in range(CLIENTS)]
                first = [(await client.reset()).observation for client in clients]
                for number in range(1, 4):
                    steps = asyncio.gather(*(client.step({"wait_seconds": 0.2}) for client in clients))
                    await asyncio.sleep(0.1)  # into the middle of the steps
                    await asyncio.to_thread(proxy.cut_all)
                    for before, result in zip(first, await steps, strict=True):
                        assert result.observation["step_count"] == number
                        assert result.observation["session_hash"] == before["session_hash"]
                        assert result.observation["host_url"] == before["host_url"]

    behind(test)


def kill(nodes: list[Node], deployment: Deployment, host: str) -> None:
    """Kills the container with that host name."""
    for node in nodes:
        with contextlib.closing(node.engine.client()) as client:
            for container in client.containers.list(filters={"label": f"{DEPLOYMENT}={deployment.name}"}):
                if container.id.startswith(host):
                    container.kill()
                    return
    raise AssertionError(f"{host} is on no node")


async def reached(gateway: Gateway, deployment: Deployment, known: set[str]) -> bool:
    """Whether some of a few new sessions land on a server that was not known."""
    async with Crowd([gateway.url], 2 * REPLICAS, deployment.api_key) as crowd:
        assert crowd.failures == {}
        return bool(set(crowd.hosts) - known)


async def whole(deployment: Deployment, gateway: Gateway) -> bool:
    """Whether all servers run, and the gateway has them."""
    servers = await deployment.refresh()
    known = {backend.name for backend in gateway.topology.backends}
    return known == {server.name for server in servers if server.gone is None} and len(known) == REPLICAS


async def until(holds: Callable[[], Coroutine[Any, Any, bool]], limit_s: float) -> float:
    """Waits for something, and returns how long it took. What is tried within the limit may take its time."""
    began = tried = time.monotonic()
    while not await holds():
        assert tried < began + limit_s, f"not within {limit_s} s"
        await asyncio.sleep(0.05)
        tried = time.monotonic()
    return time.monotonic() - began
