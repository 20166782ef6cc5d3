"""Executors on the event loop: inline for synchronous environments, eager tasks for asynchronous ones."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import CoroutineType, coroutine
from typing import Any, NamedTuple

from .._asyncio import as_coroutine
from .._exceptions import from_signal
from .executor import Done, Operation, attempt, close, construct, has_close, step
from .thread import Mailbox


class _Suspended(NamedTuple):
    """A coroutine that waits for `awaited`: it has yielded this object, and no task has received it yet.

    `error` is thrown into the coroutine when it continues.
    """

    coroutine: Coroutine[Any, Any, Any]
    awaited: Any
    done: Done
    error: BaseException | None


class EagerTask:
    """One task and one context for all calls of a session, so that state in either persists between calls.

    A cancelled task is not used again: the next call gets a new task, in the same context. Belongs to the running
    event loop.
    """

    __slots__ = ("_context", "_loop", "_started", "_task", "_wake")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._begin()

    def run(self, coroutine: Coroutine[Any, Any, Any], done: Done) -> None:
        """Runs a coroutine. `done` gets its outcome, before this returns if the coroutine never waits."""
        if self._task.cancelling() or self._task.done():
            self._begin()
        task = self._task
        try:
            _enter_task(self._loop, task)
        except RuntimeError:
            # The caller is a task (an ASGI endpoint, a client in process), and tasks cannot be nested.
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
        if task.cancelling():  # the coroutine has cancelled its own task
            error = asyncio.CancelledError()
            self._begin()
        if waits:
            self._wake.set_result(_Suspended(coroutine, awaited, done, error))
        else:
            done(None if error else result, error)

    def cancel(self) -> None:
        """Cancels the running coroutine. Its `done` is still called."""
        if self._started:
            self._task.cancel()
        else:  # a task cancelled before its first step would never run the call
            self._loop.call_soon(self._task.cancel)

    def close(self) -> None:
        """Ends the task. No coroutine may be running."""
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
            # The event that starts the next call, set before `done`, which may make that call.
            self._wake = wake = self._loop.create_future()
            if error is not None and awaited is not None and awaited.cancel():
                error = None  # the coroutine raises it again, as in any task
            result: Any = None
            failure: BaseException | None
            try:
                result, failure = await _rest(coroutine, awaited, error or thrown)
            except GeneratorExit as raised:
                if not _runs(task):  # the event loop has ended, and this task with it
                    raise
                failure = raised  # the error of a task that the coroutine awaited
            except BaseException as raised:  # the edge to foreign code
                if from_signal(raised):
                    raise
                failure = raised
            done(result, failure)
            if task is not None and task.cancelling():
                return


def _runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task is the current one."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


@coroutine
def _rest(
    coroutine: Coroutine[Any, Any, Any], awaited: Any, error: BaseException | None
) -> Generator[Any, Any, tuple[Any, GeneratorExit | None]]:
    """Continues a coroutine from the `await` at which it is suspended. Raises `error` there if given.

    Returns:
        Its result, or a `GeneratorExit` that it raised itself. Raised from here, that would look like the end of the
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
            except BaseException as raised:  # noqa: BLE001 - every error belongs to the coroutine
                error = raised
            else:
                awaited = coroutine.send(value)
    except StopIteration as stop:
        return stop.value, None
    except GeneratorExit as failure:
        if destroyed:
            raise
        return None, failure


class InlineExecutor:
    """Runs an environment on the event loop. A step that blocks stops every session.

    Args:
        environment: An environment that another executor made; then `start` is not called.
    """

    stoppable = True
    __slots__ = ("_environment",)

    def __init__(self, environment: Any = None):
        self._environment = environment

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self.submit(construct, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        try:
            environment = self._environment
            # `step`, written out: this is the path of every step.
            result = environment.step(argument) if operation is step else operation(environment, argument)
        except BaseException as error:  # the edge to foreign code
            if from_signal(error):
                raise
            done(None, error)
        else:
            done(result, None)

    def cancel(self) -> None:
        """No operation is running whenever this can be called."""

    def close(self, done: Done) -> None:
        def called(ending: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
            if ending is None:
                done(None, error)
                return
            task = EagerTask()

            def ended(_: Any, error: BaseException | None) -> None:
                task.close()
                done(None, error)

            task.run(ending, ended)

        self.submit(close, None, called)
        self._environment = None


class LoopExecutor:
    """Runs an environment on the event loop, but its constructor and `close`, which may block, on a helper thread.

    Args:
        mailbox: Brings results back from the helpers.
        helpers: The threads for constructing and closing; at least one of them runs.
        environment: An environment that another executor made; then `start` is not called.
    """

    stoppable = True
    __slots__ = ("_environment", "_helped", "_helpers", "_mailbox", "_task")

    def __init__(self, mailbox: Mailbox, helpers: Callable[[], ThreadPoolExecutor], environment: Any = None):
        self._mailbox = mailbox
        self._helpers = helpers
        self._environment = environment
        self._task = EagerTask()
        # The operation that a helper runs now, and the callback for its outcome.
        self._helped: tuple[Future[None], Done] | None = None

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self._run_on_helper(construct, None, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        # `attempt`, written out: calling it would be a large part of the overhead of a step.
        try:
            result = operation(self._environment, argument)
        except BaseException as error:  # the edge to foreign code
            if from_signal(error):
                raise
            done(None, error)
            return
        if type(result) is CoroutineType:
            self._task.run(result, done)
        elif inspect.isawaitable(result):
            self._task.run(as_coroutine(result), done)
        else:
            done(result, None)

    @property
    def uses_helper(self) -> bool:
        """Whether a helper constructs or closes its environment now."""
        return self._helped is not None and self._helped[0].running()

    def cancel(self) -> None:
        if self._helped is not None and self._helped[0].cancel():  # it was waiting for a helper thread
            self._mailbox.post(self._helped[1], None, asyncio.CancelledError())
        self._task.cancel()

    def close(self, done: Done) -> None:
        def called(ending: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
            if ending is None:
                ended(None, error)
            else:
                self._task.run(ending, ended)

        def ended(_: Any, error: BaseException | None) -> None:
            self._task.close()
            done(None, error)

        environment, self._environment = self._environment, None
        if has_close(environment):
            self._run_on_helper(close, environment, None, called)
        else:
            ended(None, None)

    def _run_on_helper(self, operation: Operation, environment: Any, argument: Any, done: Done) -> None:
        def finish(result: Any, error: BaseException | None) -> None:
            self._helped = None  # breaks a reference cycle
            done(result, error)

        self._mailbox.switch_interval.count(1)
        try:
            helpers = self._helpers()
        except RuntimeError as trouble:  # the system cannot start another thread
            self._mailbox.post(done, None, trouble)
            return
        # The system cannot start another thread, so the operation waits for one of the existing helpers.
        with contextlib.suppress(RuntimeError):
            future = helpers.submit(lambda: self._mailbox.post(finish, *attempt(operation, environment, argument)))
            self._helped = (future, finish)
