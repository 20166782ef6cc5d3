"""Asynchronous environments: their calls run on the event loop."""

from __future__ import annotations

import contextlib
import inspect
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from types import CoroutineType
from typing import Any

from ..interrupts import from_signal
from .executor import Done, Operation, attempt, close, construct, has_close
from .host import Host
from .mailbox import Mailbox

__all__ = ["LoopExecutor"]


class LoopExecutor:
    """Runs an environment on the event loop; its constructor and `close`, which may block, on a helper thread.

    Args:
        mailbox: The way back from the helpers.
        helpers: Gives the threads for constructing and closing; one of them at least is running.
        environment: One that another executor made; `start` is then not called.
    """

    stoppable = True
    __slots__ = ("_environment", "_helped", "_helpers", "_host", "_mailbox")

    def __init__(self, mailbox: Mailbox, helpers: Callable[[], ThreadPoolExecutor], environment: Any = None):
        self._mailbox = mailbox
        self._helpers = helpers
        self._environment = environment
        self._host = Host()
        # What a helper does now, and who hears of it.
        self._helped: tuple[Future[None], Done] | None = None

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self._have_helped(construct, None, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        # `attempt`, written out: its call would be a good part of what is added to a step.
        try:
            result = operation(self._environment, argument)
        except BaseException as error:  # the edge to foreign code
            if from_signal(error):
                raise
            done(None, error)
            return
        if type(result) is CoroutineType:
            self._host.run(result, done)
        elif inspect.isawaitable(result):
            self._host.run(_awaited(result), done)
        else:
            done(result, None)

    @property
    def uses_helper(self) -> bool:
        """Whether a helper constructs or closes its environment now."""
        return self._helped is not None and self._helped[0].running()

    def cancel(self) -> bool:
        if self._helped is not None and self._helped[0].cancel():  # it waited for a helper
            self._mailbox.post(self._helped[1], None, CancelledError())
        self._host.cancel()
        return True

    def close(self, done: Done) -> None:
        def called(ending: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
            if ending is None:
                ended(None, error)
            else:
                self._host.run(ending, ended)

        def ended(_: Any, error: BaseException | None) -> None:
            self._host.close()
            done(None, error)

        environment, self._environment = self._environment, None
        if has_close(environment):
            self._have_helped(close, environment, None, called)
        else:
            ended(None, None)

    def _have_helped(self, operation: Operation, environment: Any, argument: Any, done: Done) -> None:
        def heard(result: Any, error: BaseException | None) -> None:
            self._helped = None  # a circle, which would wait for the garbage collector
            done(result, error)

        self._mailbox.pace.begin()
        try:
            helpers = self._helpers()
        except RuntimeError as trouble:  # the machine has no thread to give
            self._mailbox.post(done, None, trouble)
            return
        # The machine has no further thread to give: it waits for one of those there are.
        with contextlib.suppress(RuntimeError):
            future = helpers.submit(self._help, operation, environment, argument, heard)
            self._helped = (future, heard)

    def _help(self, operation: Operation, environment: Any, argument: Any, done: Done) -> None:
        self._mailbox.post(done, *attempt(operation, environment, argument))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
