"""How fast servers are started, and how often a start is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..chance import CHANCE
from ..errors import ProviderFailed, UsageError

__all__ = ["Pace"]

T = TypeVar("T")


@dataclass(kw_only=True)
class Pace:
    """Starts spread over time, so that a place is not asked for everything at once.

    Attributes:
        rate: Starts a second at most.
        jitter: By how much of the time between two starts each is put off at random, from 0 to 1.
        at_once: Starts at one time at most.
        attempts: How often a start is tried that fails for a passing reason (`ProviderFailed.retryable`).
        pause_s: Seconds before the second attempt; each further pause is twice as long, up to `longest_pause_s`, and
            is shortened at random by up to a half. The place may ask for longer ones (`retry_after_s`).
        longest_pause_s: The longest of those pauses, in seconds.
    """

    rate: float = 20.0
    jitter: float = 0.2
    at_once: int = 8
    attempts: int = 3
    pause_s: float = 0.5
    longest_pause_s: float = 10.0
    _next: float = field(default=0.0, init=False, repr=False)
    _room: asyncio.Semaphore | None = field(default=None, init=False, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rate", "at_once", "attempts", "pause_s", "longest_pause_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} of a Pace must be more than 0, got {getattr(self, name)!r}")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter of a Pace must be from 0 to 1, got {self.jitter!r}")

    async def start(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs an attempt in its turn, and again while it fails for a passing reason.

        Args:
            attempt: Leaves nothing behind when it fails.

        Raises:
            ProviderFailed: The last one's.
        """
        loop = asyncio.get_running_loop()
        if self._room is None or self._loop is not loop:  # after a fork, who was in there stayed in the parent
            self._room, self._loop, self._next = asyncio.Semaphore(self.at_once), loop, 0.0
        for number in range(1, self.attempts + 1):
            try:
                async with self._room:
                    await self._turn()
                    return await attempt()
            except ProviderFailed as error:
                if not error.retryable or number == self.attempts:
                    raise
                asked_for = min(error.retry_after_s or 0.0, self.longest_pause_s)
            pause = min(self.pause_s * 2 ** (number - 1), self.longest_pause_s)
            pause *= CHANCE.uniform(0.5, 1.0)
            await asyncio.sleep(max(pause, asked_for))
        raise AssertionError("an attempt returns or raises")

    async def _turn(self) -> None:
        now, gap = asyncio.get_running_loop().time(), 1.0 / self.rate
        turn = max(now, self._next)
        self._next = turn + gap
        if turn > now:
            await asyncio.sleep(turn - now + gap * self.jitter * CHANCE.random())
