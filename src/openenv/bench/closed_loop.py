"""What a step costs: every session steps again as soon as it is answered."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..errors import LaunchFailed
from .crew import Counts, Member, deal, run_crew, run_loop
from .file_limit import check_share, raise_file_limit
from .quantiles import nearest_rank
from .step_cost import StepCost
from .stepper import Loop, Part, SessionStepper, Stepper
from .vector_stepper import VectorStepper

__all__ = ["Loop", "Metered", "StepCost", "measure_steps"]

# Connections opened at one time, so that none of them waits long enough to fail.
CONNECTING = 64
# Below so many sessions, what a server allocates once outweighs what it allocates for each.
MEMORY_SESSIONS = 256


class Metered(Protocol):
    """A server whose use of the machine can be read."""

    def cpu_seconds(self) -> float:
        """CPU time used so far."""

    def resident_bytes(self) -> int:
        """Resident memory now."""


class _Meter:
    """Reads a server at the meetings of the load: when all sessions are connected and idle, before and after."""

    def __init__(self, server: Metered | None):
        self._server = server
        self._cpu: list[float] = []
        self._bytes = [server.resident_bytes()] if server is not None else []

    def read(self, _: int) -> None:
        if self._server is not None:
            self._cpu.append(self._server.cpu_seconds())
            self._bytes.append(self._server.resident_bytes())

    def us_per_step(self, steps: int) -> float | None:
        return 1e6 * (self._cpu[1] - self._cpu[0]) / steps if self._cpu else None

    def kib_per_session(self, sessions: int) -> float | None:
        if not self._bytes or sessions < MEMORY_SESSIONS:
            return None
        return max(0, self._bytes[1] - self._bytes[0]) / 1024 / sessions


def measure_steps(
    loop: Loop,
    processes: int = 1,
    server: Metered | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> StepCost:
    """Runs a closed loop.

    Args:
        loop: What to do.
        processes: Among which the sessions are shared out.
        server: What serves, for its CPU time and memory.
        progress: Called about ten times a second.

    Raises:
        UsageError: The processes cannot have as many sessions open.
        LaunchFailed: No session could be opened, or none ended a step; the message says why.
    """
    check_share(loop.sessions, processes, raise_file_limit())
    meter = _Meter(server)
    shares = [len(numbers) for numbers in deal(loop.sessions, processes)]
    parts = run_crew(partial(_step_along, loop), shares, at_meeting=meter.read, progress=progress)
    errors = sum((part.errors for part in parts), Counter[str]())
    steps, sessions = sum(part.steps for part in parts), sum(part.sessions for part in parts)
    if not steps:
        raise LaunchFailed(f"no step was answered: {'; '.join(errors) or f'not within {loop.duration_s:g} s'}")
    latencies = sorted(latency for part in parts for latency in part.latencies)
    seconds = max(part.seconds for part in parts)
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
        server_us_per_step=meter.us_per_step(steps),
        client_us_per_step=1e6 * sum(part.cpu_s for part in parts) / steps,
        kib_per_session=meter.kib_per_session(loop.sessions),
    )


def _step_along(loop: Loop, member: Member, sessions: int) -> Part:
    """In a process of the crew: its share of the sessions."""
    raise_file_limit()
    # Collections go on, as in a trainer, but have nothing to do with the modules of this process.
    gc.freeze()
    return run_loop(_measure(loop, member, sessions))


async def _measure(loop: Loop, member: Member, sessions: int) -> Part:
    part = Part()
    places = asyncio.Semaphore(CONNECTING)
    steppers: list[Stepper]
    if loop.vector:
        steppers = [VectorStepper(loop, part, member, sessions)]
    else:
        steppers = [SessionStepper(loop, part, member) for _ in range(sessions)]
    await asyncio.gather(*(stepper.prepare(places) for stepper in steppers))
    part.begin()
    member.meet()
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stepper.step_until(began + loop.duration_s) for stepper in steppers))
    part.seconds, part.cpu_s = time.perf_counter() - began, time.process_time() - cpu
    member.meet()
    part.sessions = sum(stepper.alive for stepper in steppers)
    await asyncio.gather(*(stepper.close() for stepper in steppers))
    return part
