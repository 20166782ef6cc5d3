"""The same client for code that does not await."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from openenv.client import EnvClient, GenericEnvClient, SyncEnvClient
from openenv.client.env_client import ClientOptions
from openenv.errors import (
    ConnectionFailed,
    InvalidAction,
    InvalidArgument,
    SchemaMismatch,
    SessionLost,
    StepTimeout,
    UsageError,
)
from openenv.types import Observation, StepResult

from ..asynchronous import Gate
from ..environments import Gated
from .environments import (
    Bell,
    CounterAction,
    CounterEnv,
    CounterObservation,
    CounterState,
    RingingCounter,
    ThreadCounter,
    app_of,
    plain_app,
)

ONE = CounterAction(by=1)
THREADS = 8
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def app():
    return app_of()


def play(env):
    """An episode through a client that blocks."""
    assert env.reset(start=5, episode_id="e") == StepResult(observation=CounterObservation(total=5))
    assert env.step(CounterAction(by=2)).observation == CounterObservation(total=7, reward=1.0)
    assert env.state() == CounterState(episode_id="e", step_count=1, total=7)


def test_the_synchronous_client(app):
    client = CounterEnv(app=app)
    env = client.sync()
    assert type(env) is SyncEnvClient
    assert env.async_client is client
    assert env.connect() is env
    assert app.state.openenv.active_sessions == 1
    play(env)
    env.close()
    assert app.state.openenv.active_sessions == 0
    env.close()
    play(env)
    env.close()


class SyncCounter(SyncEnvClient[CounterAction, CounterObservation, CounterState]):
    """A client that is synchronous from the start."""


@pytest.mark.parametrize("made", [SyncCounter, SyncEnvClient[CounterAction, CounterObservation, CounterState]])
def test_a_synchronous_client_of_its_own_knows_its_types(app, made):
    with made(app=app, strict=True) as env:
        play(env)
        with env.new_session() as other:
            assert type(other) is type(env)
            play(other)
    with made(env=ThreadCounter) as env:
        play(env)


def test_a_synchronous_client_without_types_takes_and_gives_dicts(app):
    with SyncEnvClient(app=app) as env:
        assert env.reset(start=5).observation["total"] == 5
        assert env.step({"by": 2}).observation["total"] == 7
    assert SyncEnvClient("localhost:8000", api_key="k").base_url == "localhost:8000"


def test_a_synchronous_client_warns_of_other_types(app):
    class Named(Observation):
        total: str

    class Other(SyncEnvClient[CounterAction, Named, CounterState]):
        pass

    with pytest.raises(SchemaMismatch, match="Other does not fit"):
        Other(app=app, strict=True).connect()


def test_a_given_client_keeps_its_arguments(app):
    client = CounterEnv(app=app)
    assert SyncEnvClient(client).async_client is SyncEnvClient(async_client=client).async_client is client
    with pytest.raises(InvalidArgument, match="api_key: the client that is given has arguments of its own"):
        SyncEnvClient(async_client=client, api_key="k")


def test_the_options_are_those_of_the_asynchronous_client():
    parameters = inspect.signature(EnvClient).parameters
    assert [*ClientOptions.__annotations__] == [name for name in parameters if name != "base_url"]


def test_the_synchronous_client_in_a_block(app):
    with CounterEnv(app=app).sync() as env:
        assert app.state.openenv.active_sessions == 1
        play(env)
    assert app.state.openenv.active_sessions == 0


def test_a_client_in_a_synchronous_block(app):
    with CounterEnv(app=app) as env:
        assert type(env) is CounterEnv
        assert app.state.openenv.active_sessions == 1
        play(env)
    assert app.state.openenv.active_sessions == 0


def test_plain_calls_without_an_event_loop(app):
    env = CounterEnv(app=app)
    assert env.connect() is env
    play(env)
    assert env.close() is None
    assert app.state.openenv.active_sessions == 0


async def test_a_synchronous_block_inside_a_running_event_loop(app):
    with CounterEnv(app=app) as env:
        play(env)
    assert app.state.openenv.active_sessions == 0


async def test_after_a_synchronous_block_the_client_is_asynchronous_again(app):
    env = CounterEnv(app=app)
    with env:
        play(env)
    await env.reset()
    assert (await env.step(ONE)).reward == 1.0
    await env.close()


async def test_a_synchronous_block_that_cannot_be_entered_leaves_the_client_asynchronous():
    env = CounterEnv(NOBODY)
    with pytest.raises(ConnectionFailed), env:
        pass
    call = env.reset()
    assert inspect.isawaitable(call)
    with pytest.raises(ConnectionFailed):
        await call


def test_an_error_inside_a_synchronous_block_closes_too(app):
    with pytest.raises(LookupError), CounterEnv(app=app) as env:
        env.reset()
        raise LookupError
    assert app.state.openenv.active_sessions == 0


def test_errors_arrive_as_their_classes(app):
    with GenericEnvClient(app=app) as env:
        env.reset()
        with pytest.raises(InvalidAction) as caught:
            env.step({"by": None})
        assert caught.value.data["errors"][0]["loc"] == ["by"]
        assert env.step({"by": 1}).reward == 1.0


def test_a_late_reply_never_reaches_the_next_call():
    bell = Bell()
    env = CounterEnv(app=app_of(partial(RingingCounter, bell)))
    env.reset()
    with pytest.raises(StepTimeout):
        env.step(CounterAction(by=5), timeout_s=0.05)
    assert env.state().total == 0
    env.close()


def test_a_step_on_a_thread_that_does_not_end_loses_its_session():
    gate = Gate()
    with GenericEnvClient(app=plain_app(partial(Gated, stepping=gate))) as env:
        env.reset()
        with pytest.raises(StepTimeout):
            env.step({}, timeout_s=0.05)
        with pytest.raises(SessionLost, match="cannot be stopped"):
            env.step({})
        gate.open()
        assert env.reset().error is None


# What a subclass has of its own.


class Player(CounterEnv):
    """As the clients of existing packages are: with methods, attributes and verbs of their own."""

    table = "green"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard: list[str] = []

    async def play(self, rounds: int, *, by: int = 1) -> float | None:
        """Steps, and gives the last reward."""
        await self.reset()
        results = [await self.step(CounterAction(by=by)) for _ in range(rounds)]
        return results[-1].reward

    def again(self, rounds: int) -> Any:
        return self._offered(self.play(rounds))

    async def _whisper(self) -> str:
        return "psst"

    async def connect(self) -> Any:
        self.heard.append("connect")
        return await super().connect()

    async def reset(self, **kwargs: Any) -> Any:
        self.heard.append("reset")
        return await super().reset(start=100, **kwargs)

    async def step(self, action: CounterAction) -> Any:
        self.heard.append("step")
        return await super().step(action)

    async def state(self) -> Any:
        self.heard.append("state")
        return await super().state()

    async def close(self) -> None:
        self.heard.append("close")
        await super().close()


def check_player(env: Any, heard: list[str]) -> None:
    """Everything of a player, by its synchronous client."""
    assert env.play(3, by=2) == 3.0
    assert env.again(2) == 2.0
    assert (env.table, env.heard is heard, env._whisper()) == ("green", True, "psst")
    assert env.play.__doc__ == Player.play.__doc__
    heard.clear()
    assert env.reset().observation.total == 100
    assert env.step(ONE).observation.total == 101
    assert env.state().total == 101
    env.close()
    assert heard == ["reset", "step", "state", "close"]


def test_what_a_subclass_adds_and_overrides_is_there_for_code_that_cannot_await(app):
    env = Player(app=app).sync()
    assert env.connect() is env
    check_player(env, env.async_client.heard)
    with Player(app=app) as player:
        check_player(player.sync(), player.heard)
    assert app.state.openenv.active_sessions == 0


async def test_what_a_subclass_adds_is_there_inside_a_running_event_loop_too(app):
    env = Player(app=app).sync()
    check_player(env, env.async_client.heard)


@pytest.mark.parametrize("wrong", ["nonsense", "_nonsense", "__len__"])
def test_what_no_class_has_is_an_attribute_error_that_names_it(app, wrong):
    with pytest.raises(AttributeError, match=wrong):
        getattr(CounterEnv(app=app).sync(), wrong)


def test_the_synchronous_client_of_the_synchronous_client_drives_the_same_session(app):
    env = CounterEnv(app=app).sync()
    env.reset(start=4)
    assert env.sync().step(ONE).observation.total == 5
    env.close()


def test_a_synchronous_client_is_pickled_as_its_client_is():
    copy = pickle.loads(pickle.dumps(CounterEnv(NOBODY).sync()))
    assert type(copy.async_client) is CounterEnv
    assert copy.base_url == NOBODY


def test_blocks_enter_and_leave_by_what_a_subclass_overrides(app):
    with Player(app=app) as blocking:
        pass
    assert blocking.heard == ["connect", "close"]
    with Player(app=app).sync() as sync:
        pass
    assert sync.heard == ["connect", "close"]

    async def enter():
        async with Player(app=app) as env:
            pass
        return env.heard

    assert asyncio.run(enter()) == ["connect", "close"]
    assert app.state.openenv.active_sessions == 0


# Threads.


def test_each_thread_with_a_client_of_its_own():
    app = app_of(ThreadCounter)

    def steps(number):
        with CounterEnv(app=app) as env:
            env.reset(start=number)
            return [env.step(ONE).observation.total for _ in range(20)]

    with ThreadPoolExecutor(THREADS) as threads:
        totals = list(threads.map(steps, range(0, 100 * THREADS, 100)))
    assert totals == [list(range(first + 1, first + 21)) for first in range(0, 100 * THREADS, 100)]
    assert app.state.openenv.active_sessions == 0


def test_one_client_from_many_threads():
    app = app_of(ThreadCounter)
    start = threading.Barrier(THREADS)

    def steps(env):
        start.wait()
        return [env.step(ONE).reward for _ in range(20)]

    with CounterEnv(app=app) as env, ThreadPoolExecutor(THREADS) as threads:
        env.reset()
        rewards = [reward for part in threads.map(steps, [env] * THREADS) for reward in part]
    assert sorted(rewards) == [float(n) for n in range(1, 20 * THREADS + 1)]


def test_the_first_calls_of_many_threads_share_one_connection():
    app = app_of(ThreadCounter)
    env = CounterEnv(app=app)
    start = threading.Barrier(THREADS)

    def connect(_):
        start.wait()
        env.reset()

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(connect, range(THREADS)))
    assert app.state.openenv.active_sessions == 1
    env.close()


async def test_beside_a_running_event_loop_on_another_thread(app):
    env = CounterEnv(app=app)
    await asyncio.to_thread(play, env.sync())
    await asyncio.to_thread(play, env)
    await asyncio.to_thread(env.close)


# One client, several event loops.


async def test_a_client_of_the_portal_can_be_awaited(app):
    env = CounterEnv(app=app)
    env.sync().reset()
    assert (await env.step(ONE)).reward == 1.0
    assert env.sync().step(ONE).reward == 2.0
    assert (await env.state()).step_count == 2
    await env.close()


async def test_a_client_of_this_loop_can_be_used_from_other_threads_and_their_loops(app):
    async def elsewhere():
        return (await env.step(ONE)).reward

    async with CounterEnv(app=app) as env:
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == 2.0
        assert await asyncio.to_thread(lambda: env.sync().step(ONE).reward) == 3.0
        assert await asyncio.to_thread(lambda: env.step(ONE).reward) == 4.0
        assert (await env.step(ONE)).reward == 5.0


async def test_a_call_awaited_from_another_loop_can_be_cancelled():
    gate = Gate()
    env = GenericEnvClient(app=plain_app(partial(Gated, stepping=gate)))
    env.sync().reset()
    step = asyncio.ensure_future(env.step({}))
    await gate.reached()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    gate.open()
    assert (await env.step({})).reward == 2.0
    await env.close()


async def test_a_call_prepared_on_one_loop_and_a_call_on_another_share_one_connection():
    """When each of them is made, the client has no connection yet."""
    app = app_of(ThreadCounter)
    env = CounterEnv(app=app)

    async def elsewhere():
        return await env.reset()

    prepared = env.reset()
    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert (await prepared).observation.total == 0
    assert app.state.openenv.active_sessions == 1
    await env.close()
    assert app.state.openenv.active_sessions == 0


async def test_a_synchronous_call_that_would_wait_for_itself_is_refused(app):
    async with CounterEnv(app=app) as env:
        await env.reset()
        for call in (env.sync().reset, env.sync().state, env.sync().close, partial(env.sync().step, ONE)):
            with pytest.raises(UsageError, match="await"):
                call()
        with pytest.raises(UsageError, match="await"), env:
            pass
        assert (await env.step(ONE)).reward == 1.0


def test_a_client_whose_event_loop_stands_still_says_so():
    """Its loop is neither closed nor running: nobody would ever execute the call."""
    env = CounterEnv(app=app_of())
    loop = asyncio.new_event_loop()

    async def reset():
        await env.reset()

    loop.run_until_complete(reset())
    outcome = ThreadPoolExecutor(1).submit(lambda: env.step(ONE))
    try:
        with pytest.raises(UsageError):
            outcome.result(20)
    finally:

        async def close():
            await env.close()

        loop.run_until_complete(close())
        loop.close()


def test_a_session_on_an_event_loop_that_was_closed_is_lost(app):
    env = CounterEnv(app=app)

    async def begin():
        await env.reset()
        await env.step(ONE)

    async def go_on():
        with pytest.raises(ConnectionFailed):
            await env.step(ONE)
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0
        await env.close()

    asyncio.run(begin())
    asyncio.run(go_on())
    assert app.state.openenv.active_sessions == 0
