"""Connecting again after a connection was lost, without hurrying a server that is just coming back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import ConnectionFailed

__all__ = ["redial"]

T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


async def redial(dial: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Tries until a connection is there, in growing intervals.

    Args:
        dial: Connects.
        patience_s: Seconds after which no further attempt is made.

    Raises:
        ConnectionFailed: That of the last attempt.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return await dial()
        except ConnectionFailed as error:
            if not error.retryable or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
