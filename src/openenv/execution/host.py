"""Runs the coroutines of one environment, one after the other, without a task for each.

Most steps of an asynchronous environment never wait: they need no turn of the event loop, and a task for
each would cost more than the step. So a coroutine is started at once, under the identity of one task that
the session keeps, and only if it waits does that task take it over. (Python 3.12 calls this eager tasks;
the means, entering and leaving a task by hand, are those that asyncio's documentation gives to those who
write tasks of their own: "Extending asyncio".)
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, NamedTuple

from ..interrupts import from_signal
from .executor import Done

__all__ = ["Host"]


class _Suspended(NamedTuple):
    """A coroutine that waits: for `awaited`, which it has yielded but no task has seen yet.

    `error` is thrown into it when it goes on.
    """

    coroutine: Coroutine[Any, Any, Any]
    awaited: Any
    done: Done
    error: BaseException | None


class Host:
    """One task and one context for all calls of a session, so that what they keep in either lasts.

    A task that was cancelled is not used again: the next call gets a new one, in the same context. Belongs to
    the running event loop.
    """

    __slots__ = ("_context", "_loop", "_started", "_task", "_wake")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._begin()

    def run(self, coroutine: Coroutine[Any, Any, Any], done: Done) -> None:
        """Runs a coroutine; `done` gets its outcome, before this returns if it never waits."""
        if self._task.cancelling() or self._task.done():
            self._begin()
        task = self._task
        try:
            _enter_task(self._loop, task)
        except RuntimeError:
            # The caller is a task (an ASGI endpoint, a client in process): two cannot be entered at a time.
            self._wake.set_result(_Suspended(coroutine, None, done, None))
            return
        error: BaseException | None = None
        result = awaited = None
        waits = False
        try:
            awaited = self._context.run(coroutine.send, None)
            waits = True
        except StopIteration as stop:
            result = stop.value
        except BaseException as failure:  # the edge to foreign code
            if from_signal(failure):
                raise
            error = failure
        finally:
            _leave_task(self._loop, task)
        if task.cancelling():  # it has cancelled the task that it runs in: itself
            error = asyncio.CancelledError()
            self._begin()
        if waits:
            self._wake.set_result(_Suspended(coroutine, awaited, done, error))
        else:
            done(None if error else result, error)

    def cancel(self) -> None:
        """Cancels the running coroutine; its `done` comes all the same."""
        if self._started:
            self._task.cancel()
        else:  # a task cancelled before its first step would never see the call it was given
            self._loop.call_soon(self._task.cancel)

    def close(self) -> None:
        """Ends the task. Nothing may be running."""
        self._task.cancel()

    def _begin(self) -> None:
        self._started = False
        self._wake: asyncio.Future[_Suspended] = self._loop.create_future()
        self._task = self._loop.create_task(self._serve(self._wake), context=self._context)

    async def _serve(self, wake: asyncio.Future[_Suspended]) -> None:
        self._started = True
        task = asyncio.current_task()
        while True:
            error: BaseException | None = None
            try:
                await wake
            except asyncio.CancelledError as cancelled:
                if not wake.done() or wake.cancelled():
                    return
                error = cancelled
            coroutine, awaited, done, thrown = wake.result()
            # The wake-up of the next call: set before `done`, which may make it.
            self._wake = wake = self._loop.create_future()
            if error is not None and awaited is not None and awaited.cancel():
                error = None  # it comes back from there, as it would in any task
            result: Any = None
            failure: BaseException | None
            try:
                result, failure = await _rest(coroutine, awaited, error or thrown)
            except GeneratorExit as raised:
                if not _runs(task):  # the event loop is gone, and this task with it
                    raise
                failure = raised  # of a task that the coroutine waited for
            except BaseException as raised:  # the edge to foreign code
                if from_signal(raised):
                    raise
                failure = raised
            done(result, failure)
            if task is not None and task.cancelling():
                return


def _runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task is the one that runs now."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


@types.coroutine
def _rest(
    coroutine: Coroutine[Any, Any, Any], awaited: Any, error: BaseException | None
) -> Generator[Any, Any, tuple[Any, GeneratorExit | None]]:
    """Continues a coroutine from the `await` at which it stands; `error` is raised there if given.

    Returns:
        Its result, or the `GeneratorExit` that it raised itself: raised from here, that would read as the end of the
        task.
    """
    destroyed = False
    try:
        while True:
            if error is not None:
                failure, error = error, None
                awaited = coroutine.throw(failure)
            try:
                value = yield awaited
            except GeneratorExit:
                destroyed = True
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is for the coroutine
                error = raised
            else:
                awaited = coroutine.send(value)
    except StopIteration as stop:
        return stop.value, None
    except GeneratorExit as failure:
        if destroyed:
            raise
        return None, failure
