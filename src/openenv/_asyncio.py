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
    """Runs coroutines for other threads, in the context of those who ask.

    Args:
        name: Name of its thread, which is a daemon: it keeps no process from ending.
    """

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Threads())
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Has a coroutine run there. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(call, self.loop)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it; an interrupt of this thread cancels it."""
        future = self.submit(call)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread and closes the loop, without waiting for either."""
        self.loop.call_soon_threadsafe(self.loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        keep_running(loop.run_forever)
    finally:
        loop.close()


class _Threads(ThreadPoolExecutor):
    """Runs each call on a thread of its own: a pool refuses them when the interpreter ends, and then, too, host names
    have to be looked up.
    """

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()  # it goes on when no caller waits any more
        _begin(outcome, lambda: call(*arguments, **more))
        return outcome


class _SharedLoop:
    """What this process has: one loop, or none yet."""

    lock = threading.Lock()
    loop: BackgroundLoop | None = None


def shared_loop() -> BackgroundLoop:
    """The loop of this process for input and output that belongs to no other loop; made when first asked for.

    No code of users may run there: it could wait for a thread that waits for this loop.
    """
    with _SharedLoop.lock:
        if _SharedLoop.loop is None:
            _SharedLoop.loop = BackgroundLoop("openenv-background")
        return _SharedLoop.loop


async def on_shared(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of this process, for a caller on any other; awaited there, it just runs.

    A caller who is cancelled has the coroutine cancelled, and waits until it has really ended, cleaning up included.
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
        if not outcome.done():  # cancelled before it had begun
            call.close()
            outcome.set_exception(asyncio.CancelledError())

    def begin() -> None:
        begun.set_result(background.loop.create_task(run()))
        begun.result().add_done_callback(on_end)

    background.loop.call_soon_threadsafe(begin)
    ended = asyncio.wrap_future(outcome)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        ended.add_done_callback(retrieve_exception)
        background.loop.call_soon_threadsafe(lambda: begun.result().cancel())
        await asyncio.wait([ended])
        raise


async def run_to_completion(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end: a caller who is cancelled waits for that, and hears of no failure."""
    task = start_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def start_task(call: Awaitable[T]) -> asyncio.Future[T]:
    """Starts work that goes on when its caller is cancelled; its failure is no news when nothing awaits it then."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(retrieve_exception)
    return task


async def first_of(*tasks: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    """Waits until one of some tasks ends, and cancels the others. Returns those that were not cancelled."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {task for task in tasks if not task.cancelled()}


def retrieve_exception(work: asyncio.Future[Any]) -> None:
    """Done callback of work that no caller waits for any more: asyncio then does not report its failure."""
    if not work.cancelled():
        work.exception()


async def on_thread(
    call: Callable[[], T], abandon: Callable[[], object] | None = None, *, detached: bool = False
) -> T:
    """Runs a call that blocks for long on a thread of its own.

    Args:
        call: The call.
        abandon: What to do, on another thread, when the caller does not wait for it any more.
        detached: Whether the process may end before the call does, which may be never.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # it goes on when no caller waits any more
    # No executor: those refuse work when the interpreter ends, which is when forgotten servers are stopped.
    _begin(outcome, call, detached)
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        if abandon is not None:
            _begin(Future(), abandon)
        raise


def _begin(outcome: Future[Any], call: Callable[[], Any], detached: bool = False) -> None:
    try:
        threading.Thread(target=_settle, args=(outcome, call), name="openenv-call", daemon=detached).start()
    except RuntimeError:  # since Python 3.12, none starts when the interpreter ends
        _settle(outcome, call)


def _settle(outcome: Future[Any], call: Callable[[], Any]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 - for the caller that waits
        outcome.set_exception(error)


class _Presence:
    """Goes with its thread: nothing else holds it, as the traceback of an error may hold a loop."""


class _Waiter(threading.local):
    """How this thread waits for coroutines. Its loops stay: what was opened on one is still good next time."""

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
        except BaseException:  # an interrupt, perhaps: nothing may be left to go on during the next call
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
    """Ends a loop with the thread that it served. A forked child keeps it: closing it takes it from the parent."""
    if os.getpid() == process:
        end()
    else:
        _inherited.append(loop)


_waiter = _Waiter()
_inherited: list[asyncio.AbstractEventLoop] = []


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable in synchronous code, on this thread.

    Where an event loop runs on this thread, it is waited for on another one, which belongs to this thread alone: so
    neither can be waiting for the other. The loop stands still meanwhile; asynchronous code awaits instead.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _waiter.here(_await(awaitable))
    return _waiter.elsewhere(_await(awaitable))


def run_async_safely(coro: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a new event loop and returns its result, from synchronous code.

    Where an event loop runs on this thread, the new one runs on another thread and the running one stands still until
    then. `wait_for` keeps its loop for the next call; this closes it, as `asyncio.run` does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coro)
    outcome: Future[T] = Future()
    _begin(outcome, lambda: asyncio.run(coro))
    return outcome.result()


async def _await(awaitable: Awaitable[Any]) -> Any:
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
