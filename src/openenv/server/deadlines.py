"""When calls must be answered: one look every few milliseconds at those whose time is over."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Deadlines", "Watched"]

# A call is answered so long after its deadline at most, apart from what the event loop is busy with.
SLOT_S = 0.025


class Watched(Protocol):
    """Somebody with calls that have deadlines.

    Attributes:
        slot: When it will be looked at, in slots; 0 for never. Kept by `Deadlines`.
    """

    slot: int

    def look(self, now: float) -> None:
        """Ends what is over its time, and asks to be watched again for what has time left."""


class Deadlines:
    """Looks at each of many sessions when the first of its deadlines is over.

    A session that has calls one after the other, each with a deadline, is not entered anew for each: it is looked at
    when the first of them would have been over, and says then what it waits for. So a call that is in time, as nearly
    all are, costs a comparison.
    """

    def __init__(self) -> None:
        self._slots: dict[int, set[Watched]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, watched: Watched, due: float) -> None:
        """Has it looked at when `due` (monotonic seconds) is over, or before."""
        slot = int(due / SLOT_S) + 1
        if watched.slot:
            if watched.slot <= slot:
                return
            self.forget(watched)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what waited on another one has ended with it
            self.close()
            self._loop = loop
        watched.slot = slot
        waiting = self._slots.get(slot)
        if waiting is None:
            waiting = self._slots[slot] = set()
            delay = slot * SLOT_S - time.monotonic()
            self._timers[slot] = loop.call_later(max(0.0, delay), self._fire, slot)
        waiting.add(watched)

    def forget(self, watched: Watched) -> None:
        """Does not look at it any more."""
        slot, watched.slot = watched.slot, 0
        waiting = self._slots.get(slot)
        if waiting is None:
            return
        waiting.discard(watched)
        if not waiting:
            del self._slots[slot]
            self._timers.pop(slot).cancel()

    def close(self) -> None:
        """Looks at nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        for waiting in self._slots.values():
            for watched in waiting:
                watched.slot = 0
        self._timers.clear()
        self._slots.clear()

    def _fire(self, slot: int) -> None:
        del self._timers[slot]
        waiting = self._slots.pop(slot)
        for watched in waiting:
            watched.slot = 0
        now = time.monotonic()
        for watched in waiting:
            watched.look(now)
