"""Retries with growing, randomised pauses, independent of the program's own `random` and of forks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from .errors import OpenEnvError, TooManyFailures

system_random = SystemRandom()
T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


async def retry_connect(dial: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Tries until a connection is there, in growing intervals that differ from client to client.

    Args:
        dial: Connects.
        patience_s: Seconds after which no further attempt is made.

    Raises:
        OpenEnvError: That of the last attempt, or one that another attempt would not change.
    """
    loop = asyncio.get_running_loop()
    deadline, longest = loop.time() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return await dial()
        except OpenEnvError as error:
            pause = max(jittered_pause(longest), error.retry_after_s or 0.0)
            # Wrong keys of a neighbour behind the same address lock it for a while, for those with the right one too.
            transient = error.retryable or isinstance(error, TooManyFailures)
            if not transient or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        longest = min(2 * longest, LONGEST_PAUSE_S)


def jittered_pause(longest_s: float) -> float:
    """A pause of half that length or more: clients that lost their connections together come back apart."""
    return longest_s * system_random.uniform(0.5, 1.0)
