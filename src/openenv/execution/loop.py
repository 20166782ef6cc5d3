"""Asynchronous environments: their calls are tasks of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import CoroutineType
from typing import Any

from .executor import Done, Operation, attempt, close, construct

__all__ = ["LoopExecutor"]


class LoopExecutor:
    """Runs an environment on the event loop; its constructor and `close`, which may block, on a helper thread.

    Args:
        helpers: Threads for constructing and closing.
        environment: One that another executor made; `start` is then not called.
    """

    __slots__ = ("_environment", "_helpers", "_loop", "_task")

    def __init__(self, helpers: ThreadPoolExecutor, environment: Any = None):
        self._helpers = helpers
        self._loop = asyncio.get_running_loop()
        self._environment = environment
        self._task: asyncio.Task[Any] | None = None

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self._help(construct, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        result, error = attempt(operation, self._environment, argument)
        if error is not None or type(result) is not CoroutineType:
            done(result, error)
            return
        self._task = self._loop.create_task(_attempt_async(result, done))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def close(self, done: Done) -> None:
        environment, self._environment = self._environment, None
        self._help(close, environment, done)

    def _help(self, operation: Operation, subject: Any, done: Done) -> None:
        future = self._loop.run_in_executor(self._helpers, attempt, operation, subject, None)
        future.add_done_callback(lambda finished: done(*finished.result()))


async def _attempt_async(call: Coroutine[Any, Any, Any], done: Done) -> None:
    try:
        result = await call
    except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001 - the edge to foreign code
        done(None, error)
    else:
        done(result, None)
