from __future__ import annotations

import asyncio
import time
import weakref

import pytest

from openenv.server.timers import SLOT_S, Deadlines

from ..asynchronous import forgotten, until


class Watched:
    """Remembers when it was looked at."""

    def __init__(self, deadlines: Deadlines, then: float | None = None):
        self.slot = 0
        self.looks: list[float] = []
        self._deadlines, self._then = deadlines, then

    def look(self, now: float) -> None:
        self.looks.append(now)
        if self._then is not None:
            self._deadlines.watch(self, self._then)
            self._then = None


async def test_it_is_looked_at_when_its_time_is_over_and_not_before():
    deadlines = Deadlines()
    watched, due = Watched(deadlines), time.monotonic() + 0.1
    deadlines.watch(watched, due)
    await until(lambda: watched.looks)
    assert due <= watched.looks[0] <= time.monotonic()
    assert watched.slot == 0


async def test_a_later_deadline_changes_nothing_and_an_earlier_one_does():
    deadlines = Deadlines()
    watched, now = Watched(deadlines), time.monotonic()
    deadlines.watch(watched, now + 50)
    deadlines.watch(watched, now + 90)
    assert watched.slot * SLOT_S == pytest.approx(now + 50, abs=2 * SLOT_S)
    deadlines.watch(watched, now + 0.05)
    await until(lambda: watched.looks)
    assert len(watched.looks) == 1


async def test_it_may_ask_to_be_looked_at_again():
    deadlines = Deadlines()
    watched = Watched(deadlines, then=time.monotonic() + 0.1)
    deadlines.watch(watched, time.monotonic())
    await until(lambda: len(watched.looks) == 2)


async def test_what_is_forgotten_is_not_looked_at_and_not_kept():
    deadlines = Deadlines()
    kept, dropped, due = Watched(deadlines), Watched(deadlines), time.monotonic() + 0.05
    deadlines.watch(kept, due)
    deadlines.watch(dropped, due)
    deadlines.forget(dropped)
    await until(lambda: kept.looks)
    assert dropped.looks == []
    deadlines.watch(dropped, due + 50)
    deadlines.forget(dropped)
    deadlines.forget(dropped)
    reference = weakref.ref(dropped)
    del dropped
    assert forgotten(reference)


def test_a_loop_that_has_ended_holds_up_nobody():
    deadlines = Deadlines()
    old, new = Watched(deadlines), Watched(deadlines)
    due = time.monotonic() + 0.2

    async def wait() -> None:
        deadlines.watch(new, due)
        await until(lambda: new.looks)

    ended = asyncio.new_event_loop()
    ended.call_soon(deadlines.watch, old, due)
    ended.call_soon(ended.stop)  # before anything can be due
    ended.run_forever()
    ended.close()
    asyncio.run(wait())
    assert old.looks == []


async def test_who_was_watched_when_it_closed_can_be_watched_again():
    deadlines = Deadlines()
    watched = Watched(deadlines)
    deadlines.watch(watched, time.monotonic() + 0.05)
    deadlines.close()
    assert watched.slot == 0
    deadlines.watch(watched, time.monotonic() + 0.1)
    await until(lambda: watched.looks)
    assert len(watched.looks) == 1
