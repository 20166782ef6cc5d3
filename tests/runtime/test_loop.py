from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial

import pytest

from openenv.environment import Environment
from openenv.runtime.profile import profile_of
from openenv.types import Action

from ..asynchronous import PATIENCE_S, Gate, outcome, until
from ..environments import AsyncPlain, Diary, Gated
from .executors import loop_executor

pytestmark = pytest.mark.usefixtures("no_threads_left", "loop_factory")

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(params=["task", "callback"])
def enter(request):
    """Calls reach an executor from a task (a client in process) or from a callback (a transport)."""

    def from_callback(call):
        return lambda done: asyncio.get_running_loop().call_soon(call, done)

    return from_callback if request.param == "callback" else lambda call: call


class Sleeper:
    """Its operation begins, and never ends by itself."""

    def __init__(self):
        self.began = asyncio.Event()
        self.ended = False

    async def operation(self, environment, argument):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


def begin(call):
    """A call whose answer is awaited later."""
    return asyncio.ensure_future(outcome(call))


async def works(executor):
    """The next call, one that waits, goes as if nothing had been."""

    async def wait(environment, argument):
        await asyncio.sleep(0)
        return argument

    assert await outcome(partial(executor.submit, wait, "next")) == ("next", None)
    assert await outcome(executor.close) == (None, None)


async def test_calls_run_on_the_loop_and_what_may_block_does_not(helpers, enter):
    class AsyncDiary(Diary):
        async def step_async(self, action, **kwargs):
            return self.step(action)

        async def reset_async(self, **kwargs):
            return self.reset()

    notes: list[tuple[str, int]] = []
    executor, profile = loop_executor(helpers), profile_of(AsyncDiary)
    await outcome(partial(executor.start, lambda: AsyncDiary(notes)))
    await outcome(enter(partial(executor.submit, profile.reset, {})))
    await outcome(enter(partial(executor.submit, profile.step, Action())))
    await outcome(executor.close)
    here, threads = threading.get_ident(), dict(notes)
    assert (threads["reset"], threads["step"]) == (here, here)
    assert here not in (threads["init"], threads["close"])


async def test_a_constructor_that_blocks_holds_up_nobody(helpers):
    gate = Gate()
    slow, quick = loop_executor(helpers), loop_executor(helpers)
    making = begin(partial(slow.start, lambda: Gated(making=gate)))
    await gate.reached()
    await outcome(partial(quick.start, AsyncPlain))
    assert await outcome(partial(quick.submit, lambda environment, _: 1, None)) == (1, None)
    gate.open()
    environment, error = await making
    assert (type(environment), error) == (Gated, None)
    await outcome(slow.close)
    await outcome(quick.close)


async def test_two_calls_of_two_environments_run_side_by_side(helpers, enter):
    meeting = asyncio.Barrier(2)

    async def meet(environment, argument):
        await meeting.wait()
        return argument

    executors = [loop_executor(helpers, AsyncPlain()) for _ in range(2)]
    results = await asyncio.gather(*(outcome(enter(partial(e.submit, meet, n))) for n, e in enumerate(executors)))
    assert results == [(0, None), (1, None)]
    for executor in executors:
        await outcome(executor.close)


async def test_an_environment_that_was_made_elsewhere(helpers):
    environment = AsyncPlain()
    executor = loop_executor(helpers, environment)
    assert await outcome(partial(executor.submit, lambda found, _: found, None)) == (environment, None)
    await outcome(executor.close)
    assert environment.closings == 1


async def test_what_is_no_coroutine_is_answered_at_once(helpers):
    executor, answers = loop_executor(helpers, AsyncPlain()), []
    executor.submit(lambda environment, argument: argument, 5, lambda *answer: answers.append(answer))
    assert answers == [(5, None)]
    await outcome(executor.close)


async def test_an_awaitable_that_is_no_coroutine_is_awaited_too(helpers):
    """Asynchronous methods compiled by Cython, or handed on to a task, return other awaitables."""

    async def work():
        return "worked"

    executor = loop_executor(helpers, AsyncPlain())
    answer = await outcome(partial(executor.submit, lambda environment, _: asyncio.ensure_future(work()), None))
    assert answer == ("worked", None)
    await outcome(executor.close)


async def test_no_task_is_left_after_close(helpers, enter):
    before = asyncio.all_tasks()
    executor = loop_executor(helpers)
    await outcome(partial(executor.start, AsyncPlain))
    await outcome(enter(partial(executor.submit, profile_of(AsyncPlain).step, Action())))
    await outcome(executor.close)
    await until(lambda: asyncio.all_tasks() <= before)


class TestCoroutinesAsInAnyTask:
    """Whatever asyncio gives to a coroutine in a task, it gives to an environment's."""

    async def run(self, helpers, enter, operation, argument=None):
        executor = loop_executor(helpers, AsyncPlain())
        answer = await outcome(enter(partial(executor.submit, operation, argument)))
        await works(executor)
        return answer

    async def test_it_has_one_current_task_from_beginning_to_end(self, helpers, enter):
        async def operation(environment, argument):
            first = asyncio.current_task()
            await asyncio.sleep(0)
            return first, asyncio.current_task()

        (first, second), _ = await self.run(helpers, enter, operation)
        assert first is second is not None
        assert first is not asyncio.current_task()

    async def test_many_waits(self, helpers, enter):
        async def operation(environment, argument):
            for _ in range(argument):
                await asyncio.sleep(0)
            return argument

        assert await self.run(helpers, enter, operation, 50) == (50, None)

    async def test_a_failure_after_waiting(self, helpers, enter):
        failure = LookupError("no")

        async def operation(environment, argument):
            await asyncio.sleep(0)
            raise failure

        assert await self.run(helpers, enter, operation) == (None, failure)

    async def test_a_failure_before_waiting(self, helpers, enter):
        failure = LookupError("no")

        async def operation(environment, argument):
            raise failure

        assert await self.run(helpers, enter, operation) == (None, failure)

    async def test_a_failure_of_what_it_waits_for_can_be_caught(self, helpers, enter):
        async def operation(environment, argument):
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, LookupError("no"))
            try:
                await future
            except LookupError:
                return "caught"

        assert await self.run(helpers, enter, operation) == ("caught", None)

    @pytest.mark.parametrize("seconds", [-1, 0, 0.01])
    async def test_a_timeout(self, helpers, enter, seconds):
        async def operation(environment, argument):
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.Event().wait()
            except TimeoutError:
                await asyncio.sleep(0)
                return "timed out"

        assert await self.run(helpers, enter, operation) == ("timed out", None)

    @pytest.mark.parametrize("seconds", [0, 0.01])
    async def test_wait_for(self, helpers, enter, seconds):
        async def operation(environment, argument):
            try:
                await asyncio.wait_for(asyncio.Event().wait(), seconds)
            except TimeoutError:
                return "timed out"

        assert await self.run(helpers, enter, operation) == ("timed out", None)

    async def test_a_timeout_that_does_not_strike(self, helpers, enter):
        async def operation(environment, argument):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.sleep(0)
            return "in time"

        assert await self.run(helpers, enter, operation) == ("in time", None)

    async def test_a_group_of_tasks(self, helpers, enter):
        async def operation(environment, argument):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
            return [task.result() for task in tasks]

        assert await self.run(helpers, enter, operation) == ([0, 1, 2], None)

    async def test_a_group_of_which_one_fails(self, helpers, enter):
        sleeper = Sleeper()

        async def fail():
            await sleeper.began.wait()
            raise LookupError("no")

        async def operation(environment, argument):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(sleeper.operation(None, None))
                    group.create_task(fail())
            except ExceptionGroup as group:
                return [type(error) for error in group.exceptions]

        assert await self.run(helpers, enter, operation) == ([LookupError], None)
        assert sleeper.ended

    async def test_one_that_cancels_itself(self, helpers, enter):
        async def operation(environment, argument):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        result, error = await self.run(helpers, enter, operation)
        assert result is None
        assert isinstance(error, asyncio.CancelledError)

    async def test_context_variables_last_as_long_as_the_session(self, helpers, enter):
        async def count(environment, argument):
            variable.set(variable.get() + 1)
            await asyncio.sleep(0)
            variable.set(variable.get() + 1)
            return variable.get()

        one, other = loop_executor(helpers, AsyncPlain()), loop_executor(helpers, AsyncPlain())
        for executor, expected in ((one, 2), (other, 2), (one, 4)):
            assert await outcome(enter(partial(executor.submit, count, None))) == (expected, None)
        assert variable.get() == 0
        for executor in (one, other):
            await outcome(executor.close)

    async def test_the_next_call_may_come_from_the_answer(self, helpers, enter):
        """A client that sends ahead: the next step begins where the one before ends."""
        executor, answers, complete = loop_executor(helpers, AsyncPlain()), [], asyncio.Event()

        async def operation(environment, argument):
            if argument % 2:
                await asyncio.sleep(0)
            return argument

        def done(result, error):
            answers.append((result, error))
            if result == 9:
                complete.set()
            else:
                executor.submit(operation, result + 1, done)

        enter(lambda first: executor.submit(operation, 0, first))(done)
        await asyncio.wait_for(complete.wait(), PATIENCE_S)
        assert answers == [(number, None) for number in range(10)]
        await works(executor)

    async def test_closing_from_the_answer(self, helpers, enter):
        environment = AsyncPlain()
        executor, closed = loop_executor(helpers, environment), asyncio.Event()

        async def operation(environment, argument):
            await asyncio.sleep(0)

        enter(partial(executor.submit, operation, None))(
            lambda result, error: executor.close(lambda *_: closed.set())
        )
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        assert environment.closings == 1


class TestCancel:
    async def test_the_call_ends_and_says_so(self, helpers, enter):
        executor, sleeper = loop_executor(helpers, AsyncPlain()), Sleeper()
        call = begin(enter(partial(executor.submit, sleeper.operation, None)))
        await sleeper.began.wait()
        await asyncio.sleep(0)
        executor.cancel()
        result, error = await call
        assert result is None
        assert isinstance(error, asyncio.CancelledError)
        assert sleeper.ended
        await works(executor)

    async def test_a_call_that_was_made_this_instant_ends_too(self, helpers, enter):
        executor, sleeper, answers = loop_executor(helpers, AsyncPlain()), Sleeper(), []

        def submit_and_cancel(done):
            executor.submit(sleeper.operation, None, done)
            executor.cancel()

        enter(submit_and_cancel)(lambda *answer: answers.append(answer))
        await until(lambda: bool(answers))
        ((result, error),) = answers
        assert result is None
        assert isinstance(error, asyncio.CancelledError)
        await works(executor)

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_it_takes_along_what_the_call_waits_for(self, helpers, enter, at_once):
        executor, sleepers = loop_executor(helpers, AsyncPlain()), [Sleeper(), Sleeper()]

        async def operation(environment, argument):
            await asyncio.gather(*(asyncio.ensure_future(sleeper.operation(None, None)) for sleeper in sleepers))

        def submit(done):
            executor.submit(operation, None, done)
            if at_once:
                executor.cancel()

        call = begin(enter(submit))
        if not at_once:
            await sleepers[1].began.wait()
            executor.cancel()
        _, error = await call
        assert isinstance(error, asyncio.CancelledError)
        await until(lambda: all(sleeper.ended or not sleeper.began.is_set() for sleeper in sleepers))
        running = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
        assert Sleeper.operation.__qualname__ not in running
        await works(executor)

    async def test_it_does_not_reach_what_is_shielded(self, helpers, enter):
        executor, inner = loop_executor(helpers, AsyncPlain()), asyncio.get_running_loop().create_future()
        began = asyncio.Event()

        async def operation(environment, argument):
            began.set()
            await asyncio.shield(inner)

        call = begin(enter(partial(executor.submit, operation, None)))
        await began.wait()
        executor.cancel()
        assert isinstance((await call)[1], asyncio.CancelledError)
        assert not inner.done()
        await works(executor)

    async def test_a_call_may_finish_all_the_same(self, helpers, enter):
        began = asyncio.Event()

        async def stubborn(environment, argument):
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                return "cleaned up"

        executor = loop_executor(helpers, AsyncPlain())
        call = begin(enter(partial(executor.submit, stubborn, None)))
        await began.wait()
        await asyncio.sleep(0)
        executor.cancel()
        assert await call == ("cleaned up", None)
        await works(executor)

    async def test_twice_is_as_good_as_once(self, helpers, enter):
        executor, sleeper = loop_executor(helpers, AsyncPlain()), Sleeper()
        call = begin(enter(partial(executor.submit, sleeper.operation, None)))
        await sleeper.began.wait()
        executor.cancel()
        executor.cancel()
        assert isinstance((await call)[1], asyncio.CancelledError)
        await works(executor)

    async def test_it_is_forgotten_with_its_call(self, helpers, enter):
        executor, sleeper = loop_executor(helpers, AsyncPlain()), Sleeper()
        call = begin(enter(partial(executor.submit, sleeper.operation, None)))
        await sleeper.began.wait()
        executor.cancel()
        await call

        async def timed(environment, argument):
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return asyncio.current_task().cancelling()

        assert await outcome(enter(partial(executor.submit, timed, None))) == (0, None)
        await outcome(executor.close)


def test_a_program_can_end_while_a_call_runs(helpers):
    """`asyncio.run` cancels what is there and waits for it: a call that goes on waiting would hang the program."""
    sleeper_ended = []

    async def program():
        sleeper = Sleeper()
        executor = loop_executor(helpers, AsyncPlain())
        executor.submit(sleeper.operation, None, lambda result, error: sleeper_ended.append(error))
        await sleeper.began.wait()

    thread = threading.Thread(target=asyncio.run, args=(program(),), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the program hangs"
    (error,) = sleeper_ended
    assert isinstance(error, asyncio.CancelledError)


async def test_an_environment_without_a_close_of_its_own_needs_no_helper(helpers):
    executor = loop_executor(helpers)
    await outcome(partial(executor.start, AsyncWithoutClose))
    helpers.shutdown()
    assert await outcome(executor.close) == (None, None)


class AsyncWithoutClose(AsyncPlain):
    close = Environment.close


async def test_an_asynchronous_close_runs_on_the_event_loop_to_its_end(helpers):
    loops = []

    class Closing(AsyncPlain):
        async def close(self):
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())

    executor = loop_executor(helpers)
    await outcome(partial(executor.start, Closing))
    assert await outcome(executor.close) == (None, None)
    assert loops == [asyncio.get_running_loop()]


async def test_an_asynchronous_close_that_raises(helpers):
    failure = ValueError("no")

    class Clinging(AsyncPlain):
        async def close(self):
            raise failure

    executor = loop_executor(helpers, Clinging())
    assert await outcome(executor.close) == (None, failure)


async def test_cancelling_a_call_before_it_began_does_not_cancel_the_next(helpers):
    executor = loop_executor(helpers, AsyncPlain())
    first, second = [], asyncio.get_running_loop().create_future()

    async def at_once(environment, argument):
        return "at once"

    async def later(environment, argument):
        for _ in range(5):
            await asyncio.sleep(0)
        return "later"

    def ended(result, error):
        first.append((result, error))
        executor.submit(later, None, lambda result, error: second.set_result((result, error)))

    executor.submit(at_once, None, ended)  # from a task: it begins in the next turn of the loop
    assert executor.stoppable
    executor.cancel()
    assert await asyncio.wait_for(second, PATIENCE_S) == ("later", None)
    ((result, error),) = first
    assert result is None
    assert isinstance(error, asyncio.CancelledError)
    await outcome(executor.close)
