from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from openenv._asyncio import (
    BackgroundLoop,
    on_shared,
    on_thread,
    run_async_safely,
    run_to_completion,
    shared_loop,
    wait_for,
)

colour: ContextVar[str] = ContextVar("colour")
PATIENCE_S = 15.0


async def place() -> tuple[Any, Any]:
    await asyncio.sleep(0)
    return threading.current_thread(), asyncio.get_running_loop()


def test_the_shared_loop_is_one():
    assert shared_loop() is shared_loop()
    thread, loop = shared_loop().run(place())
    assert thread is not threading.current_thread()
    assert loop is shared_loop().loop


def test_a_coroutine_sees_the_context_of_those_who_ask():
    async def seen() -> str:
        return colour.get()

    colour.set("blue")
    assert shared_loop().run(seen()) == "blue"
    assert wait_for(seen()) == "blue"


def test_a_cancelled_future_cancels_its_coroutine():
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = shared_loop().submit(wait())
    assert begun.wait(PATIENCE_S)
    future.cancel()
    assert cancelled.wait(PATIENCE_S)


def test_a_stopped_loop_ends_its_thread():
    background = BackgroundLoop("test")
    thread, loop = background.run(place())
    background.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert loop.is_closed()


def test_waiting_is_done_on_the_same_thread_and_loop_each_time():
    thread, loop = wait_for(place())
    assert thread is threading.current_thread()
    assert wait_for(place()) == (thread, loop)


async def test_waiting_beside_a_running_loop_is_done_on_another():
    thread, loop = wait_for(place())
    assert thread is not threading.current_thread()
    assert loop not in (asyncio.get_running_loop(), shared_loop().loop)
    assert wait_for(place()) == (thread, loop)


def test_a_coroutine_is_run_on_a_loop_that_is_closed_after_it():
    thread, loop = run_async_safely(place())
    assert thread is threading.current_thread()
    assert loop.is_closed()


async def test_a_coroutine_is_run_beside_a_running_loop():
    thread, loop = run_async_safely(place())
    assert thread is not threading.current_thread()
    assert loop is not asyncio.get_running_loop()
    assert loop.is_closed()


async def test_the_failure_of_a_coroutine_beside_a_running_loop_is_raised():
    async def fail() -> None:
        raise LookupError("no model")

    with pytest.raises(LookupError, match="no model"):
        run_async_safely(fail())


async def test_waiting_within_waiting_does_not_lock():
    async def nested(depth: int) -> int:
        return wait_for(nested(depth - 1)) + 1 if depth else 0

    assert wait_for(nested(3)) == 3


async def test_what_belongs_to_the_loop_that_is_held_up_is_an_error_and_no_lock():
    with pytest.raises(RuntimeError, match="different loop"):
        wait_for(asyncio.get_running_loop().create_future())


def test_loops_end_with_the_thread_that_waited():
    async def beside() -> Any:
        return wait_for(place())

    loops: list[Any] = []
    threads: list[Any] = []

    def wait() -> None:
        loops.append(wait_for(place())[1])
        thread, loop = wait_for(beside())
        threads.append(thread)
        loops.append(loop)

    own = threading.Thread(target=wait)
    own.start()
    own.join()
    gc.collect()
    threads[0].join(PATIENCE_S)
    assert [loop.is_closed() for loop in loops] == [True, True]


def _ask(answers: Any) -> None:
    answers.put((shared_loop().run(_two()), wait_for(_two())))
    answers.put((shared_loop().run(_where()), wait_for(_where())))


async def _two() -> int:
    await asyncio.sleep(0)
    return 2


async def _where() -> int:
    return id(asyncio.get_running_loop())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_loops_of_its_own():
    assert (shared_loop().run(_two()), wait_for(_two())) == (2, 2)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_ask, args=(answers,))
    child.start()
    child.join(10)
    assert child.exitcode == 0
    assert answers.get() == (2, 2)
    # A loop that both use would have one selector, and each would take the other's events.
    assert not {shared_loop().run(_where()), wait_for(_where())} & set(answers.get())
    assert (shared_loop().run(_two()), wait_for(_two())) == (2, 2)


# From one loop to that of the process.


async def test_on_the_shared_loop_from_another_one():
    thread, loop = await on_shared(place())
    assert loop is shared_loop().loop

    async def nested() -> Any:
        return await on_shared(place())

    assert await on_shared(nested()) == (thread, loop)


async def test_its_failure_is_the_callers():
    async def failing() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await on_shared(failing())


async def test_a_caller_that_gives_up_waits_until_all_is_clean():
    begun, steps = threading.Event(), []

    async def careful() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            steps.append("clean")

    waiting = asyncio.ensure_future(on_shared(careful()))
    await on_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert steps == ["clean"]


async def test_what_was_cancelled_there_is_not_a_failure_unheard():
    async def given_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await on_shared(given_up())


async def test_what_is_cancelled_before_it_has_begun_there_ends():
    held, begun = threading.Event(), []

    async def call() -> None:
        begun.append(1)

    shared_loop().loop.call_soon_threadsafe(held.wait)
    asked = asyncio.ensure_future(on_shared(call()))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.sleep(0)
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert begun == []


async def test_a_caller_who_is_cancelled_twice_leaves_at_once_and_no_failure_is_unheard():
    begun, held, ended = threading.Event(), threading.Event(), threading.Event()

    async def call() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await on_thread(held.wait)
            ended.set()

    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    asked = asyncio.ensure_future(on_shared(call()))
    await on_thread(begun.wait)
    for _ in range(2):
        asked.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asked
    held.set()
    del asked
    await on_thread(ended.wait)
    await on_shared(asyncio.sleep(0))  # the failure is there after a turn of either loop
    await asyncio.sleep(0)
    gc.collect()
    assert unheard == []


async def test_a_caller_who_is_cancelled_waits_for_what_goes_to_its_end():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def call() -> str:
        begun.set()
        await asyncio.sleep(0.01)
        ended.set()
        return "done"

    assert await run_to_completion(call()) == "done"
    begun.clear()
    ended.clear()
    asked = asyncio.ensure_future(run_to_completion(call()))
    await begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert ended.is_set()


async def test_a_failure_after_the_caller_was_cancelled_is_not_reported():
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))

    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_to_completion(failing())
    asked = asyncio.ensure_future(run_to_completion(failing()))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    del asked
    gc.collect()
    assert unheard == []
