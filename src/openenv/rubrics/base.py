"""`Rubric`: one part of a reward, with named children; synchronous and asynchronous rubrics share the code here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import wraps
from inspect import getcoroutinelocals, isawaitable, iscoroutine
from typing import Any, TypeVar

from .._scoring import Score, current_sheet, finite_score, reset_rubric, rubric_label

T = TypeVar("T")
Steps = Generator[Any, Any, T]
_PLAIN = frozenset({float, int, bool, type(None), Score})


def settle(steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
    """Runs `Steps`: returns the result, or a coroutine for the rest from the first awaitable on."""
    given: Any = None
    try:
        while True:
            given = steps.send(given)
            if _waits(given):
                return _go_on(steps, given)
    except StopIteration as stop:
        result: T = stop.value
        return result


def settled(method: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    """A method written as `Steps`, called as one that returns its result or a coroutine of it."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return settle(method(*args, **kwargs))

    return called


async def _go_on(steps: Steps[T], waiting: Awaitable[Any]) -> T:
    try:
        while True:
            try:
                given = await waiting
            except BaseException as error:  # noqa: BLE001 - the generator sees it where it would have been raised
                given = steps.throw(error)
            else:
                given = steps.send(given)
            while not _waits(given):
                given = steps.send(given)
            waiting = given
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def _waits(value: Any) -> bool:
    return type(value) not in _PLAIN and isawaitable(value)  # the first check alone costs a tenth


def gather_values(values: Sequence[Any]) -> Any:
    """The values as a list; if some are awaitable, an awaitable of that list, which runs them concurrently.

    If one of them fails, the others are cancelled and have ended before the error is raised.
    """
    return _gathered(values) if any(map(_waits, values)) else list(values)


async def _gathered(values: Sequence[Any]) -> list[Any]:
    results = list(values)
    tasks = {at: asyncio.ensure_future(value) for at, value in enumerate(values) if _waits(value)}
    try:
        await asyncio.gather(*tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        raise
    for at, task in tasks.items():
        results[at] = task.result()
    return results


def close_coroutines(values: Sequence[Any]) -> None:
    """Closes coroutines that are no longer awaited since another failed, and the coroutines that they await."""
    for value in values:
        if iscoroutine(value):
            if value.cr_code in (_go_on.__code__, _gathered.__code__):
                held = getcoroutinelocals(value)
                close_coroutines([held.get("waiting"), *held.get("values", ())])
            value.close()


PreHook = Callable[["Rubric", Any, Any], Any]
Hook = Callable[["Rubric", Any, Any, float], Any]


class Rubric(ABC):
    """Scores an action and the observation it led to. Subclass it and write `forward`, synchronous or not.

    A rubric that is assigned to an attribute becomes a child of that name; it leaves when the attribute gets another
    value or is deleted. Calling `super().__init__()` is optional.

    An instance belongs to one environment, which judges one step at a time. If calls of one instance overlap, each
    still returns its own score, and `Environment._apply_rubric` reports that of its own call; `last_score` is that
    of the call that ended last.

    Attributes:
        last_score: The score of the last call; None before the first.
    """

    last_score: float | None = None

    # Class attributes, so that a subclass without `super().__init__()` has them too; an instance gets its own
    # with its first entry.
    _rubric_children: Mapping[str, Rubric] = {}
    _forward_pre_hooks: tuple[PreHook, ...] = ()
    _forward_hooks: tuple[Hook, ...] = ()
    _registered_as: str | None = None

    @abstractmethod
    def forward(self, action: Any, observation: Any) -> Any:
        """The score: a finite number, or an awaitable of one."""

    def __call__(self, action: Any, observation: Any) -> Any:
        """Scores a step: pre-hooks, `forward`, `last_score`, hooks.

        Returns:
            The score, which may be awaited; a coroutine of it if `forward` or a hook is asynchronous.

        Raises:
            RubricFailed: `forward` did not return a finite number.
        """
        score = settle(self._scoring(action, observation))
        return Score(score) if isinstance(score, (float, int)) else score

    def _scoring(self, action: Any, observation: Any) -> Steps[float]:
        for pre_hook in self._forward_pre_hooks:
            yield pre_hook(self, action, observation)
        score = finite_score((yield self.forward(action, observation)), self)
        self.__dict__["last_score"] = score  # past `__setattr__`, which looks for children
        page = current_sheet.get()
        if page is not None:
            page.scores[id(self)] = score
        for hook in self._forward_hooks:
            yield hook(self, action, observation, score)
        return score

    def _note(self, note: str) -> None:
        """Adds a note to the current score, for the metadata of the observation."""
        page = current_sheet.get()
        if page is not None:
            page.notes.append((self, note))

    def register_forward_pre_hook(self, hook: PreHook) -> None:
        """Has `hook(rubric, action, observation)` called before each `forward`; it may be asynchronous."""
        self._forward_pre_hooks = (*self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Hook) -> None:
        """Has `hook(rubric, action, observation, score)` called after each `forward`; it may be asynchronous."""
        self._forward_hooks = (*self._forward_hooks, hook)

    # Children

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Rubric):
            self._register(name, value)
        elif name in self._rubric_children:
            self._unregister(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in self._rubric_children:
            self._unregister(name)

    def _register(self, name: str, child: Rubric) -> None:
        if child is self or any(below is self for below in child.rubrics()):
            raise ValueError(
                f"{rubric_label(self)} cannot be a part of itself: {name!r} is the same rubric, or contains it"
            )
        # A new dict: the one before may be the class's, or in use by an iteration over the children.
        self.__dict__["_rubric_children"] = {**self._rubric_children, name: child}
        child.__dict__["_registered_as"] = name

    def _unregister(self, name: str) -> None:
        self.__dict__["_rubric_children"] = {k: v for k, v in self._rubric_children.items() if k != name}

    def children(self) -> Iterator[Rubric]:
        """The direct children, in the order in which they were added."""
        yield from self._rubric_children.values()

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """The direct children with their names."""
        yield from self._rubric_children.items()

    def rubrics(self) -> Iterator[Rubric]:
        """All rubrics below this one, each before its own children."""
        for _, rubric in self.named_rubrics():
            yield rubric

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """All rubrics below this one with their paths: `"style"`, `"style.length"`.

        Args:
            prefix: Put before each path, with a dot between.
        """
        for name, child in self._rubric_children.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)

    def get_rubric(self, path: str) -> Rubric:
        """The rubric of a path below this one.

        Raises:
            KeyError: There is no such rubric; the message names the existing ones.
        """
        below = dict(self.named_rubrics())
        if path not in below:
            raise KeyError(f"no rubric {path!r} in {rubric_label(self)}: it has {', '.join(below) or 'none'}")
        return below[path]

    # Between episodes and processes

    def reset(self) -> Any:
        """Forgets the last episode, in this rubric and in all below it.

        A rubric may have a `reset_async` in its place.

        Returns:
            None; an awaitable if the `reset` of one of them is asynchronous.
        """
        return settle(reset_rubric(child) for child in self._rubric_children.values())

    def state_dict(self) -> dict[str, Any]:
        """The settings of this rubric and, by name, of its children; without empty ones."""
        states = ((name, child.state_dict()) for name, child in self._rubric_children.items())
        return {name: state for name, state in states if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the `state_dict` of a rubric with the same parts. Settings that it lacks stay as they are.

        Raises:
            ValueError: A setting is invalid for its rubric.
        """
        for name, child in self._rubric_children.items():
            if name in state:
                child.load_state_dict(state[name])
