"""Code for synchronous and asynchronous parts alike, written once.

It is a generator that yields whatever may have to be awaited, and gets it back as it is or awaited. With nothing to
await it has run to its end when `settle` returns, with no event loop about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from inspect import getcoroutinelocals, isawaitable, iscoroutine
from typing import Any, TypeVar

from ..scoring import Score

__all__ = ["Steps", "drop", "settle", "together"]

T = TypeVar("T")
Steps = Generator[Any, Any, T]
_PLAIN = frozenset({float, int, bool, type(None), Score})


def settle(steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
    """Runs such code: its result, or from the first awaitable on a coroutine that does the rest."""
    given: Any = None
    try:
        while True:
            given = steps.send(given)
            if _waits(given):
                return _go_on(steps, given)
    except StopIteration as stop:
        result: T = stop.value
        return result


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
    return type(value) not in _PLAIN and isawaitable(value)  # the first alone is a tenth of the cost


def together(values: Sequence[Any]) -> Any:
    """Values of which some may be awaitable, as a list; an awaitable of it if there are any, which run concurrently.

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


def drop(values: Sequence[Any]) -> None:
    """Closes coroutines that nobody will await since a sibling has failed, and what they would have awaited."""
    for value in values:
        if iscoroutine(value):
            if value.cr_code in (_go_on.__code__, _gathered.__code__):
                held = getcoroutinelocals(value)
                drop([held.get("waiting"), *held.get("values", ())])
            value.close()
