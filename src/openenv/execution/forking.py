"""The state of an environment, on its way into another one: the two operations, and what goes between them.

`save` and `load` are operations of executors like others. Those of environments in processes know them by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from copy import deepcopy
from random import Random
from typing import Any

from ..copies import copied, take_over
from ..environment import Environment, SessionRandom
from ..errors import EnvironmentFailed, NotForkable
from .executor import describe

__all__ = ["Copied", "Saved", "Seed", "begin_random", "keeps_state", "load", "save"]


class Seed:
    """What an environment goes on from: made by `save`, used up by one `load`."""

    __slots__ = ()

    def discard(self) -> None:
        """Nobody will use it."""


class Copied(Seed):
    """A copy of a whole environment.

    Attributes:
        environment: The copy.
    """

    __slots__ = ("environment",)

    def __init__(self, environment: Any):
        self.environment = environment


class Saved(Seed):
    """What the class of an environment says its state is, and what belongs to every environment besides.

    Attributes:
        state: What its `save_state` gave, copied.
        rng: Its `rng`; None if it has none, or one that its class made.
        rubric: Its `rubric`, with what that remembers of the episode; None if it has none.
    """

    __slots__ = ("rng", "rubric", "state")

    def __init__(self, state: Any, rng: Random | None, rubric: Any):
        self.state = state
        self.rng = rng
        self.rubric = rubric


def keeps_state(cls: type[Any]) -> bool:
    """Whether a class says itself what its state is; else its environments are copied whole."""
    return any(
        getattr(cls, name, None) not in (None, getattr(Environment, name)) for name in ("save_state", "load_state")
    )


def save(environment: Any, _: None) -> Any:
    """The operation that gives a `Seed`, or a coroutine that does.

    Raises:
        NotForkable: The state cannot be copied, or `save_state` failed.
    """
    begin_random(environment)
    if not keeps_state(type(environment)):
        return Copied(copied(environment))
    state = _called(environment, "save_state")
    return _saved_later(environment, state) if inspect.isawaitable(state) else _saved(environment, state)


def load(environment: Any, seed: Any) -> Any:
    """The operation that has an environment go on from a `Seed`; returns a coroutine if its `load_state` is one.

    Raises:
        NotForkable: It cannot go on from there, or `load_state` failed.
    """
    if isinstance(seed, Copied):
        take_over(environment, seed.environment)
        return None
    assert isinstance(seed, Saved)
    loaded = _called(environment, "load_state", seed.state)
    if inspect.isawaitable(loaded):
        return _loaded_later(environment, seed, loaded)
    _loaded(environment, seed)
    return loaded


def begin_random(environment: Any) -> None:
    """Makes the `rng` that nobody has used yet: a copy of the environment is to have the same."""
    if getattr(type(environment), "rng", None) is Environment.rng:
        environment.rng  # noqa: B018 - makes it


def _loaded(environment: Any, seed: Saved) -> None:
    # At the end: `load_state` may begin an episode of its own, with random numbers and for the rubric.
    if seed.rng is not None:
        environment.__dict__["rng"] = seed.rng
    if seed.rubric is not None:
        environment.rubric = seed.rubric


async def _loaded_later(environment: Any, seed: Saved, loading: Awaitable[Any]) -> None:
    await loading
    _loaded(environment, seed)


def _saved(environment: Any, state: Any) -> Saved:
    own = getattr(environment, "__dict__", {})
    rng = own.get("rng")
    return Saved(
        _copy(environment, state, "what its save_state() returned"),
        deepcopy(rng) if isinstance(rng, SessionRandom) else None,
        _copy(environment, own.get("rubric"), "its rubric"),
    )


async def _saved_later(environment: Any, state: Awaitable[Any]) -> Saved:
    return _saved(environment, await _awaited(environment, "save_state", state))


def _called(environment: Any, method: str, *arguments: Any) -> Any:
    try:
        given = getattr(environment, method)(*arguments)
    except EnvironmentFailed:
        raise
    except Exception as error:
        raise _failed(environment, method, error) from error
    return _awaited(environment, method, given) if inspect.isawaitable(given) else given


async def _awaited(environment: Any, method: str, given: Awaitable[Any]) -> Any:
    try:
        return await given
    except EnvironmentFailed:
        raise
    except Exception as error:
        raise _failed(environment, method, error) from error


def _failed(environment: Any, method: str, error: Exception) -> NotForkable:
    what = f"{method}() of {type(environment).__name__} raised {type(error).__name__}"
    return NotForkable(f"{what}: {describe(error)}")


def _copy(environment: Any, value: Any, what: str) -> Any:
    try:
        return deepcopy(value)
    except Exception as error:
        name = type(environment).__name__
        raise NotForkable(f"{name} cannot be forked: {what} cannot be copied: {describe(error)}") from error
