"""Starts spread over time, tried again, and capped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from openenv.errors import LaunchFailed, ProviderBusy, UsageError
from openenv.providers import StartRate


def fails(*errors: Exception) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """An attempt that fails so often, and when it was made."""
    left, made = list(errors), []

    async def attempt() -> str:
        made.append(asyncio.get_running_loop().time())
        if left:
            raise left.pop(0)
        return "there"

    return attempt, made


async def test_never_more_at_one_time_than_allowed() -> None:
    start_rate, running, most, all_there = StartRate(rate=100_000, at_once=3), 0, 0, asyncio.Event()

    async def attempt() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1

    await asyncio.gather(*(start_rate.start(attempt) for _ in range(20)))
    assert most == 3


async def test_never_faster_than_the_rate() -> None:
    start_rate = StartRate(rate=200, jitter=0, at_once=100)
    attempt, made = fails()
    began = asyncio.get_running_loop().time()  # the first has its turn before it says that it is made
    await asyncio.gather(*(start_rate.start(attempt) for _ in range(11)))
    assert made[-1] - began >= 0.049
    assert len(made) == 11


async def test_after_a_rest_the_first_goes_at_once() -> None:
    start_rate = StartRate(rate=0.01)
    attempt, made = fails()
    began = asyncio.get_running_loop().time()
    await start_rate.start(attempt)
    assert made[0] - began < 15.0


async def test_jitter_puts_off_and_never_hurries() -> None:
    start_rate = StartRate(rate=500, jitter=1.0, at_once=100)
    attempt, made = fails()
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(start_rate.start(attempt) for _ in range(10)))
    assert all(at - began >= number / 500 - 0.001 for number, at in enumerate(sorted(made)))


async def test_a_passing_failure_is_tried_again_and_each_pause_is_longer() -> None:
    start_rate = StartRate(rate=100_000, attempts=4, pause_s=0.01, longest_pause_s=0.02)
    attempt, made = fails(*(ProviderBusy("later") for _ in range(3)))
    assert await start_rate.start(attempt) == "there"
    pauses = [after - before for before, after in pairwise(made)]
    assert pauses[0] >= 0.005
    assert all(pause >= 0.01 for pause in pauses[1:])


async def test_it_gives_up_with_the_last_failure() -> None:
    start_rate = StartRate(rate=100_000, attempts=2, pause_s=0.001)
    attempt, made = fails(ProviderBusy("first"), ProviderBusy("second"), ProviderBusy("third"))
    with pytest.raises(ProviderBusy, match="second"):
        await start_rate.start(attempt)
    assert len(made) == 2


async def test_a_failure_that_stays_is_not_tried_again() -> None:
    attempt, made = fails(LaunchFailed("no such image"))
    with pytest.raises(LaunchFailed, match="no such image"):
        await StartRate().start(attempt)
    assert len(made) == 1


async def test_who_waits_for_the_next_attempt_keeps_nobody_out() -> None:
    start_rate = StartRate(rate=100_000, at_once=1, pause_s=200.0, longest_pause_s=200.0)
    refused, made = fails(ProviderBusy("later"))
    waiting = asyncio.ensure_future(start_rate.start(refused))
    while not made:  # noqa: ASYNC110 - a turn of the loop or two
        await asyncio.sleep(0)
    async with asyncio.timeout(15.0):
        assert await start_rate.start(fails()[0]) == "there"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_one_that_was_left_in_the_middle_on_another_loop() -> None:
    """As after a fork: whoever held the room is not there to leave it."""
    start_rate = StartRate(at_once=1)

    async def never() -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    stuck = loop.create_task(start_rate.start(never))
    loop.run_until_complete(asyncio.sleep(0))
    assert asyncio.run(start_rate.start(fails()[0])) == "there"
    stuck.cancel()
    loop.run_until_complete(asyncio.wait([stuck]))
    loop.close()


@pytest.mark.parametrize("name", ["rate", "at_once", "attempts", "pause_s", "longest_pause_s"])
def test_what_is_no_pace(name: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(UsageError, match=name):
            StartRate(**{name: value})
    with pytest.raises(UsageError, match="jitter"):
        StartRate(jitter=1.1)
