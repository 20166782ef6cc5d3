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

from .executor import Done

__all__ = ["Host"]

_FAILURES = (Exception, asyncio.CancelledError, SystemExit)


class _Suspended(NamedTuple):
    """A coroutine that waits: for `awaited`, which it has yielded but no task has seen yet."""

    coroutine: Coroutine[Any, Any, Any]
    awaited: Any
    done: Done


class Host:
    """One task and one context for all calls of a session, so that what they keep in either lasts.

    Belongs to the running event loop.
    """

    __slots__ = ("_context", "_loop", "_suspended", "_task", "_wake")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._suspended: _Suspended | None = None
        self._wake: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._serve(), context=self._context)

    def run(self, coroutine: Coroutine[Any, Any, Any], done: Done) -> None:
        """Runs a coroutine; `done` gets its outcome, before this returns if it never waits."""
        if asyncio.current_task() is not None:
            # The caller is a task (an ASGI endpoint, a client in process): two cannot be entered at a time.
            self._suspend(_Suspended(coroutine, None, done))
            return
        _enter_task(self._loop, self._task)
        try:
            awaited = self._context.run(coroutine.send, None)
        except StopIteration as stop:
            result, error = stop.value, None
        except _FAILURES as failure:  # noqa: BLE001 - the edge to foreign code
            result, error = None, failure
        else:
            self._suspend(_Suspended(coroutine, awaited, done))
            return
        finally:
            _leave_task(self._loop, self._task)
        done(result, error)

    def cancel(self) -> None:
        """Cancels the running coroutine; its `done` comes all the same."""
        self._task.cancel()

    def close(self) -> None:
        """Ends the task. Nothing may be running."""
        self._task.cancel()

    def _suspend(self, suspended: _Suspended) -> None:
        self._suspended = suspended
        self._wake.set_result(None)

    async def _serve(self) -> None:
        while True:
            cancelled: asyncio.CancelledError | None = None
            try:
                await self._wake
            except asyncio.CancelledError as error:
                if self._suspended is None:
                    return
                cancelled = error
            assert self._suspended is not None
            (coroutine, awaited, done), self._suspended = self._suspended, None
            self._wake = self._loop.create_future()
            try:
                result = await _rest(coroutine, awaited, cancelled)
            except _FAILURES as failure:  # noqa: BLE001 - the edge to foreign code
                self._forget_cancellation()
                done(None, failure)
            else:
                self._forget_cancellation()
                done(result, None)

    def _forget_cancellation(self) -> None:
        """The call is over and with it every wish to cancel it; the next one starts afresh."""
        while self._task.cancelling():
            self._task.uncancel()


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], awaited: Any, error: BaseException | None) -> Generator[Any, Any, Any]:
    """What a coroutine does after the `await` at which it stands; `error` is raised there if given."""
    try:
        while True:
            if error is not None:
                failure, error = error, None
                awaited = coroutine.throw(failure)
            try:
                value = yield awaited
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is for the coroutine
                error = raised
            else:
                awaited = coroutine.send(value)
    except StopIteration as stop:
        return stop.value
