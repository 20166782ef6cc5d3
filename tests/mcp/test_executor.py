from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time

import pytest

from openenv.mcp.executor import MOST_LEFT, ToolDeadlineExceeded, ToolExecutor

from ..server.wires import eventually

LATE_S = 0.03
LONG_S = 20.0

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def bench():
    bench = ToolExecutor()
    yield bench
    bench.close()


def test_nothing_is_there_before_it_is_needed():
    before = set(threading.enumerate())  # some that are left of other tests may end meanwhile
    ToolExecutor().close()
    assert set(threading.enumerate()) <= before


def test_jobs_give_results_and_raise_what_they_raise(bench):
    assert bench.run(lambda: 5, LONG_S) == 5
    with pytest.raises(KeyError):
        bench.run(lambda: {}["a"], LONG_S)
    with pytest.raises(SystemExit):
        bench.run(lambda: exec("raise SystemExit(3)"), LONG_S)
    assert bench.run(lambda: 6, LONG_S) == 6

    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 7

    assert bench.run_coroutine(coroutine, LONG_S) == 7


async def test_so_they_do_for_whoever_awaits(bench):
    assert await bench.run_async(lambda: 5, LONG_S) == 5
    with pytest.raises(TimeoutError):
        await bench.run_async(lambda: exec("raise TimeoutError()"), LONG_S)


def test_a_job_knows_the_context_of_its_caller(bench):
    word = contextvars.ContextVar("word", default="none")
    word.set("mine")
    assert bench.run(word.get, LONG_S) == "mine"


def test_a_thread_that_is_late_is_left_to_its_job(bench):
    gate = threading.Event()
    with pytest.raises(ToolDeadlineExceeded):
        bench.run(gate.wait, LATE_S)
    assert bench.run(lambda: 5, LONG_S) == 5
    gate.set()


def test_threads_that_were_left_have_a_limit(bench):
    gate, begun = threading.Event(), []

    def hang() -> None:
        begun.append(1)
        gate.wait(LONG_S)

    async def block() -> None:
        hang()

    with pytest.raises(RuntimeError, match="each holds a thread"):
        for turn in range(10 * MOST_LEFT):  # a thread that has not begun in time is none that hangs
            with pytest.raises(ToolDeadlineExceeded):
                if turn % 8:
                    bench.run(hang, LATE_S)
                else:
                    bench.run_coroutine(block, LATE_S)
            eventually(lambda: len(begun) == sum(each.is_alive() for each in bench._left))
    assert len(begun) == MOST_LEFT
    gate.set()
    eventually(lambda: attempt(bench))


def attempt(bench: ToolExecutor) -> bool:
    try:
        return bench.run(lambda: True, LONG_S)
    except RuntimeError:
        return False


async def test_a_job_that_waits_behind_a_late_one_is_not_begun_when_nobody_wants_it(bench):
    gate, begun = threading.Event(), []
    first = asyncio.ensure_future(bench.run_async(lambda: gate.wait(LONG_S), LONG_S))
    await asyncio.sleep(0)
    with pytest.raises(ToolDeadlineExceeded):
        await bench.run_async(lambda: begun.append(1), LATE_S)
    gate.set()
    assert await first
    assert begun == []


def test_a_coroutine_that_is_late_is_cancelled(bench):
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def nothing() -> None:
        pass

    bench.run_coroutine(nothing, LONG_S)  # the loop turns
    limit = time.monotonic() + LONG_S
    while not begun.is_set():  # one that has not begun in time never does
        assert time.monotonic() < limit
        with pytest.raises(ToolDeadlineExceeded):
            bench.run_coroutine(wait, LATE_S)
    assert ended.wait(LONG_S)


def test_a_loop_that_is_blocked_is_left(bench):
    gate = threading.Event()

    async def block() -> None:
        gate.wait(LONG_S)

    async def quick() -> int:
        return 3

    with pytest.raises(ToolDeadlineExceeded):
        bench.run_coroutine(block, LATE_S)
    assert bench.run_coroutine(quick, LONG_S) == 3
    gate.set()


def test_what_runs_here_may_run_more_here(bench):
    assert bench.run(lambda: bench.run(lambda: bench.run(lambda: 1, LONG_S), LONG_S), LONG_S) == 1

    async def outer() -> int:
        return int(bench.run_coroutine(inner, LONG_S)) + int(await bench.run_async(lambda: 2, LONG_S))

    async def inner() -> int:
        return 1

    assert bench.run_coroutine(outer, LONG_S) == 3


def test_two_that_ask_each_other_do_not_wait_for_each_other(bench):
    other = ToolExecutor()
    assert (
        bench.run(lambda: other.run(lambda: bench.run(lambda: other.run(int, LONG_S), LONG_S), LONG_S), LONG_S) == 0
    )
    other.close()


def test_a_background_task_goes_on_between_calls(bench):
    done = threading.Event()

    async def begin() -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            done.set()

        tasks.append(asyncio.create_task(later()))

    tasks: list[asyncio.Task] = []
    bench.run_coroutine(begin, LONG_S)
    assert done.wait(LONG_S)


def test_one_that_is_forgotten_ends_its_threads():
    bench = ToolExecutor()
    bench.run(int, LONG_S)

    async def nothing() -> None:
        pass

    bench.run_coroutine(nothing, LONG_S)
    del bench
    gc.collect()


def test_the_loop_of_whoever_waited_may_be_gone(bench):
    gate = threading.Event()

    async def leave() -> None:
        task = asyncio.ensure_future(bench.run_async(lambda: gate.wait(LONG_S), LONG_S))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    gate.set()
    assert bench.run(lambda: 5, LONG_S) == 5
