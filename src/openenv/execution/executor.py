"""The contract of an executor: one environment, one call at a time, answers by callback.

Callbacks and not awaitables: a frame arrives in a callback of the transport and its reply can leave in
the same one. A task a step would cost more than a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from ..environment import Environment

__all__ = ["Done", "Executor", "Operation", "attempt", "close", "construct", "describe", "has_close"]

Operation = Callable[[Any, Any], Any]
"""Does one thing with an environment: `operation(environment, argument)`."""

Done = Callable[[Any, BaseException | None], None]
"""Takes a result, or None and the exception that came instead; called on the event loop, exactly once."""


class Executor(Protocol):
    """Owns an environment: nobody else touches it. All methods are called on the event loop's thread.

    The caller waits for one `done` before it makes the next call; `cancel` alone may come in between.

    Attributes:
        stoppable: Whether `cancel` stops an operation.
    """

    stoppable: bool

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        """Makes the environment; `done` gets it, for its class to be read and not for use."""

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        """Runs one operation."""

    def cancel(self) -> bool:
        """Stops the running operation; its `done` comes in any case, soon for True. False: it cannot be stopped."""

    def close(self, done: Done) -> None:
        """Closes the environment and gives back what the executor holds. Nothing may follow."""


def attempt(operation: Operation, environment: Any, argument: Any) -> tuple[Any, BaseException | None]:
    """Runs foreign code and returns what came of it.

    Whatever it raises is a failure of the environment, `SystemExit` and the panics of extension modules too:
    one session must not end the server. For threads other than the main one, where no Ctrl-C arrives.
    """
    try:
        return operation(environment, argument), None
    except BaseException as error:  # noqa: BLE001 - the edge to foreign code
        return None, error


def describe(error: BaseException) -> str:
    """What a foreign exception says, in one line; its class where it says nothing or cannot even do that."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - foreign code again
        text = ""
    return text or type(error).__name__


def construct(_: None, factory: Callable[[], Any]) -> Any:
    """The operation that makes an environment."""
    return factory()


def has_close(environment: Any) -> bool:
    """Whether closing an environment does anything; most have only the `close` that `Environment` gives them."""
    own = getattr(environment, "__dict__", ())
    return "close" in own or getattr(type(environment), "close", None) not in (None, Environment.close)


def close(environment: Any, _: None) -> Coroutine[Any, Any, None] | None:
    """The operation that closes an environment; one without a `close` has nothing to give back.

    Returns:
        What does the closing, if its `close` is asynchronous.
    """
    closing = getattr(environment, "close", None)
    outcome = None if closing is None else closing()
    return _awaited(outcome) if inspect.isawaitable(outcome) else None


async def _awaited(ending: Awaitable[Any]) -> None:
    await ending
