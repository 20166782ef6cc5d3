"""The contract of an executor, and the operations that every executor runs: make, close, save and load state."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import PurePath
from random import Random
from traceback import walk_tb
from typing import Any, Protocol

from .._asyncio import as_coroutine
from .._copies import become_copy_of, deep_copy_of
from ..environment import Environment, SessionRandom
from ..errors import EnvironmentFailed, InvalidAction, InvalidArgument, NotForkable, ResetRequired

Operation = Callable[[Any, Any], Any]
"""A function that uses an environment: `operation(environment, argument)`."""

PASSED_ERRORS = (EnvironmentFailed, InvalidAction, InvalidArgument, ResetRequired)
"""Our own errors that an environment may raise: clients get them unchanged."""

Done = Callable[[Any, BaseException | None], None]
"""Gets the result, or None and the exception; called on the event loop, exactly once."""


class Executor(Protocol):
    """Owns an environment: no other object uses it. All methods are called on the event loop's thread.

    The caller waits for one `done` before it makes the next call. Only `cancel` may be called in between.
    """

    @property
    def stoppable(self) -> bool:
        """Whether `cancel` stops an operation."""

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        """Makes the environment; `done` gets it, and may only read its class.

        For an environment in another process, `done` gets the profile.
        """

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        """Runs one operation."""

    def cancel(self) -> None:
        """Stops the running operation, if it can be stopped (`stoppable`): then `done` is called soon."""

    def close(self, done: Done) -> None:
        """Closes the environment and frees the resources of the executor. Make no further calls."""


def attempt(operation: Operation, environment: Any, argument: Any) -> tuple[Any, BaseException | None]:
    """Runs foreign code and returns its outcome.

    Every exception is a failure of the environment, including `SystemExit` and panics of extension modules: one
    session must not end the server. Not for the main thread, where Ctrl-C arrives.
    """
    try:
        return operation(environment, argument), None
    except BaseException as error:  # noqa: BLE001 - the edge to foreign code
        return None, error


def error_text(error: BaseException) -> str:
    """The message of a foreign exception, in one line; the name of its class if it has no readable message."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - foreign code again
        text = ""
    return text or type(error).__name__


class RemoteError(Exception):
    """An exception of an environment in another process; a subclass has the name of the original class.

    Attributes:
        source: The line of the environment's code that raised it; empty if unknown.
    """

    source: str = ""


def describe_error(error: BaseException) -> str:
    """Class, message and line of a foreign exception: `KeyError: 'x' (my_env/server/environment.py:42)`."""
    name, text, source = type(error).__name__, error_text(error), source_of(error)
    return (name if text == name else f"{name}: {text}") + (f" ({source})" if source else "")


def source_of(error: BaseException) -> str:
    """The innermost line of the environment's own code in a traceback: `my_env/server/environment.py:42`.

    The first frame outside of this package belongs to the environment: every call of its methods is made here.
    The file is named as its module is, so no path of the server's machine leaves it.
    """
    if isinstance(error, RemoteError):
        return error.source
    own = place = ""
    for frame, line in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if not own and root != "openenv":
            own = root
        if own and root == own:
            file = PurePath(frame.f_code.co_filename)
            depth = module.count(".") + 1 + (file.name == "__init__.py")
            place = f"{'/'.join(file.parts[-depth:])}:{line}"
    return place


def construct(_: None, factory: Callable[[], Any]) -> Any:
    """The operation that makes an environment."""
    return factory()


def step(environment: Any, action: Any) -> Any:
    """The operation that executes one action."""
    return environment.step(action)


def step_async(environment: Any, action: Any) -> Any:
    """Like `step`, for an asynchronous environment."""
    return environment.step_async(action)


def has_close(environment: Any) -> bool:
    """Whether an environment has a `close` of its own; most inherit the empty one of `Environment`."""
    own = getattr(environment, "__dict__", ())
    return "close" in own or getattr(type(environment), "close", None) not in (None, Environment.close)


def close(environment: Any, _: None) -> Coroutine[Any, Any, None] | None:
    """The operation that closes an environment; without a `close` method, there is nothing to do.

    Returns:
        A coroutine, if its `close` is asynchronous.
    """
    closing = getattr(environment, "close", None)
    outcome = None if closing is None else closing()
    return as_coroutine(outcome) if inspect.isawaitable(outcome) else None


def finish(given: Any, ending: Callable[[Any], Any]) -> Any:
    """Applies `ending` to the result of a method. Returns a coroutine if the result must be awaited first."""
    if not inspect.isawaitable(given):
        return ending(given)

    async def finish_later() -> Any:
        return ending(await given)

    return finish_later()


class Snapshot:
    """A saved state of an environment: made by `save`, used up by one `load`."""

    __slots__ = ()

    def discard(self) -> None:
        """Frees its resources: no session will use it."""


@dataclass(slots=True, eq=False)
class CopiedSnapshot(Snapshot):
    """A copy of a whole environment.

    Attributes:
        environment: The copy.
    """

    environment: Any


@dataclass(slots=True, eq=False)
class SavedSnapshot(Snapshot):
    """The state that the class of an environment saves, with the parts that every environment has.

    Attributes:
        state: A copy of the result of its `save_state`.
        rng: Its `rng`; None if it has none, or one that its class made.
        rubric: Its `rubric`, with the rubric's state in the episode; None if it has none.
    """

    state: Any
    rng: Random | None
    rubric: Any


def keeps_state(cls: type[Any]) -> bool:
    """Whether a class has `save_state`; otherwise its environments are copied whole."""
    return any(
        getattr(cls, name, None) not in (None, getattr(Environment, name)) for name in ("save_state", "load_state")
    )


def save(environment: Any, _: None) -> Any:
    """The operation that returns a `Snapshot`, or a coroutine that does.

    Raises:
        NotForkable: The state cannot be copied, or `save_state` failed.
    """
    ensure_rng(environment)
    if not keeps_state(type(environment)):
        return CopiedSnapshot(deep_copy_of(environment))
    return finish(_call_method(environment, "save_state"), functools.partial(_saved, environment))


def load(environment: Any, snapshot: Any) -> Any:
    """The operation that loads a `Snapshot` into an environment. Returns a coroutine if its `load_state` is one.

    Raises:
        NotForkable: The environment cannot continue from that state, or `load_state` failed.
    """
    if isinstance(snapshot, CopiedSnapshot):
        become_copy_of(environment, snapshot.environment)
        return None
    assert isinstance(snapshot, SavedSnapshot)
    saved = snapshot

    def loaded(_: Any) -> None:
        # Last, because `load_state` may begin an episode, which draws random numbers and resets the rubric.
        if saved.rng is not None:
            environment.__dict__["rng"] = saved.rng
        if saved.rubric is not None:
            environment.rubric = saved.rubric

    return finish(_call_method(environment, "load_state", saved.state), loaded)


def ensure_rng(environment: Any) -> None:
    """Makes an `rng` that was not used yet, so that a copy of the environment has the same one."""
    if getattr(type(environment), "rng", None) is Environment.rng:
        environment.rng  # noqa: B018 - makes it


def _saved(environment: Any, state: Any) -> SavedSnapshot:
    own = getattr(environment, "__dict__", {})
    rng = own.get("rng")
    return SavedSnapshot(
        _copy(environment, state, "what its save_state() returned"),
        deepcopy(rng) if isinstance(rng, SessionRandom) else None,
        _copy(environment, own.get("rubric"), "its rubric"),
    )


def _call_method(environment: Any, method: str, *arguments: Any) -> Any:
    async def awaited(given: Awaitable[Any]) -> Any:
        with _failing(environment, method):
            return await given

    with _failing(environment, method):
        given = getattr(environment, method)(*arguments)
    return awaited(given) if inspect.isawaitable(given) else given


@contextlib.contextmanager
def _failing(environment: Any, method: str) -> Iterator[None]:
    """Turns an exception of a method into `NotForkable`, unless the environment raised one itself."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except Exception as error:
        what = f"{method}() of {type(environment).__name__} raised {type(error).__name__}"
        raise NotForkable(f"{what}: {error_text(error)}") from error


def _copy(environment: Any, value: Any, what: str) -> Any:
    try:
        return deepcopy(value)
    except Exception as error:
        name = type(environment).__name__
        raise NotForkable(f"{name} cannot be forked: {what} cannot be copied: {error_text(error)}") from error
