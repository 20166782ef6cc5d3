"""Checks under load: many sessions at once, deadlines, blocked event loops, memory."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from ..errors import ConnectionFailed, OpenEnvError, StepTimeout, UsageError
from ..runtime.profile import Execution
from .check import Check, CheckFailure, CheckSkip
from .harness import CallOutcome, ConformanceHarness, EpisodePlayer
from .leak_checks import resident_bytes
from .lifecycle_checks import SEED, describe_error, episode_difference, reference_of

STEPS = 4
# A longer step on the event loop delays all other sessions there.
HOLDING_UP_S = 0.05
SHORTEST_DEADLINE_S = 0.001
DEADLINES = 4
# A server checks deadlines every few milliseconds, so a short step may end before its deadline stops it; on a busy
# machine, a step may be stopped before it begins. Neither proves anything, so quick steps are tried more often.
MOST_DEADLINES = 16
DEADLINES_S = 2.0
# The fastest of this number is the time of a step; other work of the machine slowed the others.
TIMINGS = 3
# Part of the episodes before the first measurement of memory, for one-time allocations.
WARM = 0.5
# Smaller growth comes from the machine: arenas of malloc, caches that fill.
GROWTH_BYTES = 4 * 1024 * 1024
EPISODE_STEPS = 4
# Time limit for slow environments, as a multiple of that of one call.
MEMORY_CALLS = 1.2
MEMORY_S = 5.0
# Number of measurements of memory, each of which takes some time.
MARKS = 10


@Check.of(
    "load.sessions", "Do many concurrent sessions work, and does each play as it would alone?", "runtime.isolation"
)
async def load_sessions(harness: ConformanceHarness) -> str:
    count = min(harness.sessions, harness.server.max_sessions)
    if count < 2:
        raise CheckSkip("the environment has one session at a time (SUPPORTS_CONCURRENT_SESSIONS, max_sessions)")
    actions = (await harness.actions())[:STEPS]
    facts = await harness.facts()
    reference = (await reference_of(harness))[: STEPS + 1]
    clients = [harness.client() for _ in range(count)]
    times: list[float] = []

    async def play(player: EpisodePlayer) -> list[CallOutcome]:
        seen: list[CallOutcome] = []
        for action in (None, *actions):
            began = time.perf_counter()
            seen.append(await (player.reset(SEED) if action is None else player.step(action)))
            times.append(time.perf_counter() - began)
            if seen[-1].done or isinstance(seen[-1].error, (ConnectionFailed, StepTimeout)):
                break
        return seen

    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            played = [group.create_task(play(EpisodePlayer(each, facts.seedable))) for each in clients]
    finally:
        await harness.leave(*clients)
    took = time.perf_counter() - began
    await harness.quiet()
    await _check_all(harness, [each.result() for each in played], reference if facts.seedable else None)
    slowest = max(times) * 1000
    return (
        f"{count} concurrent sessions, {len(times)} calls in {took:.1f} s, "
        f"median {statistics.median(times) * 1000:.1f} ms, slowest {slowest:.1f} ms"
    )


async def _check_all(
    harness: ConformanceHarness, played: list[list[CallOutcome]], reference: list[CallOutcome] | None
) -> None:
    broken = [
        seen.error
        for each in played
        for seen in each
        if seen.error is not None and not isinstance(seen.error, UsageError)
    ]
    expected = reference is not None and any(seen.error is not None for seen in reference)
    if broken and not expected:
        raise CheckFailure(
            f"of {len(played)} concurrent sessions, {len(broken)} had an error; "
            f"the first: {describe_error(broken[0])}.",
            "make data that instances share thread-safe; or declare "
            "SUPPORTS_CONCURRENT_SESSIONS = False, or execution = 'process'",
        )
    if reference is None:
        return
    different = []
    for each in played:
        await asyncio.sleep(0)  # large observations take some time: let other tasks run
        found = episode_difference(harness, reference, each)
        different += [] if found is None else [found]
    if different:
        raise CheckFailure(
            f"of {len(played)} concurrent sessions with the same seed and actions, {len(different)} differ from "
            f"one alone: {different[0]}.",
            "keep the data of an episode on the instance (self), not on the class, the module, or in files "
            "of the same name",
        )


@Check.of("load.deadline", "Does a step end at its deadline, and does the next episode work?", "runtime.step")
async def load_deadline(harness: ConformanceHarness) -> str:
    actions = await harness.actions()
    async with harness.session() as player:
        times = []
        for _ in range(TIMINGS):
            await player.reset(SEED)
            began = time.perf_counter()
            await player.step(actions[0])
            times.append(time.perf_counter() - began)
        usual = min(times)
        for name, call in _next_episode(player, actions):
            if (failure := _failure(await call)) is not None:
                raise CheckSkip(f"a {name} also fails without a deadline: {describe_error(failure)}")
        late = tried = 0
        until = time.monotonic() + DEADLINES_S
        while tried < DEADLINES or (tried < MOST_DEADLINES and time.monotonic() < until):
            part = tried % DEADLINES
            tried += 1
            await player.reset(SEED)
            limit = max(SHORTEST_DEADLINE_S, usual * (part + 1) / (DEADLINES + 1))
            seen = await player.step(actions[part], timeout_s=limit)
            late += isinstance(seen.error, StepTimeout)
            for name, call in _next_episode(player, actions):
                failure = _failure(await call)
                if late and failure is not None:
                    raise CheckFailure(
                        f"a step had {limit * 1000:.0f} ms and was stopped; the {name} that followed gave "
                        f"{describe_error(failure)}.",
                        "do not catch asyncio.CancelledError, and release in `finally` (or `async with`) what step "
                        "acquires: locks, connections",
                    )
    took = f"a step takes {usual * 1000:.1f} ms"
    if not late:
        raise CheckSkip(f"steps are too fast to be stopped at a deadline ({took})")
    return f"{late} of {tried} steps were stopped at their deadline ({took}); the next episode works"


def _next_episode(player: EpisodePlayer, actions: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield "reset", player.reset(SEED + 1)
    yield "step", player.step(actions[0])


def _failure(seen: CallOutcome) -> OpenEnvError | None:
    return None if isinstance(seen.error, UsageError) else seen.error


@Check.of(
    "load.blocking",
    "Do all calls of an inline or asynchronous environment leave the event loop free?",
    "runtime.step",
)
async def load_blocking(harness: ConformanceHarness) -> str:
    facts = await harness.facts()
    if facts.execution not in (Execution.INLINE, Execution.LOOP):
        return f"steps run as {facts.execution.value}, and do not delay other sessions"
    actions = (await harness.actions())[:EPISODE_STEPS]
    held: list[float] = []
    async with harness.session() as player:
        for seed in range(2):
            for call in (lambda: player.reset(seed), *((lambda a=a: player.step(a)) for a in actions)):  # noqa: B023
                seen, longest = await _watched(call)
                held.append(longest)
                if seen.done:
                    break
    # A lower quantile than the median, which a busy machine would raise.
    usual = sorted(held)[len(held) // 4]
    if usual > HOLDING_UP_S:
        raise CheckFailure(
            f"most of {len(held)} calls block the event loop, and with it every other session, for "
            f"{usual * 1000:.0f} ms or longer.",
            "await calls that wait (asyncio.sleep, not time.sleep), or make step and reset ordinary functions, which "
            "run on a thread; execution = 'inline' is for steps of microseconds",
        )
    return f"calls block the event loop for {usual * 1000:.1f} ms; {HOLDING_UP_S * 1000:.0f} ms is too long"


async def _watched(call: Any) -> tuple[CallOutcome, float]:
    """The outcome of a call, and the longest time for which the event loop was blocked."""
    longest = 0.0
    over = False

    async def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    seen: CallOutcome = await call()
    await asyncio.sleep(0)
    over = True
    await watching
    return seen, longest


@Check.of("load.memory", "Does memory stay constant over many episodes?", "runtime.step")
async def load_memory(harness: ConformanceHarness) -> str:
    if resident_bytes() is None:
        raise CheckSkip("this machine does not report the memory of processes")
    actions = (await harness.actions())[:EPISODE_STEPS]
    marks: list[tuple[int, int]] = []
    until = time.monotonic() + max(MEMORY_S, MEMORY_CALLS * harness.call_s)
    played = 0
    async with harness.session() as player:
        for number in range(harness.episodes):
            await player.play(actions, number)
            played += 1
            if number % max(1, harness.episodes // MARKS) == 0:
                marks.append((played, _memory_now()))
            if time.monotonic() > until:
                break
        marks.append((played, _memory_now()))
    first, before = next(mark for mark in marks if mark[0] >= played * WARM)
    last, after = marks[-1]
    grown = after - before
    steady = sum(later[1] > earlier[1] for earlier, later in itertools.pairwise(marks))
    each = grown / max(1, last - first)
    if grown > GROWTH_BYTES and steady > len(marks) * 0.6:
        raise CheckFailure(
            f"memory grew by {grown / 2**20:.0f} MiB from episode {first} to {last}: {each / 1024:.0f} KiB each.",
            "discard the data of the last episode in reset: histories, caches, lists on the class",
        )
    short = f" (of {harness.episodes}; more would take too long)" if played < harness.episodes else ""
    return f"{played} episodes{short}: memory grew by {max(grown, 0) / 2**20:.1f} MiB in their second half"


def _memory_now() -> int:
    gc.collect()
    return resident_bytes() or 0
