"""Connecting again after a connection was lost, without hurrying a server that is just coming back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..chance import CHANCE
from ..errors import OpenEnvError, TooManyFailures

__all__ = ["pause_of", "redial"]

T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


async def redial(dial: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Tries until a connection is there, in growing intervals that differ from client to client.

    Args:
        dial: Connects.
        patience_s: Seconds after which no further attempt is made.

    Raises:
        OpenEnvError: That of the last attempt, or one that no further attempt would mend.
    """
    loop = asyncio.get_running_loop()
    deadline, longest = loop.time() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return await dial()
        except OpenEnvError as error:
            pause = max(pause_of(longest), error.retry_after_s or 0.0)
            if not _passing(error) or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        longest = min(2 * longest, LONGEST_PAUSE_S)


def pause_of(longest_s: float) -> float:
    """A pause of half that length or more: clients that lost their connections together come back apart."""
    return longest_s * CHANCE.uniform(0.5, 1.0)


def _passing(error: OpenEnvError) -> bool:
    # Wrong keys of a neighbour behind the same address close the door for a while, to those with the right one too.
    return error.retryable or isinstance(error, TooManyFailures)
