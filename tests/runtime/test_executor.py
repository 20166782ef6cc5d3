"""What every executor promises, tried on each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ..asynchronous import outcome
from .executors import executor_of

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Machine:
    """Nothing but a `close`, which is all that an executor knows of an environment."""

    def __init__(self):
        self.log = []

    def close(self):
        self.log.append("close")


class Fatal(BaseException):
    """What is no `Exception`: a panic in a library written in Rust arrives as such a class."""


@pytest.fixture
def make() -> Iterator[object]:
    """Makes an executor of a kind, on the running loop."""
    helpers = ThreadPoolExecutor(2)

    yield partial(executor_of, helpers=helpers)
    helpers.shutdown()


async def started(executor, factory=Machine):
    machine, error = await outcome(partial(executor.start, factory))
    assert error is None
    return machine


async def submitted(executor, operation, argument=None):
    return await outcome(partial(executor.submit, operation, argument))


def raising(error):
    def operation(environment, argument):
        raise error

    return operation


@pytest.mark.parametrize("kind", ["inline", "loop", "thread"])
class TestExecutor:
    async def test_the_environment_is_handed_to_every_operation(self, make, kind):
        executor = make(kind)
        machine = await started(executor)
        assert type(machine) is Machine
        for number in range(3):
            result, error = await submitted(executor, lambda environment, argument: (environment, argument), number)
            assert (result, error) == ((machine, number), None)
        assert await outcome(executor.close) == (None, None)
        assert machine.log == ["close"]

    @pytest.mark.parametrize(
        "failure",
        [ValueError("no"), SystemExit(3), Fatal("panic"), asyncio.CancelledError()],
        ids=lambda e: type(e).__name__,
    )
    async def test_an_operation_that_raises(self, make, kind, failure):
        executor = make(kind)
        machine = await started(executor)
        assert await submitted(executor, raising(failure)) == (None, failure)
        assert await submitted(executor, lambda environment, argument: "still there") == ("still there", None)
        assert await outcome(executor.close) == (None, None)
        assert machine.log == ["close"]

    @pytest.mark.parametrize(
        "failure", [ValueError("no"), SystemExit(3), Fatal("panic")], ids=lambda e: type(e).__name__
    )
    async def test_a_constructor_that_raises(self, make, kind, failure):
        executor = make(kind)

        def factory():
            raise failure

        assert await outcome(partial(executor.start, factory)) == (None, failure)
        assert await outcome(executor.close) == (None, None)

    @pytest.mark.parametrize("failure", [ValueError("no"), SystemExit(3)], ids=lambda e: type(e).__name__)
    async def test_a_close_that_raises(self, make, kind, failure):
        class Clinging(Machine):
            def close(self):
                raise failure

        executor = make(kind)
        await started(executor, Clinging)
        assert await outcome(executor.close) == (None, failure)

    @pytest.mark.parametrize("failure", [None, ValueError("no")], ids=lambda e: type(e).__name__)
    async def test_an_asynchronous_close_is_awaited(self, make, kind, failure):
        noted = []

        class Closing(Machine):
            async def close(self):
                await asyncio.sleep(0)
                noted.append(failure)
                if failure is not None:
                    raise failure

        executor = make(kind)
        await started(executor, Closing)
        assert await outcome(executor.close) == (None, failure)
        assert noted == [failure]

    async def test_an_environment_without_a_close(self, make, kind):
        executor = make(kind)
        await started(executor, dict)
        assert await outcome(executor.close) == (None, None)

    async def test_cancelling_when_nothing_runs_changes_nothing(self, make, kind):
        executor = make(kind)
        await started(executor)
        executor.cancel()
        assert await submitted(executor, lambda environment, argument: 1) == (1, None)
        executor.cancel()
        assert await submitted(executor, lambda environment, argument: 2) == (2, None)
        await outcome(executor.close)

    async def test_a_result_may_be_an_exception(self, make, kind):
        executor = make(kind)
        await started(executor)
        failure = ValueError("a value like any other")
        assert await submitted(executor, lambda environment, argument: failure) == (failure, None)
        await outcome(executor.close)

    async def test_answers_come_on_the_loop(self, make, kind):
        executor = make(kind)
        loop = asyncio.get_running_loop()
        heard = loop.create_future()

        def done(result, error):
            heard.set_result(asyncio.get_running_loop())

        executor.start(Machine, done)
        assert await heard is loop
        await outcome(executor.close)


EXITS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


class TestExitsOfAnEnvironment:
    """Code that a model wrote raises what would end a process, or a task: it is a failure of the environment."""

    @pytest.mark.parametrize("kind", ["inline", "loop", "thread"])
    @pytest.mark.parametrize("exit_", EXITS)
    async def test_in_an_operation(self, make, kind, exit_):
        executor = make(kind)
        await started(executor)
        _, error = await submitted(executor, raising(exit_()))
        assert isinstance(error, exit_)
        assert await submitted(executor, lambda environment, argument: "still there") == ("still there", None)
        await outcome(executor.close)

    @pytest.mark.parametrize("kind", ["loop", "thread"])
    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("exit_", EXITS)
    async def test_in_a_coroutine(self, make, kind, waits, exit_):
        async def operation(environment, argument):
            if waits:
                await asyncio.sleep(0)
            raise exit_

        executor = make(kind)
        await started(executor)
        _, error = await submitted(executor, operation)
        assert isinstance(error, exit_)
        assert await submitted(executor, lambda environment, argument: "still there") == ("still there", None)
        await outcome(executor.close)

    @pytest.mark.parametrize("exit_", [GeneratorExit, asyncio.CancelledError])
    async def test_in_a_task_that_a_coroutine_waits_for(self, make, exit_):
        async def leave():
            raise exit_

        async def operation(environment, argument):
            await asyncio.ensure_future(leave())

        executor = make("loop")
        await started(executor)
        _, error = await submitted(executor, operation)
        assert isinstance(error, exit_)
        assert await submitted(executor, lambda environment, argument: "still there") == ("still there", None)
        await outcome(executor.close)

    @pytest.mark.parametrize("kind", ["inline", "loop"])
    async def test_a_signal_during_an_operation_on_the_loop_is_for_the_process(self, make, kind):
        def handler(number, frame):
            raise KeyboardInterrupt

        executor, answers = make(kind), []
        await started(executor)
        before = signal.signal(signal.SIGINT, handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                executor.submit(
                    lambda environment, _: signal.raise_signal(signal.SIGINT), None, lambda *it: answers.append(it)
                )
        finally:
            signal.signal(signal.SIGINT, before)
        assert answers == []
        await outcome(executor.close)

    @pytest.mark.parametrize("kind", ["loop", "thread"])
    async def test_in_a_constructor(self, make, kind):
        def factory():
            raise KeyboardInterrupt

        executor = make(kind)
        _, error = await outcome(partial(executor.start, factory))
        assert isinstance(error, KeyboardInterrupt)
        assert await outcome(executor.close) == (None, None)


@pytest.mark.parametrize("kind", ["loop", "thread"])
class TestCoroutines:
    async def test_the_result_is_awaited(self, make, kind):
        async def operation(environment, argument):
            await asyncio.sleep(0)
            return argument

        executor = make(kind)
        await started(executor)
        assert await submitted(executor, operation, 1) == (1, None)
        assert await submitted(executor, operation, 2) == (2, None)
        await outcome(executor.close)

    @pytest.mark.parametrize(
        "failure", [ValueError("no"), SystemExit(3), Fatal("panic")], ids=lambda e: type(e).__name__
    )
    async def test_one_that_raises(self, make, kind, failure):
        async def operation(environment, argument):
            await asyncio.sleep(0)
            raise failure

        executor = make(kind)
        await started(executor)
        assert await submitted(executor, operation) == (None, failure)
        assert await submitted(executor, lambda environment, argument: 1) == (1, None)
        await outcome(executor.close)
