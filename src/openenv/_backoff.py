"""Retries with growing, randomised pauses, independent of the program's `random` state and of forks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from .errors import OpenEnvError, TooManyFailures

system_random = SystemRandom()
T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Backoff:
    """Pauses between attempts; each is twice as long as the one before.

    Args:
        first_s: The first pause in seconds.
        longest_s: The longest pause in seconds.

    Attributes:
        pause_s: The latest pause; 0 before the first one and after `reset`.
    """

    def __init__(self, first_s: float, longest_s: float = math.inf):
        self.first_s = first_s
        self.longest_s = longest_s
        self.pause_s = 0.0

    def grow(self) -> float:
        """Returns the next pause."""
        self.pause_s = min(max(2 * self.pause_s, self.first_s), self.longest_s)
        return self.pause_s

    def reset(self) -> None:
        """Starts with the first pause again, after a success."""
        self.pause_s = 0.0


async def retry_connect(dial: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Tries to connect until it succeeds, in growing intervals that differ from client to client.

    Args:
        dial: Connects.
        patience_s: Seconds after which no further attempt is made.

    Raises:
        OpenEnvError: The error of the last attempt, or one for which a retry is useless.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + patience_s, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        try:
            return await dial()
        except OpenEnvError as error:
            pause = max(jittered_pause(backoff.grow()), error.retry_after_s or 0.0)
            # Wrong keys from another client behind the same address lock the address, also for valid keys.
            transient = error.retryable or isinstance(error, TooManyFailures)
            if not transient or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)


def jittered_pause(longest_s: float) -> float:
    """A random pause of at least half that length: clients that disconnect together reconnect at different times."""
    return longest_s * system_random.uniform(0.5, 1.0)
