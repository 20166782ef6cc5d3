"""Clients that go on from where another one is."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from openenv.client import EnvClient, MCPToolClient, SyncEnvClient, VectorEnvClient, memory
from openenv.client.connection import ClientConnectionV2
from openenv.envs.benchmark.client import BenchmarkEnv
from openenv.envs.benchmark.models import BenchmarkAction
from openenv.envs.benchmark.server.benchmark_environment import (
    AsyncBenchmarkEnvironment,
    BenchmarkEnvironment,
    InlineBenchmarkEnvironment,
)
from openenv.envs.echo.client import EchoEnv
from openenv.envs.echo.models import EchoAction
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.errors import (
    ConnectTimeout,
    Draining,
    NotForkable,
    QueueTimeout,
    ResetRequired,
    ServerFull,
    SessionLost,
    StepFailed,
    UsageError,
)
from openenv.server import create_app
from openenv.settings import ServerSettings

from ..asynchronous import until
from ..chaos.proxy import Proxy
from ..mcp.environments import ToolEnvironment
from ..server.forkable import AsyncWalk, InlineWalk, Locked, Saving, Walk
from ..server.probe import ProbeAction, ProbeObservation
from ..server.wires import served
from .environments import CounterAction, CounterEnv, app_of


class WalkEnv(EnvClient[ProbeAction, ProbeObservation, Any]):
    pass


def server_of(environment: Any, most: int = 8, **settings: Any) -> Any:
    given = ServerSettings(**settings)
    return create_app(environment, ProbeAction, ProbeObservation, max_concurrent_envs=most, settings=given)


async def walked(env: Any, number: int = 0) -> list[int]:
    way: list[int] = (await env.step(ProbeAction(number=number))).observation.value
    return way


@pytest.mark.parametrize("environment", [Walk, InlineWalk, AsyncWalk, Saving])
async def test_a_fork_goes_on_exactly_as_the_original_would(environment):
    app = server_of(environment)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        before = await walked(env, 1)
        async with await env.fork() as other:
            assert type(other) is WalkEnv
            assert app.state.openenv.active_sessions == 2
            onward = [await walked(other, number) for number in (5, 6)]
            assert onward == [await walked(env, number) for number in (5, 6)]
            assert onward[0][:1] == before
            assert await other.state() == await env.state()
        await until(lambda: app.state.openenv.active_sessions == 1)
        assert len(await walked(env)) == 4


async def test_a_client_goes_back_as_often_as_it_wants():
    async with WalkEnv(app=server_of(Walk)) as env:
        await env.reset(seed=3)
        async with await env.fork() as kept:
            ways = []
            for number in (0, 1000, 2000):
                await env.restore(kept)
                ways.append(await walked(env, number))
            assert [way[0] - ways[0][0] for way in ways] == [0, 1000, 2000]


async def test_forks_are_made_at_once_and_each_can_be_forked_again():
    async with WalkEnv(app=server_of(Walk, 20)) as env:
        await env.reset(seed=3)
        first = await asyncio.gather(*(env.fork() for _ in range(4)))
        second = await asyncio.gather(*(each.fork() for each in first))
        everyone = [env, *first, *second]
        assert len({tuple(way) for way in await asyncio.gather(*map(walked, everyone))}) == 1
        for each in (*first, *second):
            await each.close()


async def test_a_fork_outlives_the_client_it_comes_from():
    app = server_of(Walk)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        other = await env.fork()
    assert len(await walked(other)) == 1
    await other.close()
    await until(lambda: app.state.openenv.active_sessions == 0)


def test_it_works_without_an_event_loop():
    with WalkEnv(app=server_of(Walk)) as env:
        env.reset(seed=3)
        with env.fork() as other:
            assert env.step(ProbeAction()).observation.value == other.step(ProbeAction()).observation.value
            other.restore(env)
        sync = env.sync()
        third = sync.fork()
        assert type(third) is SyncEnvClient
        sync.restore(third)
        third.restore(sync)
        assert third.step(ProbeAction()).observation.value == sync.step(ProbeAction()).observation.value
        third.close()


async def test_an_environment_that_cannot_be_forked_says_why_and_goes_on():
    app = server_of(Locked)
    async with WalkEnv(app=app) as env, WalkEnv(app=app) as other:
        await env.reset(seed=3)
        with pytest.raises(NotForkable, match=r"'_lock'.*save_state\(\) and load_state\(\)"):
            await env.fork()
        await other.reset()
        with pytest.raises(NotForkable):
            await other.restore(env)
        assert len(await walked(env)) == len(await walked(other)) == 1


async def test_a_fork_without_a_slot_is_refused_and_the_session_goes_on():
    async with WalkEnv(app=server_of(Walk, 1)) as env:
        await env.reset(seed=3)
        with pytest.raises(ServerFull):
            await env.fork()
        with pytest.raises(QueueTimeout):
            await env.fork(wait_s=0.01)
        assert len(await walked(env)) == 1


async def test_a_server_that_drains_forks_nothing():
    app = server_of(Walk)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        app.state.openenv.drain(5.0)
        with pytest.raises(Draining):
            await env.fork()
        assert len(await walked(env)) == 1


async def test_a_fork_that_is_given_up_leaves_no_session():
    app = server_of(Walk, 1)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        forking = asyncio.ensure_future(env.fork(wait_s=60))
        await until(lambda: len(app.state.openenv.manager._admission.queue) == 1)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        assert len(await walked(env)) == 1
        assert app.state.openenv.active_sessions == 1
        assert not app.state.openenv.manager._admission.queue


async def test_a_fork_that_takes_too_long_is_given_up_on_the_server_too(monkeypatch):
    monkeypatch.setattr("openenv.client.session.LATE_S", 0.01)
    app = server_of(Walk, 1, queue_timeout_s=60)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        env._message_timeout_s = 0.05
        with pytest.raises(Exception, match="no reply to fork"):
            await env.fork()
        env._message_timeout_s = 60.0
        await until(lambda: not app.state.openenv.manager._admission.queue)
        assert len(await walked(env)) == 1


async def test_what_cannot_be_restored_from_is_refused():
    app = server_of(Walk)
    async with WalkEnv(app=app) as env:
        await env.reset(seed=3)
        for source in (WalkEnv(app=app), env):
            with pytest.raises(UsageError, match="restore from"):
                await env.restore(source)
        closed = await env.fork()
        await closed.close()
        with pytest.raises(UsageError):
            await env.restore(closed)
        async with WalkEnv(app=server_of(Walk)) as stranger:
            await stranger.reset()
            with pytest.raises(UsageError, match="fork a session instead"):
                await env.restore(stranger)
        assert len(await walked(env)) == 1


async def test_a_closed_client_has_nothing_to_fork():
    env = WalkEnv(app=server_of(Walk))
    await env.reset()
    await env.close()
    with pytest.raises(SessionLost):
        await env.fork()


async def test_a_server_that_speaks_v1_alone_is_named_as_such(monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)
    async with CounterEnv(app=app_of()) as env, CounterEnv(app=app_of()) as other:
        await env.reset()
        await other.reset()
        for call in (env.fork, lambda: env.restore(other)):
            with pytest.raises(UsageError, match="v1|session"):
                await call()
        assert (await env.step(CounterAction(by=1))).observation.total == 1


async def test_an_older_server_is_named_as_such(monkeypatch):
    monkeypatch.setattr("openenv.server.server.CAPABILITIES", ("attach",))
    async with CounterEnv(app=app_of()) as env:
        await env.reset()
        for call in (env.fork, env.tasks):
            with pytest.raises(UsageError, match="does not know"):
                await call()
        assert (await env.step(CounterAction(by=1))).observation.total == 1


class SavingTools(ToolEnvironment):
    def save_state(self) -> Any:
        return self.count

    def load_state(self, state: Any) -> None:
        self.count = state


async def test_environments_with_tools_say_themselves_what_their_state_is():
    async with MCPToolClient(env=ToolEnvironment) as env:
        await env.reset()
        with pytest.raises(NotForkable, match=r"save_state\(\) and load_state\(\)"):
            await env.fork()
    async with MCPToolClient(env=SavingTools) as env:
        await env.reset()
        await env.call_tool("increase", by=2)
        async with await env.fork() as other:
            assert await other.call_tool("increase", by=3) == {"count": 5}
            assert await env.call_tool("increase") == {"count": 3}


class Entangled(Walk):
    """Has a function that would go on using the original."""

    def __init__(self) -> None:
        super().__init__()
        self._peek = [lambda: self._at]


async def test_an_environment_whose_copy_would_use_the_original_is_not_copied():
    async with WalkEnv(app=server_of(Entangled)) as env:
        await env.reset(seed=3)
        for _ in range(2):
            with pytest.raises(NotForkable, match="'_peek' holds a function made in one of its methods"):
                await env.fork()
        assert len(await walked(env)) == 1


@pytest.mark.parametrize("environment", [BenchmarkEnvironment, AsyncBenchmarkEnvironment, InlineBenchmarkEnvironment])
async def test_the_benchmark_environment_can_be_forked(environment):
    async with BenchmarkEnv(env=environment) as env:
        await env.reset(episode_id="e")
        await env.step(BenchmarkAction())
        async with await env.fork() as other:
            seen = await other.step(BenchmarkAction())
            mine = await env.step(BenchmarkAction())
            assert (seen.observation.step_count, mine.observation.step_count) == (2, 2)
            assert seen.observation.session_hash == mine.observation.session_hash
            assert (await other.state()).episode_id == "e"


async def test_the_echo_environment_can_be_forked():
    async with EchoEnv(env=EchoEnvironment) as env:
        await env.reset(episode_id="e")
        await env.step(EchoAction(message="a"))
        async with await env.fork() as other:
            await other.step(EchoAction(message="b"))
            assert ((await env.state()).step_count, (await other.state()).step_count) == (1, 2)


# Over sockets: the connection may be lost at any time.


@pytest.fixture
def app() -> Any:
    return server_of(InlineWalk)


@pytest.fixture
def proxy(app) -> Any:
    """Stands before the app, and cuts connections."""
    with served(app) as address, Proxy(int(address.rpartition(":")[2])) as proxy:
        yield proxy


async def cut(proxy: Proxy) -> None:
    await asyncio.to_thread(proxy.cut_all, 1, 0.01)


async def sessions_of(app: Any, count: int) -> None:
    await until(lambda: app.state.openenv.active_sessions == count)


async def test_it_works_over_a_socket_and_after_the_connection_was_lost(proxy, hurry):
    async with WalkEnv(base_url=proxy.url) as env:
        await env.reset(seed=3)
        async with await env.fork() as other:
            await cut(proxy)
            for each in (env, other):
                assert len(await walked(each)) == 1
            assert proxy.accepted == 4
            await env.restore(other)
            assert await walked(env) == await walked(other)


async def test_a_fork_is_made_once_though_its_reply_was_lost(app, proxy, hurry):
    async with WalkEnv(base_url=proxy.url) as env:
        await env.reset(seed=3)
        proxy.delay(60)
        forking = asyncio.ensure_future(env.fork())
        await sessions_of(app, 2)
        proxy.delay(0)
        await cut(proxy)
        async with await forking as other:
            assert await walked(other) == await walked(env)
            assert app.state.openenv.active_sessions == 2


async def test_a_fork_whose_connection_is_given_up_leaves_no_session(app, proxy, monkeypatch):
    async with WalkEnv(base_url=proxy.url) as env:
        await env.reset(seed=3)
        requested = ClientConnectionV2.request

        async def late(link: ClientConnectionV2, op: str, fields: Any) -> Any:
            reply = await requested(link, op, fields)
            if op == "attach":
                raise TimeoutError
            return reply

        monkeypatch.setattr(ClientConnectionV2, "request", late)
        with pytest.raises(ConnectTimeout, match="connect_timeout_s"):
            await env.fork()
        await sessions_of(app, 1)
        assert len(await walked(env)) == 1


@pytest.mark.parametrize("made", [True, False], ids=["it was made", "it was not"])
async def test_a_fork_that_is_given_up_while_the_connection_is_lost_leaves_no_session(app, proxy, hurry, made):
    async with WalkEnv(base_url=proxy.url) as env:
        await env.reset(seed=3)
        if made:
            proxy.delay(60)
        else:
            proxy.freeze()
        forking = asyncio.ensure_future(env.fork())
        if made:
            await sessions_of(app, 2)
        else:
            await asyncio.sleep(0)  # it is sent, and does not arrive
        proxy.refuse()
        await cut(proxy)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        proxy.delay(0)
        proxy.thaw()
        proxy.refuse(False)
        assert len(await walked(env)) == 1
        await sessions_of(app, 1)
        assert len(await walked(env)) == 2


def test_calls_that_end_leave_no_errors_in_the_log(caplog):
    with WalkEnv(app=server_of(Walk)) as env:
        env.reset(seed=1)
        with caplog.at_level(logging.WARNING):
            with env.fork() as other:
                env.restore(other)
            with pytest.raises(StepFailed):
                env.step(ProbeAction(kind="raise"))
    assert len([record for record in caplog.records if record.name == "openenv.server"]) == 1


# Between the environments of a vector.


def vector_of(environment: Any, most: int = 8, **options: Any) -> VectorEnvClient[ProbeAction, ProbeObservation]:
    return VectorEnvClient(WalkEnv, app=server_of(environment, most), num_envs=4, **options)


async def walked_each(envs: Any, env_ids: list[int]) -> dict[int, Any]:
    await envs.send([ProbeAction(number=1)] * len(env_ids), env_ids)
    return {env_id: result.observation.value for env_id, result in await envs.recv(len(env_ids))}


@pytest.mark.parametrize("connections", [1, 2])
async def test_environments_of_a_vector_go_on_as_the_one_that_they_copy(connections):
    async with vector_of(Walk, connections=connections) as envs:
        await envs.reset(seeds=[5, 6], env_ids=[0, 1])
        await walked_each(envs, [0, 1])
        assert await envs.fork(0, [1, 3]) == [None, None]
        ways = await walked_each(envs, [0, 1, 3])
        assert ways[0] == ways[1] == ways[3]
        results = await envs.reset()
        assert not any(result.error for result in results)


async def test_what_cannot_be_copied_is_the_error_of_each():
    async with vector_of(Locked) as envs:
        await envs.reset(env_ids=[0, 1])
        before = await walked_each(envs, [0])
        failures = await envs.fork(0, [1, 2])
        assert [type(failure) for failure in failures] == [NotForkable] * 2
        assert len((await walked_each(envs, [0]))[0]) == len(before[0]) + 1
        await envs.send([ProbeAction()], [1])
        assert isinstance((await envs.recv())[0].result.error, ResetRequired)


async def test_a_full_server_copies_as_many_as_it_has_slots_for():
    async with vector_of(Walk, most=2) as envs:
        await envs.reset(env_ids=[0])
        failures = await envs.fork(0, [1, 2])
        assert sorted(str(type(failure).__name__) for failure in failures) == ["NoneType", "ServerFull"]
        # A copy takes the place of the session that its environment had.
        await envs.fork(0, [1])
        assert not any(await envs.fork(0, [1] if failures[0] is None else [2]))


async def test_only_an_environment_with_an_episode_is_copied():
    async with vector_of(Walk) as envs:
        with pytest.raises(UsageError, match="environment 0 cannot be copied"):
            await envs.fork(0, [1])
        await envs.reset(env_ids=[0, 1])
        with pytest.raises(UsageError, match="each environment once"):
            await envs.fork(0, [0])
        await envs.send([ProbeAction()], [1])
        with pytest.raises(UsageError, match="calls on their way"):
            await envs.fork(0, [1])
        await envs.recv()


async def test_a_copy_that_is_given_up_leaves_no_session():
    app = server_of(Walk, most=3)
    async with VectorEnvClient(WalkEnv, app=app, num_envs=2) as envs:
        await envs.reset(env_ids=[0])
        forking = asyncio.ensure_future(envs.fork(0, [1]))
        await asyncio.sleep(0)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        await until(lambda: app.state.openenv.active_sessions == 1)
        await walked_each(envs, [0])


def test_a_copy_needs_protocol_v2(monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)
    with vector_of(Walk) as envs:
        envs.reset()
        with pytest.raises(UsageError, match="protocol v2"):
            envs.fork(0, [1])
