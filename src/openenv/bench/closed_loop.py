"""What a step costs: every session steps again as soon as it is answered."""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..client import GenericEnvClient
from ..errors import LaunchFailed, OpenEnvError
from .crew import Counts, Member, deal, run_crew, run_loop
from .file_limit import check_share, raise_file_limit
from .quantiles import nearest_rank

__all__ = ["Loop", "StepCost", "measure_steps"]

# Steps of each session before the measurement: buffers and caches are then as large as they get.
WARM_UP = 20
# Connections opened at one time, so that none of them waits long enough to fail.
CONNECTING = 64


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        sessions: How many step at the same time.
        duration_s: For how long.
        action: What each step does.
        timeout_s: Seconds for each call.
    """

    url: str
    sessions: int
    duration_s: float
    action: Mapping[str, Any]
    timeout_s: float = 60.0


@dataclass(slots=True)
class StepCost:
    """What was measured. Latencies are seconds, by nearest rank.

    Attributes:
        sessions: How many stepped to the end.
        failed: How many did not.
        errors: How often each error came, by type and message.
        steps: Steps answered.
        resets: Episodes that ended and were followed by a reset; its time and CPU count too.
        seconds: Duration.
        steps_per_second: `steps` by `seconds`.
        p50, p99: Latency of a step.
        server_us_per_step: CPU microseconds of the server's processes; None if they are not known.
        client_us_per_step: CPU microseconds of the load's processes.
    """

    sessions: int
    failed: int
    errors: dict[str, int]
    steps: int
    resets: int
    seconds: float
    steps_per_second: float
    p50: float | None
    p99: float | None
    server_us_per_step: float | None
    client_us_per_step: float | None


@dataclass(slots=True)
class _Part:
    """What one process of the load has done."""

    latencies: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    resets: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


def measure_steps(
    loop: Loop,
    processes: int = 1,
    server_cpu: Callable[[], float] | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> StepCost:
    """Runs a closed loop.

    Args:
        loop: What to do.
        processes: Among which the sessions are shared out.
        server_cpu: CPU seconds that the server has used so far; read when all sessions are connected and idle,
            before and after.
        progress: Called about ten times a second.

    Raises:
        UsageError: The processes cannot have as many sessions open.
        LaunchFailed: No session could be opened, or none ended a step; the message says why.
    """
    check_share(loop.sessions, processes, raise_file_limit())
    readings: list[float] = []

    def read_cpu(_: int) -> None:
        if server_cpu is not None:
            readings.append(server_cpu())

    shares = [len(numbers) for numbers in deal(loop.sessions, processes)]
    parts = run_crew(partial(_step_along, loop), shares, at_meeting=read_cpu, progress=progress)
    latencies = sorted(latency for part in parts for latency in part.latencies)
    errors = sum((part.errors for part in parts), Counter[str]())
    if not latencies:
        raise LaunchFailed(f"no step was answered: {'; '.join(errors) or f'not within {loop.duration_s:g} s'}")
    seconds = max(part.seconds for part in parts)
    steps, sessions = len(latencies), sum(part.sessions for part in parts)
    return StepCost(
        sessions=sessions,
        failed=loop.sessions - sessions,
        errors=dict(errors),
        steps=steps,
        resets=sum(part.resets for part in parts),
        seconds=seconds,
        steps_per_second=steps / seconds,
        p50=nearest_rank(latencies, 0.50),
        p99=nearest_rank(latencies, 0.99),
        server_us_per_step=1e6 * (readings[1] - readings[0]) / steps if readings else None,
        client_us_per_step=1e6 * sum(part.cpu_s for part in parts) / steps,
    )


def _step_along(loop: Loop, member: Member, sessions: int) -> _Part:
    """In a process of the crew: its share of the sessions."""
    raise_file_limit()
    # Collections go on, as in a trainer, but have nothing to do with the modules of this process.
    gc.freeze()
    return run_loop(_measure(loop, member, sessions))


async def _measure(loop: Loop, member: Member, sessions: int) -> _Part:
    part = _Part()
    places = asyncio.Semaphore(CONNECTING)
    players = [_Session(loop, part, member) for _ in range(sessions)]
    await asyncio.gather(*(player.prepare(places) for player in players))
    part.latencies, part.resets = array("d"), 0
    member.meet()
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(player.step_until(began + loop.duration_s) for player in players))
    part.seconds, part.cpu_s = time.perf_counter() - began, time.process_time() - cpu
    member.meet()
    part.sessions = sum(player.alive for player in players)
    await asyncio.gather(*(player.close() for player in players))
    return part


class _Session:
    """One session of a closed loop. A failure ends it and nothing else."""

    def __init__(self, loop: Loop, part: _Part, member: Member):
        self._loop = loop
        self._part = part
        self._member = member
        self._client = GenericEnvClient(loop.url, connect_timeout_s=loop.timeout_s, message_timeout_s=loop.timeout_s)
        self.alive = True

    async def prepare(self, places: asyncio.Semaphore) -> None:
        """Connects, resets and warms up."""
        async with places:
            try:
                await self._client.reset()
            except OpenEnvError as error:
                self._fail(error)
            else:
                self._member.count("connected")
                left = iter(range(WARM_UP))
                await self._steps(lambda: next(left, None) is not None)

    async def step_until(self, end: float) -> None:
        """Steps until the clock has reached `end`, and waits for the last answer."""
        await self._steps(lambda: time.perf_counter() < end)

    async def close(self) -> None:
        """Ends the session."""
        await self._client.close()

    async def _steps(self, more: Callable[[], bool]) -> None:
        step, clock, note = self._client.step, time.perf_counter, self._part.latencies.append
        action = dict(self._loop.action)
        try:
            while self.alive and more():
                sent = clock()
                result = await step(action)
                note(clock() - sent)
                if result.done:
                    await self._client.reset()
                    self._part.resets += 1
        except OpenEnvError as error:
            self._fail(error)

    def _fail(self, error: OpenEnvError) -> None:
        self.alive = False
        self._part.errors[f"{type(error).__name__}: {error.message}"] += 1
        self._member.count("failed")
