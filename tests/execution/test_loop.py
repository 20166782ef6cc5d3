from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from openenv.execution import LoopExecutor, profile_of
from openenv.types import Action

from ..asynchronous import Gate, outcome
from ..environments import AsyncPlain, Diary, Gated

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def helpers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2, thread_name_prefix="test-helper") as pool:
        yield pool


class Sleeper:
    """Its operation begins, and never ends by itself."""

    def __init__(self):
        self.began = asyncio.Event()

    async def operation(self, environment, argument):
        self.began.set()
        await asyncio.Event().wait()


def background(call):
    """A call whose answer is awaited later."""
    return asyncio.ensure_future(outcome(call))


async def test_calls_run_on_the_loop_and_what_may_block_does_not(helpers):
    class AsyncDiary(Diary):
        async def step_async(self, action, **kwargs):
            return self.step(action)

        async def reset_async(self, **kwargs):
            return self.reset()

    notes: list[tuple[str, int]] = []
    executor, profile = LoopExecutor(helpers), profile_of(AsyncDiary)
    await outcome(partial(executor.start, lambda: AsyncDiary(notes)))
    await outcome(partial(executor.submit, profile.reset, {}))
    await outcome(partial(executor.submit, profile.step, Action()))
    await outcome(executor.close)
    here, threads = threading.get_ident(), dict(notes)
    assert (threads["reset"], threads["step"]) == (here, here)
    assert here not in (threads["init"], threads["close"])


async def test_a_constructor_that_blocks_holds_up_nobody(helpers):
    gate = Gate()
    slow, quick = LoopExecutor(helpers), LoopExecutor(helpers)
    making = background(partial(slow.start, lambda: Gated(making=gate)))
    await gate.reached()
    await outcome(partial(quick.start, AsyncPlain))
    assert await outcome(partial(quick.submit, lambda environment, _: 1, None)) == (1, None)
    gate.open()
    environment, error = await making
    assert (type(environment), error) == (Gated, None)
    await outcome(slow.close)
    await outcome(quick.close)


async def test_two_calls_of_two_environments_run_side_by_side(helpers):
    meeting = asyncio.Barrier(2)

    async def meet(environment, argument):
        await meeting.wait()
        return argument

    executors = [LoopExecutor(helpers, AsyncPlain()) for _ in range(2)]
    results = await asyncio.gather(*(outcome(partial(e.submit, meet, n)) for n, e in enumerate(executors)))
    assert results == [(0, None), (1, None)]
    for executor in executors:
        await outcome(executor.close)


async def test_an_environment_that_was_made_elsewhere(helpers):
    environment = AsyncPlain()
    executor = LoopExecutor(helpers, environment)
    assert await outcome(partial(executor.submit, lambda found, _: found, None)) == (environment, None)
    await outcome(executor.close)
    assert environment.closings == 1


async def test_what_needs_no_waiting_is_answered_at_once(helpers):
    executor, answers = LoopExecutor(helpers, AsyncPlain()), []
    executor.submit(lambda environment, argument: argument, 5, lambda *answer: answers.append(answer))
    assert answers == [(5, None)]
    await outcome(executor.close)


async def test_an_awaitable_that_is_no_coroutine_is_awaited_too(helpers):
    """Asynchronous methods compiled by Cython, or handed on to a task, return other awaitables."""

    async def work():
        return "worked"

    executor = LoopExecutor(helpers, AsyncPlain())
    answer = await outcome(partial(executor.submit, lambda environment, _: asyncio.ensure_future(work()), None))
    assert answer == ("worked", None)
    await outcome(executor.close)


class TestCancel:
    async def test_the_call_ends_and_says_so(self, helpers):
        executor, sleeper = LoopExecutor(helpers, AsyncPlain()), Sleeper()
        call = background(partial(executor.submit, sleeper.operation, None))
        await sleeper.began.wait()
        executor.cancel()
        result, error = await call
        assert result is None
        assert isinstance(error, asyncio.CancelledError)
        assert await outcome(partial(executor.submit, lambda environment, _: "next", None)) == ("next", None)
        await outcome(executor.close)

    async def test_a_call_that_has_not_begun_ends_too(self, helpers):
        executor, sleeper, answers = LoopExecutor(helpers, AsyncPlain()), Sleeper(), []
        executor.submit(sleeper.operation, None, lambda *answer: answers.append(answer))
        executor.cancel()
        await outcome(executor.close)
        gc.collect()
        ((result, error),) = answers
        assert result is None
        assert isinstance(error, asyncio.CancelledError)

    async def test_a_call_may_finish_all_the_same(self, helpers):
        began = asyncio.Event()

        async def stubborn(environment, argument):
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "cleaned up"

        executor = LoopExecutor(helpers, AsyncPlain())
        call = background(partial(executor.submit, stubborn, None))
        await began.wait()
        executor.cancel()
        assert await call == ("cleaned up", None)
        await outcome(executor.close)
