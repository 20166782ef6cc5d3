"""Clients as trainers bind them: in processes of their own, in threads without an event loop, idle for minutes."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from openenv.client import GenericEnvClient

from ..client.environments import CounterAction, CounterEnv, ThreadCounter, app_of
from ..server.wires import eventually, served

pytestmark = pytest.mark.real

ONE = CounterAction(by=1)
THREADS = 32
FAST = "openenv.server.transports.uvicorn:FastPath"


@pytest.fixture
def app() -> Any:
    return app_of(ThreadCounter, sessions=2 * THREADS)


@pytest.fixture
def url(app: Any) -> Iterator[str]:
    with served(app, ws=FAST) as address:
        yield f"http://{address}"


def play(env: Any, start: int) -> list[int]:
    """An episode by plain calls."""
    env.reset(start=start)
    return [env.step(ONE).observation.total for _ in range(5)]


def totals(start: int) -> list[int]:
    return [start + step for step in range(1, 6)]


def test_thirty_two_threads_with_a_client_each(url: str, app: Any) -> None:
    """No event loop anywhere, instances kept for the whole run, several batches of episodes."""
    envs = [CounterEnv(base_url=url) for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        for batch in range(3):
            starts = [1000 * batch + 10 * number for number in range(THREADS)]
            assert list(threads.map(play, envs, starts)) == [totals(start) for start in starts]
        assert app.state.openenv.active_sessions == THREADS
        list(threads.map(lambda env: env.close(), envs))
    eventually(lambda: app.state.openenv.active_sessions == 0)


def in_one_process(factory: Callable[[], Any], start: int) -> list[int]:
    """What a spawned worker does: builds an instance and plays, then closes it."""
    env = factory()
    try:
        return play(env, start)
    finally:
        env.close()


class Again:
    """A factory that hands out the client it was made with."""

    def __init__(self, env: Any):
        self.env = env

    def __call__(self) -> Any:
        return self.env


def in_a_running_loop(factory: Callable[[], Any]) -> list[list[int]]:
    """As an asynchronous rollout worker: instances are built inside a running loop and called from many threads."""

    async def work() -> list[list[int]]:
        envs = [factory() for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            loop = asyncio.get_running_loop()
            calls = [loop.run_in_executor(threads, play, env, 10 * number) for number, env in enumerate(envs)]
            played = await asyncio.gather(*calls)
            await asyncio.gather(*(loop.run_in_executor(threads, env.close) for env in envs))
        return played

    return asyncio.run(work())


@pytest.mark.slow
def test_factories_and_clients_in_spawned_processes(url: str, app: Any) -> None:
    factories = [partial(CounterEnv, base_url=url), Again(CounterEnv(base_url=url, message_timeout_s=20.0))]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        for factory in factories:
            futures = [processes.submit(in_one_process, factory, start) for start in (10, 20)]
            assert [future.result(60) for future in futures] == [totals(10), totals(20)]
        played = processes.submit(in_a_running_loop, factories[0]).result(60)
    assert played == [totals(10 * number) for number in range(8)]
    eventually(lambda: app.state.openenv.active_sessions == 0)


def test_a_client_that_was_used_and_closed_can_be_sent(url: str) -> None:
    env = CounterEnv(base_url=url)
    assert play(env, 1) == totals(1)
    env.close()
    again = pickle.loads(pickle.dumps(env))
    assert play(again, 2) == totals(2)
    again.close()
    assert play(env, 3) == totals(3)
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("idle_timeout_s", [4.0])
def test_instances_that_wait_for_their_next_batch_keep_their_episode(idle_timeout_s: float) -> None:
    """Pings and heartbeats come often, and the wait is longer than a client may be silent."""
    app = app_of(ThreadCounter, idle_timeout_s=idle_timeout_s, heartbeat_s=0.5, ping_interval_s=0.5)
    with served(app, ws=FAST) as address:
        envs = [CounterEnv(base_url=address) for _ in range(4)]
        for env in envs:
            env.reset(start=5)
            env.step(ONE)
        threading.Event().wait(1.5 * idle_timeout_s)
        assert [env.step(ONE).observation.total for env in envs] == [7] * 4
        assert app.state.openenv.active_sessions == 4
        for env in envs:
            env.close()


def test_a_further_session_over_a_real_connection(url: str, app: Any) -> None:
    with GenericEnvClient(url) as env, env.new_session() as other:
        env.reset(start=1)
        other.reset(start=100)
        assert env.step({"by": 1}).observation["total"] == 2
        assert other.step({"by": 1}).observation["total"] == 101
        assert app.state.openenv.active_sessions == 2
    eventually(lambda: app.state.openenv.active_sessions == 0)
