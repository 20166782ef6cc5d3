"""Event loops for synchronous code: a shared loop on its own thread, calls on threads, waiting for a coroutine."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ._exceptions import keep_running

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for other threads, in the context of the caller.

    Args:
        name: Name of its thread. The thread is a daemon, so it does not keep the process from ending.
        loop: The event loop; by default a new one, whose default executor also works while the interpreter ends.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None):
        if loop is None:
            loop = asyncio.new_event_loop()
            loop.set_default_executor(_Threads())
        self.loop = loop
        self._thread = threading.Thread(target=_serve, args=(loop,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on this loop. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(call, self.loop)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on this loop and waits for it. An interrupt of the calling thread cancels it."""
        return result_or_cancel(self.submit(call))

    def stop(self) -> None:
        """Ends the thread and closes the loop, without waiting for either."""
        self.loop.call_soon_threadsafe(self.loop.stop)


def result_or_cancel(future: Future[T]) -> T:
    """Waits for the result of a future. An interrupt of the calling thread cancels the future."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        keep_running(loop.run_forever)
    finally:
        loop.close()


class _Threads(ThreadPoolExecutor):
    """Runs each call on a separate thread. A pool refuses calls while the interpreter ends, but host names must still
    be resolved then.
    """

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        return _begin(lambda: call(*arguments, **more))


class _SharedLoop:
    """The one loop of this process; None until it is needed."""

    lock = threading.Lock()
    loop: BackgroundLoop | None = None


def shared_loop() -> BackgroundLoop:
    """The loop of this process for I/O that belongs to no other loop; made on first use.

    User code must not run there: it could wait for a thread that waits for this loop.
    """
    with _SharedLoop.lock:
        if _SharedLoop.loop is None:
            _SharedLoop.loop = BackgroundLoop("openenv-background")
        return _SharedLoop.loop


async def on_shared(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the shared loop, for a caller on any loop; on the shared loop itself, just awaits it.

    Cancelling the caller cancels the coroutine. The caller then waits until it has ended, including its cleanup.
    """
    background = shared_loop()
    if asyncio.get_running_loop() is background.loop:
        return await call
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()
    begun: Future[asyncio.Task[None]] = Future()

    async def run() -> None:
        try:
            outcome.set_result(await call)
        except BaseException as error:  # noqa: BLE001 - for the caller that waits
            outcome.set_exception(error)

    def on_end(_: asyncio.Task[None]) -> None:
        if not outcome.done():  # cancelled before it began
            call.close()
            outcome.set_exception(asyncio.CancelledError())

    def begin() -> None:
        begun.set_result(background.loop.create_task(run()))
        begun.result().add_done_callback(on_end)

    background.loop.call_soon_threadsafe(begin)
    ended = asyncio.wrap_future(outcome)
    try:
        return await shielded(ended)
    except asyncio.CancelledError:
        ended.add_done_callback(retrieve_exception)
        background.loop.call_soon_threadsafe(lambda: begun.result().cancel())
        await asyncio.wait([ended])
        raise


def run_without_loop(call: Coroutine[Any, Any, T], otherwise: str) -> T:
    """Runs a coroutine that never waits, here and now. One that waits raises RuntimeError, with a message."""
    try:
        call.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    call.close()
    raise RuntimeError(otherwise)


async def run_to_completion(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end. A cancelled caller still waits for it, and its failure is not reported."""
    task = start_task(call)
    try:
        return await shielded(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def shielded(future: asyncio.Future[T]) -> T:
    """Waits for a future that a cancelled caller does not cancel.

    `asyncio.shield` reports a failure that comes after the cancellation to the loop, since Python 3.14.
    """
    if not future.done():
        await asyncio.wait([future])
    return future.result()


def start_task(call: Awaitable[T]) -> asyncio.Future[T]:
    """Starts work that continues if its caller is cancelled. A failure that no caller awaits is not reported."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(retrieve_exception)
    return task


async def first_of(*tasks: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    """Waits until the first task ends, and cancels the others. Returns those that were not cancelled."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {task for task in tasks if not task.cancelled()}


def retrieve_exception(work: asyncio.Future[Any]) -> None:
    """Done callback for work that no caller awaits: it keeps asyncio from reporting the failure."""
    if not work.cancelled():
        work.exception()


async def on_thread(
    call: Callable[[], T], abandon: Callable[[], object] | None = None, *, detached: bool = False
) -> T:
    """Runs a long blocking call on a separate thread.

    Args:
        call: The call.
        abandon: Called on another thread if the caller is cancelled.
        detached: Whether the process may end before the call does, for a call that may never return.
    """
    try:
        return await asyncio.wrap_future(_begin(call, detached))
    except asyncio.CancelledError:
        if abandon is not None:
            _begin(abandon)
        raise


def _begin(call: Callable[[], T], detached: bool = False) -> Future[T]:
    """Calls a function on a separate thread, where it continues when its caller is cancelled."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def settle() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - for the caller that waits
            outcome.set_exception(error)

    # Not an executor: it refuses work while the interpreter ends, which is when forgotten servers are stopped.
    try:
        threading.Thread(target=settle, name="openenv-call", daemon=detached).start()
    except RuntimeError:  # since Python 3.12, no thread can start while the interpreter ends
        settle()
    return outcome


class _Presence:
    """Freed at the end of its thread: nothing else references it. A traceback may reference a loop for longer."""


class _Waiter(threading.local):
    """The loops on which this thread waits for coroutines; kept, so that resources opened on one stay valid."""

    def __init__(self) -> None:
        self.presence = _Presence()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.aside: BackgroundLoop | None = None

    def here(self, call: Any) -> Any:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            weakref.finalize(self.presence, _leave, os.getpid(), self.loop, self.loop.close).atexit = False
        task = self.loop.create_task(call)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:  # such as an interrupt: the task must not continue during the next call
            if not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task]))
            raise

    def elsewhere(self, call: Any) -> Any:
        if self.aside is None:
            self.aside = BackgroundLoop(f"{threading.current_thread().name}-beside")
            weakref.finalize(self.presence, _leave, os.getpid(), self.aside.loop, self.aside.stop).atexit = False
        return self.aside.run(call)


def _leave(process: int, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Ends a loop with its thread. A forked child keeps it, since closing it there would break it in the parent."""
    if os.getpid() == process:
        end()
    else:
        _inherited.append(loop)


_waiter = _Waiter()
_inherited: list[asyncio.AbstractEventLoop] = []


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable in synchronous code, on this thread.

    If an event loop runs on this thread, the awaitable runs on another loop that only this thread uses, so the two
    cannot wait for each other. This blocks the running loop; asynchronous code should await instead.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _waiter.here(as_coroutine(awaitable))
    return _waiter.elsewhere(as_coroutine(awaitable))


def run_async_safely(coro: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a new event loop and returns its result, from synchronous code.

    If an event loop runs on this thread, the new one runs on another thread and blocks the running one. `wait_for`
    keeps its loop for the next call; this function closes it, as `asyncio.run` does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coro)
    return _begin(lambda: asyncio.run(coro)).result()


async def as_coroutine(awaitable: Awaitable[Any]) -> Any:
    """Wraps an awaitable of another kind in a coroutine."""
    return await awaitable


def _forget() -> None:
    """After a fork: the threads stayed in the parent, and the lock may have been held."""
    global _waiter  # noqa: PLW0603 - one for each process
    if _SharedLoop.loop is not None:
        _inherited.append(_SharedLoop.loop.loop)
    _SharedLoop.lock = threading.Lock()
    _SharedLoop.loop = None
    _waiter = _Waiter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
