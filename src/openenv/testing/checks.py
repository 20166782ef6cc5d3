"""What tests that are shipped assert, in words for whoever runs them."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

__all__ = ["check", "raises", "truth_of", "until", "whole"]

GLANCE_S = 0.05


def check(holds: bool, otherwise: str) -> None:
    # No assert: its message is to be read where assertions are not rewritten, too.
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def raises(kind: type[BaseException], when: str) -> Iterator[list[BaseException]]:
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised {when}")


def whole(error: BaseException) -> str:
    """All that anybody could read of an error: notes and causes, too."""
    return "".join(traceback.format_exception(error))


async def truth_of(value: Awaitable[object]) -> bool:
    return bool(await value)


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float, otherwise: str) -> None:
    limit = time.monotonic() + limit_s
    while not await holds():
        check(time.monotonic() < limit, f"{otherwise} within {limit_s:g} s")
        await asyncio.sleep(GLANCE_S)
