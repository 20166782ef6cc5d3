"""Facts about an environment class that are read once instead of on every step."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from .._introspection import accepted_arguments, unwrap_partial
from ..batched import BatchedEnvironment
from ..environment import Environment, reseed
from ..errors import UsageError
from ..telemetry.logs import warn_once
from . import executor
from .executor import Operation, error_text

logger = logging.getLogger("openenv.execution")


class Execution(StrEnum):
    """Where an environment's code runs."""

    INLINE = "inline"
    """Synchronous code on the event loop, for a class that declares that its steps take microseconds."""
    LOOP = "loop"
    """Asynchronous code on the event loop."""
    THREAD = "thread"
    """Synchronous code on a thread that belongs to the session."""
    PROCESS = "process"
    """Synchronous or asynchronous code in a process that belongs to the session."""


@dataclass(frozen=True, slots=True)
class EnvironmentProfile:
    """How to call one environment class.

    Attributes:
        name: The class's name, for messages.
        execution: Where its code runs.
        reset: Calls its `reset` with a filtered dict of keyword arguments.
        step: Calls its `step` with an action alone.
        step_with: Calls its `step` with an action and filtered keyword arguments.
        state: Reads its `state`.
        concurrent: Whether several instances may live in one process.
        seedable: Whether its `reset` takes a seed.
    """

    name: str
    execution: Execution
    reset: Operation
    step: Operation
    step_with: Operation
    state: Operation
    concurrent: bool
    seedable: bool


_profiles: WeakKeyDictionary[type[object], EnvironmentProfile] = WeakKeyDictionary()


def profile_of(cls: type[object]) -> EnvironmentProfile:
    """The profile of a class.

    Raises:
        UsageError: It has no `reset` or no `step`, or its `execution` is unknown.
    """
    if (known := _profiles.get(cls)) is not None:
        return known
    if issubclass(cls, BatchedEnvironment):
        _profiles[cls] = profile = _batched_profile(cls)
        return profile
    asynchronous = {name: _overrides(cls, name) for name in ("reset_async", "step_async")}
    reset = "reset_async" if asynchronous["reset_async"] else "reset"
    step = "step_async" if asynchronous["step_async"] else "step"
    for method in (reset, step):
        if not callable(getattr(cls, method, None)):
            raise UsageError(f"{cls.__name__} is not an environment: it has no {method}() that could be called")
    _profiles[cls] = profile = EnvironmentProfile(
        name=cls.__name__,
        execution=_execution(cls, asynchronous.values()),
        reset=_reset_with(cls, reset),
        step=executor.step if step == "step" else executor.step_async,
        step_with=_step_with(cls, step),
        state=_read_state,
        concurrent=bool(getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False)),
        seedable=accepted_arguments(getattr(cls, reset), positional=1).takes("seed"),
    )
    return profile


def reset_batch(environment: Any, arguments: dict[str, Any]) -> Any:
    """The operation that starts episodes of a batch, or the episode of one session."""
    return environment.reset(arguments)


def step_batch_with(environment: Any, argument: tuple[Any, dict[str, Any]]) -> Any:
    """Like `executor.step`, for a batch: its steps take no further arguments."""
    return environment.step(argument[0])


def _batched_profile(cls: type[BatchedEnvironment[Any, Any, Any]]) -> EnvironmentProfile:
    """How sessions call a batch, or an episode of it (`runtime.batch`, `runtime.gathering`)."""
    asynchronous = [name for name in ("reset_async", "step_async") if _overrides(cls, name)]
    execution = _execution(cls, [False])
    if asynchronous or execution is Execution.PROCESS:
        what = f"{asynchronous[0]}()" if asynchronous else "execution = 'process'"
        raise UsageError(
            f"{cls.__name__} has {what}, which a BatchedEnvironment cannot have: it runs on a thread or 'inline'"
        )
    return EnvironmentProfile(
        name=cls.__name__,
        execution=execution,
        reset=reset_batch,
        step=executor.step,
        step_with=step_batch_with,
        state=_read_state,
        concurrent=cls.SUPPORTS_CONCURRENT_SESSIONS,
        seedable=True,
    )


def class_of(factory: Callable[[], Any]) -> type[object] | None:
    """The class of a factory's instances, if it is known without a call."""
    factory = unwrap_partial(factory)
    if isinstance(factory, type):
        return factory
    returned = getattr(factory, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        returned = _return_type(factory)
    # An abstract or general annotation (`-> Environment`) says nothing about how the instance runs.
    if isinstance(returned, type) and issubclass(returned, Environment) and not inspect.isabstract(returned):
        return returned
    return None


def _return_type(factory: Callable[[], Any]) -> Any:
    """The return type. Resolves a string annotation, which all are under `from __future__ import annotations`."""
    try:
        return get_type_hints(factory).get("return")
    except Exception as error:  # noqa: BLE001 - any text may stand there, and names that only a type checker has
        warn_once(
            logger,
            "the return annotation of the factory %s cannot be resolved (%s), so the first environment that it makes "
            "decides where all run: import the annotated type at run time",
            getattr(factory, "__qualname__", repr(factory)),
            error_text(error),
        )
        return None


def is_asynchronous(cls: type[object]) -> bool:
    """Whether the methods of a class run on an event loop."""
    return _overrides(cls, "reset_async") and _overrides(cls, "step_async")


def _overrides(cls: type[Any], name: str) -> bool:
    method = getattr(cls, name, None)
    # A base class may define the asynchronous form of a method that a subclass defines synchronously.
    return method not in (None, getattr(Environment, name)) and not getattr(method, "follows_sync", False)


def _execution(cls: type[Any], asynchronous: Collection[bool]) -> Execution:
    declared = getattr(cls, "execution", None)
    if declared not in (None, Execution.INLINE, Execution.THREAD, Execution.PROCESS):
        raise UsageError(
            f"{cls.__name__}.execution is {declared!r}: it must be 'inline' (steps of microseconds, on the event "
            "loop), 'thread', 'process', or None to have it chosen"
        )
    if declared == Execution.PROCESS:
        return Execution.PROCESS
    if declared == Execution.INLINE:
        return Execution.LOOP if any(asynchronous) else Execution.INLINE
    # With one asynchronous and one synchronous method, both run on the thread, since the synchronous one may block.
    return Execution.LOOP if all(asynchronous) and declared is None else Execution.THREAD


def _reset_with(cls: type[Any], method: str) -> Operation:
    takes = accepted_arguments(getattr(cls, method), positional=1)  # self
    seeded = issubclass(cls, Environment) and takes.takes("seed")

    def call(environment: Any, arguments: dict[str, Any]) -> Any:
        if seeded and arguments.get("seed") is not None:
            reseed(environment, arguments["seed"])
        return getattr(environment, method)(**takes.of(arguments))

    return call


def _step_with(cls: type[Any], method: str) -> Operation:
    takes = accepted_arguments(getattr(cls, method), positional=2)  # self and the action

    def call(environment: Any, argument: tuple[Any, dict[str, Any]]) -> Any:
        action, arguments = argument
        return getattr(environment, method)(action, **takes.of(arguments))

    return call


def _read_state(environment: Any, _: None) -> Any:
    state = environment.state
    if inspect.ismethod(state):
        state = state()
    return {} if state is None else state  # an environment without state
