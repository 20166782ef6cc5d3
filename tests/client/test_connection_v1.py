"""Protocol v1: each call gets its own reply, whatever became of the calls before it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.client import GenericEnvClient, memory
from openenv.errors import StepFailed, StepTimeout

from ..asynchronous import Gate, until
from ..environments import Gated, Plain
from .environments import Bell, CounterAction, CounterEnv, RingingCounter, app_of, plain_app

ONE = CounterAction(by=1)
SHORT_S = 0.3


@pytest.fixture(autouse=True)
def first_version(monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)


async def test_a_timed_out_call_says_how_long_it_waited():
    gate = Gate()
    env = GenericEnvClient(app=plain_app(partial(Gated, stepping=gate)))
    await env.reset()
    env._message_timeout_s = SHORT_S
    with pytest.raises(StepTimeout, match=r"no reply to step within 0\.3 s \(message_timeout_s\)") as caught:
        await env.step({})
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, RuntimeError)
    assert not caught.value.retryable
    gate.open()
    await env.close()


async def test_a_late_reply_never_reaches_the_next_call():
    bell = Bell()
    env = CounterEnv(app=app_of(partial(RingingCounter, bell)), message_timeout_s=SHORT_S)
    await env.reset()
    with pytest.raises(StepTimeout):
        await env.step(ONE)
    second = asyncio.create_task(env.step(ONE))
    await asyncio.sleep(0)
    bell.waiting[0].set_result(None)
    await until(lambda: len(bell.waiting) == 2)
    assert not second.done()
    bell.waiting[1].set_result(None)
    assert (await second).reward == 2.0
    await env.close()


async def test_a_late_reply_never_reaches_a_call_of_another_kind():
    bell = Bell()
    env = CounterEnv(app=app_of(partial(RingingCounter, bell)), message_timeout_s=SHORT_S)
    await env.reset()
    with pytest.raises(StepTimeout):
        await env.step(ONE)
    state = asyncio.create_task(env.state())
    await asyncio.sleep(0)
    bell.waiting[0].set_result(None)
    assert (await state).step_count == 1
    await env.close()


async def test_a_late_error_is_dropped_too():
    bell = Bell()
    env = CounterEnv(app=app_of(partial(RingingCounter, bell)), message_timeout_s=SHORT_S)
    await env.reset()
    with pytest.raises(StepTimeout):
        await env.step(CounterAction(by=1, mood="bad"))
    state = asyncio.create_task(env.state())
    await asyncio.sleep(0)
    bell.waiting[0].set_result(None)
    assert (await state).step_count == 0
    await env.close()


async def test_the_reply_of_a_cancelled_call_never_reaches_the_next_one():
    bell = Bell()
    async with CounterEnv(app=app_of(partial(RingingCounter, bell))) as env:
        await env.reset()
        first, second = asyncio.create_task(env.step(ONE)), asyncio.create_task(env.step(ONE))
        await until(lambda: len(bell.waiting) == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        bell.waiting[0].set_result(None)
        await until(lambda: len(bell.waiting) == 2)
        assert not second.done()
        bell.waiting[1].set_result(None)
        assert (await second).reward == 2.0


async def test_a_call_cancelled_as_its_reply_arrives():
    """The reply comes between the cancellation and the moment in which the caller hears of it."""
    bell = Bell()
    async with CounterEnv(app=app_of(partial(RingingCounter, bell))) as env:
        await env.reset()
        first = asyncio.create_task(env.step(ONE))
        await until(lambda: len(bell.waiting) == 1)
        bell.waiting[0].set_result(None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(env.step(ONE))
        await until(lambda: len(bell.waiting) == 2)
        bell.waiting[1].set_result(None)
        assert (await second).reward == 2.0


async def test_a_call_cancelled_after_its_reply_arrived():
    async with CounterEnv(app=app_of()) as env:
        await env.reset()
        first = asyncio.create_task(env.step(ONE))
        await asyncio.sleep(0)
        first.cancel()
        assert (await env.step(ONE)).reward == 2.0
        await asyncio.wait([first])


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_whoever_is_still_waiting_gets_the_step_of_its_own(given_up):
    """True: the caller of that step gives up while all of them are queued."""

    async def play():
        bell = Bell()
        async with CounterEnv(app=app_of(partial(RingingCounter, bell))) as env:
            await env.reset()
            steps = [asyncio.create_task(env.step(ONE)) for _ in given_up]
            await until(lambda: len(bell.waiting) == 1)
            for step, lost in zip(steps, given_up, strict=True):
                if lost:
                    step.cancel()
            for number in range(len(steps)):
                await until(lambda number=number: len(bell.waiting) > number)
                bell.waiting[number].set_result(None)
            return await asyncio.gather(*steps, return_exceptions=True)

    for number, (result, lost) in enumerate(zip(asyncio.run(play()), given_up, strict=True), 1):
        assert isinstance(result, asyncio.CancelledError) if lost else result.reward == number


class Overtime(Plain):
    """An environment with deadlines of its own."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def step(self, action, timeout_s=None, **kwargs):
        raise self.error


async def test_a_timeout_that_the_server_reports_is_passed_on_as_it_is():
    async with GenericEnvClient(app=plain_app(partial(Overtime, StepTimeout("the browser is slow")))) as env:
        await env.reset()
        with pytest.raises(StepTimeout, match=r"^the browser is slow$"):
            await env.step({})


async def test_a_timeout_inside_the_environment_is_its_failure():
    async with GenericEnvClient(app=plain_app(partial(Overtime, TimeoutError("30 s")))) as env:
        await env.reset()
        with pytest.raises(StepFailed, match="30 s"):
            await env.step({})


async def test_a_timeout_of_the_caller_is_the_caller_s():
    gate = Gate()
    async with GenericEnvClient(app=plain_app(partial(Gated, stepping=gate))) as env:
        await env.reset()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(SHORT_S):
                await env.step({})
        assert not isinstance(caught.value, StepTimeout)
        gate.open()
        assert (await env.step({})).reward == 2.0


async def test_without_a_timeout_a_call_waits():
    bell = Bell()
    async with CounterEnv(app=app_of(partial(RingingCounter, bell)), message_timeout_s=None) as env:
        await env.reset()
        step = asyncio.create_task(env.step(ONE))
        await until(lambda: len(bell.waiting) == 1)
        bell.waiting[0].set_result(None)
        assert (await step).reward == 1.0
