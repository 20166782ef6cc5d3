"""Exceptions of foreign code: those that a signal raised, those that must not end a loop, and failed cleanups."""

from __future__ import annotations

import contextlib
import logging
import opcode
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from ._introspection import unwrap_partial

T = TypeVar("T")
logger = logging.getLogger("openenv.interrupts")

_RAISE = opcode.opmap["RAISE_VARARGS"]


def from_signal(error: BaseException) -> bool:
    """Whether a signal raised an exception: it is then meant for the process, not for the code that it interrupted.

    Python runs signal handlers on the main thread, on top of the code that they interrupt. So an exception comes
    from a signal if the frame of a handler is in its traceback. The default handler of Ctrl-C is written in C and has
    no frame; while it is installed, a `KeyboardInterrupt` comes from a signal unless a `raise` statement raised it.

    Args:
        error: An exception that was caught.
    """
    if not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    traces, trace = [], error.__traceback__
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    frames = {trace.tb_frame.f_code for trace in traces}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is signal.default_int_handler:
            last = traces[-1] if traces else None
            raised = last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
            if isinstance(error, KeyboardInterrupt) and not raised:
                return True
        elif callable(handler) and _code_of(handler) in frames:
            return True
    return False


def keep_running(run: Callable[[], T]) -> T:
    """Runs an event loop until it ends or a signal interrupts it.

    In asyncio, `KeyboardInterrupt` and `SystemExit` of any task or callback end the loop. A task that an environment
    started must not do that: the exception stays in the task, and the loop continues.

    Args:
        run: Runs the loop. Called again after an exception that no signal raised.
    """
    while True:
        try:
            return run()
        except (KeyboardInterrupt, SystemExit) as error:
            if from_signal(error):
                raise
            name = type(error).__name__
            logger.exception("code on the event loop raised %s: its task has failed, the event loop continues", name)


def _code_of(handler: Any) -> CodeType | None:
    """The Python code of a handler; None for one that is written in C."""
    handler = unwrap_partial(handler)
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None)
    if code is None:  # an object that can be called
        code = getattr(vars(type(handler)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None


@contextlib.contextmanager
def add_cleanup_note(error: BaseException | None) -> Iterator[None]:
    """For a cleanup after an error: a failure of the cleanup becomes a note of the error."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"and cleaning up failed: {type(failure).__name__}: {failure}")


@contextlib.contextmanager
def undo_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` if the block raises; a failure of `undo` becomes a note of that error."""
    try:
        yield
    except BaseException as error:
        with add_cleanup_note(error):
            undo()
        raise


@contextlib.asynccontextmanager
async def undo_async_on_error(
    undo: Callable[[], Awaitable[object]], kind: type[BaseException] = BaseException
) -> AsyncIterator[None]:
    """Awaits `undo` if the block raises an error of a kind; a failure of `undo` becomes a note of that error."""
    try:
        yield
    except kind as error:
        with add_cleanup_note(error):
            await undo()
        raise
