"""Many calls and several endpoints: who gets a call, how many at once, and how many retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openenv.errors import ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from openenv.llm.vendors import openai_address
from openenv.rollouts.endpoints import ModelEndpoint, RetryBudget
from openenv.rollouts.model import Completion, ModelRequest
from openenv.rollouts.vendor_models import OpenAIModel

from ..asynchronous import until
from ..model_server import ModelServer, model_server
from ..ports import held_port


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as served:
        yield served


@pytest.fixture
def other() -> Iterator[ModelServer]:
    with model_server() as served:
        yield served


def made(*urls: str, **settings: Any) -> OpenAIModel:
    return OpenAIModel("echo", urls, **{"backoff_s": 0.0, "timeout_s": 60.0, **settings})


async def ask(model: OpenAIModel, **request: Any) -> Completion:
    return await model.complete(ModelRequest(messages=[{"role": "user", "content": "hello"}], **request))


async def test_calls_share_connections(server):
    model = made(server.url)
    for _ in range(20):
        await ask(model)
    assert (len(server.samples), server.connections) == (20, 1)
    await model.aclose()


async def test_calls_run_at_the_same_time_within_the_limit(server):
    server.latency_s = 0.02
    model = made(server.url, max_requests=8)
    await asyncio.gather(*(ask(model) for _ in range(64)))
    assert server.most_requests == 8
    await model.aclose()


async def test_a_waiting_call_can_be_cancelled(server):
    server.plan("never")
    model = made(server.url, max_requests=1)
    calls = [asyncio.ensure_future(ask(model)) for _ in range(3)]
    await until(lambda: server.open_requests == 1)
    calls[1].cancel()
    calls[0].cancel()
    assert (await calls[2]).message["content"] == "hello"
    assert [call.cancelled() for call in calls] == [True, True, False]
    await model.aclose()


async def test_a_model_that_is_in_use_on_another_event_loop_says_so(server):
    server.plan("never")
    model = made(server.url)
    loops: list[asyncio.AbstractEventLoop] = []

    async def ask_elsewhere() -> None:
        loops.append(asyncio.get_running_loop())
        call = asyncio.ensure_future(ask(model))
        ended.append(call.cancel)
        await asyncio.wait([call])
        await model.aclose()

    ended: list[Callable[[], object]] = []
    elsewhere = asyncio.ensure_future(asyncio.to_thread(asyncio.run, ask_elsewhere()))
    await until(lambda: server.open_requests == 1)
    with pytest.raises(UsageError, match="a model for each loop"):
        await ask(model)
    loops[0].call_soon_threadsafe(ended[0])
    await elsewhere
    assert (await ask(model)).message["content"] == "hello"
    await model.aclose()


async def test_every_call_is_answered_once_although_many_fail(server):
    server.faults = {"429": 0.1, "500": 0.05, "503": 0.05, "half": 0.05, "reset": 0.05}
    model = made(server.url, retries=20)
    keys = [str(number) for number in range(300)]
    completions = await asyncio.gather(*(ask(model, key=key) for key in keys))
    assert len(completions) == 300
    assert sorted(sample.key for sample in server.samples if sample.fault is None) == sorted(keys)
    await model.aclose()


async def test_a_retry_storm_ends_when_its_budget_is_spent(server):
    """64 retries in reserve, and a tenth of the calls."""
    server.faults = {"500": 1.0}
    model = made(server.url, retries=3, retry_share=0.1)
    results = await asyncio.gather(*(ask(model) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(result, ModelUnavailable) for result in results)
    assert server.requests <= 100 + 64 + 10
    await model.aclose()


# Several endpoints


async def test_sessions_are_spread_and_stay_where_they_are(server, other):
    model = made(server.url, other.url)
    sessions = [f"s{number}" for number in range(10)]
    for _ in range(3):
        await asyncio.gather(*(ask(model, session=session, key=session) for session in sessions))
    first, second = ({sample.key for sample in each.samples} for each in (server, other))
    assert len(first) == len(second) == 5
    assert not first & second
    await model.aclose()


async def test_a_call_goes_to_the_endpoint_with_the_least_load(server, other):
    server.plan("never")
    model = made(server.url, other.url)
    stuck = asyncio.ensure_future(ask(model))
    await until(lambda: server.open_requests == 1)
    await ask(model)
    assert len(other.samples) == 1
    stuck.cancel()
    await model.aclose()


async def test_a_dead_endpoint_costs_no_answer(server):
    with held_port() as port:
        model = made(f"http://127.0.0.1:{port}", server.url, backoff_s=0.01)
        await asyncio.gather(*(ask(model, session=f"s{number % 4}") for number in range(16)))
        assert len(server.samples) == 16
        await model.aclose()


async def test_an_endpoint_that_comes_back_gets_calls_again(server, other):
    other.faults = {"reset": 1.0}
    model = made(server.url, other.url, backoff_s=0.01)
    await asyncio.gather(*(ask(model) for _ in range(20)))
    assert len(server.samples) == 20
    other.faults = {}

    async with asyncio.timeout(15):
        while not other.samples:
            await asyncio.gather(ask(model), ask(model))
    await model.aclose()


async def test_when_all_endpoints_are_dead_every_call_is_told():
    with held_port() as port:
        model = made(f"http://127.0.0.1:{port}", backoff_s=0.001, retries=2)
        results = await asyncio.gather(*(ask(model) for _ in range(32)), return_exceptions=True)
        assert {type(result) for result in results} == {ModelUnavailable}
        assert all("is its server running" in str(result) for result in results)
        await model.aclose()


async def test_calls_wait_while_an_endpoint_has_asked_for_a_pause(server):
    server.retry_after = "0.05"
    server.plan("429")
    model = made(server.url, max_requests=2)
    await asyncio.gather(*(ask(model) for _ in range(8)))
    assert len(server.samples) == 8
    await model.aclose()


# How many requests an endpoint bears


@pytest.fixture
def endpoint() -> ModelEndpoint:
    return ModelEndpoint(openai_address("http://h", ""), most=1000, backoff_s=1.0)


def loaded(endpoint: ModelEndpoint) -> ModelEndpoint:
    endpoint.in_flight = int(endpoint.limit)
    return endpoint


BUSY = ModelUnavailable("busy", status=429)


def test_the_limit_grows_while_nothing_speaks_against_it(endpoint):
    begun = endpoint.limit
    for _ in range(10):
        loaded(endpoint).answered()
    assert endpoint.limit == begun + 10


def test_the_limit_does_not_grow_beyond_what_is_used_or_allowed(endpoint):
    begun = endpoint.limit
    endpoint.answered()
    assert endpoint.limit == begun
    endpoint.limit = 1000.0
    loaded(endpoint).answered()
    assert endpoint.limit == 1000.0


@pytest.mark.parametrize("error", [BUSY, ModelUnavailable("full", status=503), ModelTimeout("late")])
def test_congestion_halves_the_limit_once_for_what_was_on_its_way(endpoint, error):
    begun = endpoint.limit
    for _ in range(5):
        endpoint.failed(error, sent_at=1.0, now=2.0)
    assert endpoint.limit == begun / 2
    endpoint.failed(error, sent_at=3.0, now=4.0)
    assert endpoint.limit == begun / 4
    loaded(endpoint).answered()
    assert endpoint.limit == begun / 4 + 1 / (begun / 4)


def test_the_limit_stays_at_least_one(endpoint):
    for second in range(20):
        endpoint.failed(BUSY, sent_at=float(second), now=float(second))
    assert endpoint.limit == 1.0
    assert endpoint.has_room(20.0)


def test_retry_after_closes_an_endpoint(endpoint):
    endpoint.failed(ModelUnavailable("busy", status=429, retry_after_s=5.0), sent_at=0.0, now=1.0)
    assert not endpoint.has_room(5.9)
    assert endpoint.has_room(6.0)


def test_connections_that_fail_in_a_row_close_an_endpoint_for_ever_longer(endpoint):
    gone = ModelUnavailable("gone")
    for _ in range(2):
        endpoint.failed(gone, sent_at=0.0, now=0.0)
    assert endpoint.has_room(0.0)
    now = 0.0
    for pause in (1.0, 2.0, 4.0):
        for _ in range(3):  # two of them were on their way when the first one failed
            endpoint.failed(gone, sent_at=now, now=now + 0.5)
        now += 0.5 + pause
        assert (endpoint.has_room(now - 0.1), endpoint.has_room(now)) == (False, True)
    assert endpoint.failure is gone
    endpoint.answered()
    assert endpoint.failure is None
    assert endpoint.has_room(now)


@pytest.mark.parametrize("error", [ModelFailed("no", status=400), ModelUnavailable("bug", status=500)])
def test_an_endpoint_that_answers_is_neither_congested_nor_gone(endpoint, error):
    begun = endpoint.limit
    for _ in range(10):
        endpoint.failed(error, sent_at=0.0, now=0.0)
    assert (endpoint.limit, endpoint.has_room(0.0)) == (begun, True)


def test_retries_have_a_budget():
    budget, bug = RetryBudget(0.5), ModelUnavailable("bug", status=500)
    assert sum(budget.may_retry(bug) for _ in range(100)) == 64
    for _ in range(10):
        budget.call()
    assert sum(budget.may_retry(bug) for _ in range(100)) == 5
    assert budget.may_retry(ModelUnavailable("gone"))
    assert budget.may_retry(ModelUnavailable("busy", status=429, retry_after_s=1.0))
    assert not budget.may_retry(ModelTimeout("late"))
