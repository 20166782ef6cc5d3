"""Ask an environment for its tasks: ask its class if possible, otherwise an instance made for the question."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from .._asyncio import run_without_loop
from .._exceptions import from_signal
from ..errors import OpenEnvError, StepFailed, UsageError
from ..protocol.messages import TasksOp
from ..runtime.executor import Done, error_text
from ..runtime.manager import opened_session, result_of
from ..runtime.profile import class_of
from ..runtime.session import Session
from .auth import Principal

if TYPE_CHECKING:
    from .server import EnvironmentServer


ARGUMENTS = {
    "list_splits": (),
    "list_tasks": ("split",),
    "num_tasks": ("split",),
    "get_task": ("split", "index"),
    "get_task_range": ("split", "start", "stop"),
}
"""The methods of a `TaskProvider`, and their arguments."""


class TasksUnsupported(UsageError):
    """The environment has no such method."""


class _TaskQuery(NamedTuple):
    """A call of one of the methods."""

    method: str
    arguments: dict[str, Any]


async def ask_environment(server: EnvironmentServer, principal: Principal, method: str, **arguments: Any) -> Any:
    """Calls one of the methods of a `TaskProvider`.

    A static method or class method is called on the class, off the event loop. For other methods a session is opened,
    and closed after the call.

    Args:
        server: The server of the environment.
        principal: The client that owns the session, if one is needed.
        method: The name of a method of `TaskProvider`.
        arguments: Its arguments, by name.

    Raises:
        TasksUnsupported: The environment has no such method.
        UsageError: There is no such split, or no such task; `data["num_tasks"]` is the number of tasks.
        CapacityError: An instance is needed and every slot is taken.
        EnvironmentFailed: The method, or the constructor, raised.
    """
    question = _TaskQuery(method, arguments)
    cls = class_of(server.env_factory)
    if cls is not None and not callable(getattr(cls, method, None)):
        raise TasksUnsupported(f"{server.env_name} provides no tasks: {cls.__name__} has no method {method}")
    # Questions that the class can answer need no instance, nor do the follow-up questions that explain an error.
    if (
        cls is not None
        and server.manager.maker.pool is None
        and isinstance(inspect.getattr_static(cls, method), (staticmethod, classmethod))
    ):
        answer = await _awaited(asyncio.to_thread(_answer, cls, question), method)
    else:
        async with opened_session(server.manager, principal.holder, principal.peer) as session:
            answer = await result_of(lambda done: session.call(_answer, question, done))
    if inspect.isawaitable(answer):  # of a class, or of an inline environment
        answer = await _awaited(answer, method)
    return _without_fault(answer, server.env_name)


def ask_session(session: Session, question: TasksOp, answered: Done) -> None:
    """Asks the environment of a session that executes no call.

    Args:
        session: The session of the environment.
        question: The question.
        answered: Gets the answer as plain JSON values, or an error that `ask_environment` raises.
    """
    wanted = {name: getattr(question, name) for name in ARGUMENTS[question.method]}
    missing = [name for name in ("split", "index") if wanted.get(name, 0) is None]
    if missing:
        answered(None, UsageError(f"{question.method} needs {' and '.join(missing)}"))
        return

    def checked(answer: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                found = _without_fault(answer, session.profile.name)
                if question.method == "list_splits":
                    found = splits_of(found)
                answer = from_json(encode_tasks(found))
            except TasksUnsupported as fault:  # a class of this module only: clients do not know it
                error = UsageError(fault.message)
            except OpenEnvError as fault:
                error = fault
        answered(None if error else answer, error)

    def called(answer: Any, error: BaseException | None) -> None:
        if inspect.isawaitable(answer):  # of an inline environment
            asyncio.ensure_future(_awaited(answer, question.method)).add_done_callback(
                lambda task: checked(*_outcome(task))
            )
        else:
            checked(answer, error)

    session.call(_answer, _TaskQuery(question.method, wanted), called)


def _outcome(task: asyncio.Future[Any]) -> tuple[Any, BaseException | None]:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        return task.result(), None
    return None, error if isinstance(error, OpenEnvError) else StepFailed(f"{type(error).__name__}: {error}")


def _without_fault(answer: Any, name: str) -> Any:
    """Returns a valid answer. Raises the error that an invalid question got as its answer."""
    if isinstance(answer, dict) and _FAULT in answer:
        if answer[_FAULT] == TasksUnsupported.__name__:
            raise TasksUnsupported(f"{name} provides no tasks: {answer['message']}")
        raise UsageError(answer["message"], data=answer["data"])
    return answer


def encode_tasks(answer: Any) -> bytes:
    """An answer as JSON: tasks may be plain data, models, dataclasses or simple objects.

    Raises:
        StepFailed: JSON cannot encode the answer.
    """
    try:
        return to_json(answer, fallback=_plain, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise StepFailed(f"a task cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy, torch
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__dict__") and not callable(value):
        return {name: held for name, held in vars(value).items() if not name.startswith("_")}
    raise TypeError(f"{type(value).__name__} is not a JSON value")


# A wrong question is reported as an answer: our exceptions and other objects cannot leave the process of the
# environment as such.
_FAULT = "openenv.fault"


def _fault(message: str, count: int | None = None, kind: type[UsageError] = UsageError) -> dict[str, Any]:
    return {_FAULT: kind.__name__, "message": message, "data": {} if count is None else {"num_tasks": count}}


async def _awaited(answer: Awaitable[Any], method: str) -> Any:
    """Awaits a method of foreign code in a task of the server.

    Raises:
        StepFailed: The method raised. This includes `KeyboardInterrupt` and `SystemExit`, which would end the event
            loop.
    """
    task = asyncio.current_task()
    try:
        return await answer
    except (OpenEnvError, GeneratorExit):
        raise
    except BaseException as error:  # the edge to foreign code
        is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
        if is_cancelled or from_signal(error):
            raise
        raise StepFailed(f"{method} raised {type(error).__name__}: {error_text(error)}") from error


def _answer(provider: Any, question: _TaskQuery) -> Any:
    """The operation that asks an environment or its class. Returns a coroutine for an asynchronous method."""
    method = getattr(provider, question.method, None)
    if not callable(method):
        name = (provider if isinstance(provider, type) else type(provider)).__name__
        return _fault(f"{name} has no method {question.method}", kind=TasksUnsupported)
    may_wait = inspect.iscoroutinefunction(method)
    inquiry = _inquire(provider, method, question, may_wait)
    return (
        inquiry
        if may_wait
        else run_without_loop(inquiry, f"{question.method} returned an awaitable, but is not async")
    )


async def _inquire(provider: Any, method: Any, question: _TaskQuery, may_wait: bool) -> Any:
    """Calls a method; waits for its result only if `may_wait`."""
    # A negative index is invalid, though the environment might answer it: in Python, -1 is the last item.
    index, start, stop = (question.arguments.get(name) for name in ("index", "start", "stop"))
    if min(index or 0, start or 0, stop or 0) < 0 or (start is not None and stop is not None and start > stop):
        return await _out_of_range(provider, question.arguments, may_wait)
    try:
        answer = method(*question.arguments.values())
        if may_wait:
            answer = await answer
        # Turns any sequence into a list here, where the environment may be used.
        return list(answer) if isinstance(answer, (tuple, range, Iterator)) else answer
    except Exception as error:
        fault = await _explained(provider, question.arguments, error, may_wait)
        if fault is None:
            raise
        return fault


async def _explained(provider: Any, arguments: dict[str, Any], error: Exception, may_wait: bool) -> Any:
    """The error if the question was wrong; None if the environment failed."""
    split = arguments.get("split")
    names = await _said(provider, may_wait, "list_splits")
    if split is not None and isinstance(names, (list, tuple)):
        known = [_split_of(name).get("name") for name in names]
        if split not in known:
            return _fault(f"no split {split!r:.80}: there are {', '.join(map(str, known)) or 'none'}")
    return await _out_of_range(provider, arguments, may_wait) if isinstance(error, IndexError) else None


async def _out_of_range(provider: Any, arguments: dict[str, Any], may_wait: bool) -> dict[str, Any]:
    split = arguments["split"]
    count = await _said(provider, may_wait, "num_tasks", split)
    asked = {name: value for name, value in arguments.items() if name != "split" and value is not None}
    wanted = f"split {split!r:.80} has no task of {', '.join(f'{name} {value}' for name, value in asked.items())}"
    if not isinstance(count, int):
        return _fault(wanted)
    there = f"there are {count}, from 0 to {count - 1}" if count else "it has no tasks"
    return _fault(f"{wanted}: {there}", count)


async def _said(provider: Any, may_wait: bool, method: str, *arguments: Any) -> Any:
    """The answer of another method; None if that cannot be called here."""
    with contextlib.suppress(Exception):
        answer = getattr(provider, method)(*arguments)
        if not inspect.isawaitable(answer):
            return answer
        if may_wait:
            return await answer
        if inspect.iscoroutine(answer):
            answer.close()
    return None


def splits_of(answer: Any) -> list[dict[str, Any]]:
    """The result of `list_splits` in the form for clients. Raises `StepFailed` if it is not a list of splits."""
    try:
        return [_split_of(split) for split in answer]
    except Exception as error:  # the edge to foreign code: the answer may have any type
        raise StepFailed(f"list_splits must return a list of splits: {error_text(error)}") from error


def _split_of(split: Any) -> dict[str, Any]:
    """A split in the form for clients: name and type (train, test, else validation)."""
    if isinstance(split, Mapping):
        return dict(split)
    if isinstance(split, str):
        return {"name": split, "type": split if split in ("train", "test") else "validation"}
    name = getattr(split, "name", split)
    kind = getattr(split, "type", None)
    return {**_split_of(str(name)), **({} if kind is None else {"type": str(kind)})}
