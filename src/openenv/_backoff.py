"""Retries with growing, randomised pauses, independent of the program's own `random` and of forks."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from .errors import ModelTimeout, OpenEnvError, TooManyFailures

system_random = SystemRandom()
T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
_LONGEST_PAUSE_OF_CALLS_S = 20.0


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
        """Begins with the first pause again, after a success."""
        self.pause_s = 0.0


async def retry_connect(dial: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Tries until a connection is there, in growing intervals that differ from client to client.

    Args:
        dial: Connects.
        patience_s: Seconds after which no further attempt is made.

    Raises:
        OpenEnvError: That of the last attempt, or one that another attempt would not change.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + patience_s, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        try:
            return await dial()
        except OpenEnvError as error:
            pause = max(jittered_pause(backoff.grow()), error.retry_after_s or 0.0)
            # Wrong keys of a neighbour behind the same address lock it for a while, for those with the right one too.
            transient = error.retryable or isinstance(error, TooManyFailures)
            if not transient or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)


def jittered_pause(longest_s: float) -> float:
    """A pause of half that length or more: clients that lost their connections together come back apart."""
    return longest_s * system_random.uniform(0.5, 1.0)


async def within(
    timeout_s: float | None, call: Callable[[], Awaitable[T]], *, retries: int, backoff_s: float, what: str
) -> T:
    """Makes a call, and makes it again where that may help, all within one deadline.

    Between two attempts lies a random part of `backoff_s * 2**n`, at most 20 s; or what the server asked for in
    Retry-After, if that is longer. A pause that would last beyond the deadline is not begun.

    Args:
        timeout_s: Seconds for everything; None waits as long as it takes.
        call: Starts one attempt.
        retries: How often at most it is made again.
        backoff_s: Seconds, see above.
        what: Who is called, for the message.

    Raises:
        ModelTimeout: The time is over.
        Exception: What the last attempt raised.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    failure: BaseException | None = None
    backoff = Backoff(backoff_s, _LONGEST_PAUSE_OF_CALLS_S)
    try:
        async with asyncio.timeout_at(deadline) as limit:
            for attempt in itertools.count():
                try:
                    return await call()
                except Exception as error:
                    pause = _pause(error, backoff.grow())
                    if attempt >= retries or pause is None or (deadline and loop.time() + pause >= deadline):
                        raise
                    failure = error
                await asyncio.sleep(pause)
    except TimeoutError as error:
        if not limit.expired():
            raise
        before = f"; the attempt before: {failure}" if failure is not None else ""
        message = f"{what} did not answer within {timeout_s:g} s{before}: raise timeout_s, or ask for less at a time"
        raise ModelTimeout(message) from (failure or error)
    raise AssertionError("the last attempt returns or raises")


def _pause(error: BaseException, longest_s: float) -> float | None:
    """Seconds before another attempt; None if there should be none."""
    if not getattr(error, "retryable", isinstance(error, (ConnectionError, TimeoutError))):
        return None
    asked = getattr(error, "retry_after_s", None) or 0.0
    return max(float(asked), system_random.uniform(0.0, longest_s))
