"""Asynchronous environments: their calls run on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import CoroutineType
from typing import Any

from .executor import Done, Operation, attempt, close, construct
from .host import Host

__all__ = ["LoopExecutor"]


class LoopExecutor:
    """Runs an environment on the event loop; its constructor and `close`, which may block, on a helper thread.

    Args:
        helpers: Threads for constructing and closing.
        environment: One that another executor made; `start` is then not called.
    """

    __slots__ = ("_environment", "_helpers", "_host")

    def __init__(self, helpers: ThreadPoolExecutor, environment: Any = None):
        self._helpers = helpers
        self._environment = environment
        self._host = Host()

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self._help(construct, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        # `attempt`, written out: its call would be a good part of what is added to a step.
        try:
            result = operation(self._environment, argument)
        except (Exception, SystemExit) as error:
            done(None, error)
            return
        if type(result) is CoroutineType:
            self._host.run(result, done)
        else:
            done(result, None)

    def cancel(self) -> None:
        self._host.cancel()

    def close(self, done: Done) -> None:
        self._host.close()
        environment, self._environment = self._environment, None
        self._help(close, environment, done)

    def _help(self, operation: Operation, subject: Any, done: Done) -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._helpers, attempt, operation, subject, None)
        future.add_done_callback(lambda finished: done(*finished.result()))
