"""When a failed call is made again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..chance import CHANCE
from ..errors import ModelTimeout

__all__ = ["within"]

T = TypeVar("T")
_LONGEST_PAUSE_S = 20.0


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
    try:
        async with asyncio.timeout_at(deadline) as limit:
            for attempt in itertools.count():
                try:
                    return await call()
                except Exception as error:
                    pause = _pause(error, backoff_s * 2**attempt)
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


def _pause(error: BaseException, backoff_s: float) -> float | None:
    """Seconds before another attempt; None if there should be none."""
    if not getattr(error, "retryable", isinstance(error, (ConnectionError, TimeoutError))):
        return None
    asked = getattr(error, "retry_after_s", None) or 0.0
    return max(float(asked), CHANCE.uniform(0.0, min(backoff_s, _LONGEST_PAUSE_S)))
