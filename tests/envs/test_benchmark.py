"""The benchmark environment: its three variants in process, over its client, and over the v1 wire."""

import asyncio
import os
import socket as sockets
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv.envs.benchmark import BenchmarkAction, BenchmarkEnv, BenchmarkObservation
from openenv.envs.benchmark.server import app as apps
from openenv.envs.benchmark.server import benchmark_environment
from openenv.envs.benchmark.server.benchmark_environment import (
    AsyncBenchmarkEnvironment,
    BenchmarkEnvironment,
    InlineBenchmarkEnvironment,
    check,
)
from openenv.types import State

VARIANTS = (BenchmarkEnvironment, AsyncBenchmarkEnvironment, InlineBenchmarkEnvironment)
APPS = {"thread": apps.app, "loop": apps.app_async, "inline": apps.app_inline}


@pytest.fixture(params=VARIANTS)
def environment(request):
    return request.param()


@pytest.fixture(params=APPS)
def app(request):
    return APPS[request.param]


def test_an_observation_says_where_and_when_it_was_made(environment):
    before = time.time()
    seen = environment.step(BenchmarkAction())
    assert seen.host_url == sockets.gethostname()
    assert seen.pid == os.getpid()
    assert before <= seen.timestamp <= time.time()
    assert seen.waited_seconds == 0.0
    assert seen.reward == 1.0
    assert not seen.done


def test_a_session_has_one_hash_that_no_other_has(environment):
    other = type(environment)()
    hashes = [environment.reset().session_hash, environment.step(BenchmarkAction()).session_hash]
    assert len(set(hashes)) == 1
    assert len(hashes[0]) == 16
    assert set(hashes[0]) <= set("0123456789abcdef")
    assert other.reset().session_hash != hashes[0]


@given(st.floats(min_value=0, max_value=1e6))
def test_a_step_waits_as_told_and_the_reward_falls_with_the_wait(seconds):
    waits = []
    with pytest.MonkeyPatch.context() as patch:
        # Of that module only: threads that are left of other tests sleep too.
        patch.setattr(benchmark_environment, "time", SimpleNamespace(sleep=waits.append, time=time.time))
        seen = BenchmarkEnvironment().step(BenchmarkAction(wait_seconds=seconds))
    assert waits == ([seconds] if seconds else [])
    assert seen.waited_seconds == seconds
    assert seen.reward == pytest.approx(1 / (1 + seconds))


async def test_the_asynchronous_variant_waits_on_the_loop():
    environment = AsyncBenchmarkEnvironment()
    ready = await environment.reset_async(episode_id="async")
    step = asyncio.create_task(environment.step_async(BenchmarkAction(wait_seconds=0.01)))
    await asyncio.sleep(0)
    assert not step.done()
    seen = [ready, await step, await environment.step_async(BenchmarkAction())]
    assert [observation.step_count for observation in seen] == [0, 1, 2]
    assert [observation.reward for observation in seen] == [None, 1 / 1.01, 1.0]
    assert environment.state == State(episode_id="async", step_count=2)


def test_reset_starts_counting_anew(environment):
    first = environment.state.episode_id
    environment.step(BenchmarkAction())
    assert environment.state.step_count == 1
    ready = environment.reset(seed=1)
    assert (ready.step_count, ready.reward) == (0, None)
    assert environment.state.step_count == 0
    assert environment.state.episode_id not in (None, first)


@pytest.mark.parametrize("seconds", [-1e-9, float("nan"), float("inf"), None, "soon"])
def test_a_wait_is_a_finite_number_of_seconds(seconds):
    with pytest.raises(ValidationError):
        BenchmarkAction(wait_seconds=seconds)


def test_the_self_check_finds_a_step_that_is_not_counted():
    class Forgetful(BenchmarkEnvironment):
        def step(self, action, timeout_s=None, **kwargs):
            seen = super().step(action)
            self._steps = 0
            return seen

    assert set(check(Forgetful())) == {"steps are counted", "state counts too"}


def test_it_plays_over_the_v1_wire(app):
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset"})
        ready = socket.receive_json()["data"]
        socket.send_json({"type": "step", "data": {"wait_seconds": 0.01}})
        seen = socket.receive_json()["data"]
        socket.send_json({"type": "state"})
        assert socket.receive_json()["data"]["step_count"] == 1
    assert set(seen["observation"]) == set(BenchmarkObservation.model_fields) - {"reward", "done"}
    assert seen["observation"]["session_hash"] == ready["observation"]["session_hash"]
    assert (seen["reward"], seen["done"]) == (1 / 1.01, False)


def test_a_negative_wait_is_refused_and_the_session_goes_on(app):
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "step", "data": {"wait_seconds": -1}})
        refusal = socket.receive_json()["data"]
        assert refusal["code"] == "VALIDATION_ERROR"
        assert refusal["errors"][0]["loc"] == ["wait_seconds"]
        socket.send_json({"type": "step", "data": {}})
        assert socket.receive_json()["data"]["observation"]["step_count"] == 1


def test_each_connection_is_a_session_of_its_own(app):
    with (
        TestClient(app) as client,
        client.websocket_connect("/ws") as one,
        client.websocket_connect("/ws") as other,
    ):
        hashes = set()
        for socket in (one, other):
            socket.send_json({"type": "reset"})
            hashes.add(socket.receive_json()["data"]["observation"]["session_hash"])
    assert len(hashes) == 2


async def test_the_client_speaks_its_types(app):
    async with BenchmarkEnv(app=app) as env:
        ready = await env.reset(episode_id="typed")
        result = await env.step(BenchmarkAction())
        assert isinstance(result.observation, BenchmarkObservation)
        assert result.observation.session_hash == ready.observation.session_hash
        assert result.reward == 1.0
        assert await env.state() == State(episode_id="typed", step_count=1)


@pytest.mark.parametrize(("variant", "where"), [("thread", "another"), ("loop", "this"), ("inline", "this")])
async def test_each_variant_runs_where_it_says(monkeypatch, variant, where):
    threads = []

    def observed(self, waited, reward, plain=BenchmarkEnvironment._observe):
        threads.append(threading.get_ident())
        return plain(self, waited, reward)

    monkeypatch.setattr(BenchmarkEnvironment, "_observe", observed)
    async with BenchmarkEnv(app=APPS[variant]) as env:
        await env.step(BenchmarkAction())
    assert (threads == [threading.get_ident()]) == (where == "this")
