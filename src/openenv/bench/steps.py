"""Measure the cost of a step with a closed loop: each session steps again as soon as it has its answer."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from .._processes import raise_file_limit
from .._statistics import nearest_rank
from ..client import GenericEnvClient
from ..client.vector import VectorEnvClient
from ..errors import LaunchFailed, OpenEnvError
from ..types import StepResult
from .load import LoadProcess, check_share, run_load, run_loop, split_evenly
from .machine import document_head
from .served import Floor


@dataclass(slots=True)
class StepCost:
    """The result of a measurement. Latencies are seconds, by nearest rank.

    Attributes:
        sessions: Number of sessions that stepped to the end.
        failed: Number of sessions that failed.
        errors: Number of occurrences of each error, by type and message.
        steps: Number of answered steps.
        resets: Number of resets after the end of an episode. Their time and CPU are included.
        seconds: Duration in seconds.
        steps_per_second: `steps` divided by `seconds`.
        p50, p99: Latency of a step, or of a batch of steps.
        server_us_per_step: CPU microseconds of the server's processes. None if unknown.
        client_us_per_step: CPU microseconds of the load processes.
        kib_per_session: Growth of the server's resident memory per session, read after a few steps of all sessions
            while they are idle. None if unknown, or with too few sessions.
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
    kib_per_session: float | None = None

    @property
    def us_per_step(self) -> float | None:
        """CPU microseconds of both sides. None if those of one side are unknown."""
        if self.server_us_per_step is None or self.client_us_per_step is None:
            return None
        return self.server_us_per_step + self.client_us_per_step


def mean_cost(trials: Sequence[StepCost]) -> StepCost:
    """Combines trials: counts are added, other figures are means over the trials that have them.

    Args:
        trials: Trials of the same loop, at least one.
    """
    means: dict[str, Any] = {}
    for figure in ("steps_per_second", "p50", "p99", "server_us_per_step", "client_us_per_step", "kib_per_session"):
        values = [value for trial in trials if (value := getattr(trial, figure)) is not None]
        means[figure] = fmean(values) if values else None
    return StepCost(
        sessions=min(trial.sessions for trial in trials),
        failed=sum(trial.failed for trial in trials),
        errors=dict(sum((Counter(trial.errors) for trial in trials), Counter[str]())),
        steps=sum(trial.steps for trial in trials),
        resets=sum(trial.resets for trial in trials),
        seconds=sum(trial.seconds for trial in trials),
        **means,
    )


# Steps of each session before the measurement, for buffers and caches to reach their full size.
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A closed loop.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        sessions: Number of concurrent sessions.
        duration_s: Duration in seconds.
        action: Action of each step.
        timeout_s: Seconds for each call.
        vector: Whether all sessions of a process share a `VectorEnvClient` and step in batches.
        connections: Number of connections of each such client. Use one per worker.
    """

    url: str
    sessions: int
    duration_s: float
    action: Mapping[str, Any]
    timeout_s: float = 60.0
    vector: bool = False
    connections: int = 1


@dataclass(slots=True)
class LoopShare:
    """The result of one load process.

    Attributes:
        latencies: Duration of each call (a step, or a batch of steps), in seconds.
        steps: Number of answered steps.
        resets: Number of resets after the end of an episode.
        errors: Number of occurrences of each error, by type and message.
        sessions: Number of sessions that stepped to the end.
        seconds: Duration in seconds.
        cpu_s: CPU time of the process, in seconds.
    """

    latencies: array[float] = field(default_factory=lambda: array("d"))
    steps: int = 0
    resets: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def note(self, error: OpenEnvError) -> None:
        """Counts an error."""
        self.errors[f"{type(error).__name__}: {error.message}"] += 1


class Stepper(ABC):
    """Some of the sessions of a closed loop, with one client. A failure is counted, and ends only its session."""

    def __init__(self, client: Any, part: LoopShare, sessions: int = 1):
        self._client = client
        self._part = part
        self._sessions = sessions
        self._failed: set[int] = set()

    @property
    def alive(self) -> int:
        """Number of its sessions without a failure."""
        return self._sessions - len(self._failed)

    async def prepare(self, places: asyncio.Semaphore) -> None:
        """Connects, resets and warms up, while it holds one of `places`."""
        async with places:
            try:
                await self._reset()
            except OpenEnvError as error:
                for number in range(self._sessions):
                    self._fail(number, error)
            left = iter(range(WARM_UP))
            await self._steps(lambda: next(left, None) is not None)

    async def step_until(self, end: float) -> None:
        """Steps until the time `end`, and waits for the last answer."""
        await self._steps(lambda: time.perf_counter() < end)

    async def close(self) -> None:
        """Closes its sessions."""
        await self._client.close()

    @abstractmethod
    async def _reset(self) -> None:
        """Starts the first episode of each session."""

    @abstractmethod
    async def _steps(self, more: Callable[[], bool]) -> None:
        """Steps while `more` returns True and a session is alive."""

    def _fail(self, number: int, error: OpenEnvError) -> None:
        if number not in self._failed:
            self._failed.add(number)
            self._part.note(error)


class SessionStepper(Stepper):
    """One session with its own client. The first failure ends it."""

    def __init__(self, loop: ClosedLoop, part: LoopShare):
        client = GenericEnvClient(loop.url, connect_timeout_s=loop.timeout_s, message_timeout_s=loop.timeout_s)
        super().__init__(client, part)
        self._action = dict(loop.action)

    async def _reset(self) -> None:
        await self._client.reset()

    async def _steps(self, more: Callable[[], bool]) -> None:
        part, step, action, clock = self._part, self._client.step, self._action, time.perf_counter
        note = part.latencies.append
        try:
            while self.alive and more():
                sent = clock()
                result = await step(action)
                note(clock() - sent)
                part.steps += 1
                if result.done:
                    await self._client.reset()
                    part.resets += 1
        except OpenEnvError as error:
            self._fail(0, error)


class VectorStepper(Stepper):
    """The sessions of one `VectorEnvClient`. A session with a failure is counted as failed, but continues to step."""

    def __init__(self, loop: ClosedLoop, part: LoopShare, sessions: int):
        client = VectorEnvClient(
            GenericEnvClient,
            base_url=loop.url,
            num_envs=sessions,
            connections=min(loop.connections, sessions),
            autoreset_mode="next_step",
            connect_timeout_s=loop.timeout_s,
            message_timeout_s=loop.timeout_s,
        )
        super().__init__(client, part, sessions)
        self._actions = [dict(loop.action)] * sessions
        # Slots with an ended episode: their next step is a reset.
        self._over = 0

    async def _reset(self) -> None:
        self._count(await self._client.reset())

    async def _steps(self, more: Callable[[], bool]) -> None:
        part, step, actions, clock = self._part, self._client.step, self._actions, time.perf_counter
        while self.alive and more():
            sent = clock()
            results = await step(actions)
            part.latencies.append(clock() - sent)
            part.steps += self._count(results) - self._over
            part.resets += self._over
            self._over = sum(result.done for result in results)

    def _count(self, results: Sequence[StepResult[Any]]) -> int:
        """Number of results without an error."""
        failures = [(number, result.error) for number, result in enumerate(results) if result.error is not None]
        for number, error in failures:
            self._fail(number, error)
        return len(results) - len(failures)


# Concurrent connection attempts, few enough that none of them times out.
CONNECTING = 64
# Minimum of sessions for `kib_per_session`: with fewer, one-time allocations of the server dominate.
MEMORY_SESSIONS = 256


class Metered(Protocol):
    """A server with measurable CPU time and memory."""

    def cpu_seconds(self) -> float:
        """CPU time used so far, in seconds."""

    def resident_bytes(self) -> int:
        """Current resident memory, in bytes."""


class _Meter:
    """Measures a server whenever the load processes are synchronized, with all sessions connected and idle."""

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


def measure_steps(loop: ClosedLoop, processes: int = 1, server: Metered | None = None) -> StepCost:
    """Runs a closed loop.

    Args:
        loop: The load.
        processes: Number of load processes among which the sessions are divided.
        server: The server, for its CPU time and memory.

    Raises:
        UsageError: There are too many sessions for the processes.
        LaunchFailed: No session could be opened, or no step was answered; the message has the reason.
    """
    check_share(loop.sessions, processes, raise_file_limit())
    meter = _Meter(server)
    shares = [len(numbers) for numbers in split_evenly(loop.sessions, processes)]
    parts = run_load(partial(_step_along, loop), shares, at_meeting=meter.read)
    errors = sum((part.errors for part in parts), Counter[str]())
    steps, sessions = sum(part.steps for part in parts), sum(part.sessions for part in parts)
    if not steps:
        raise LaunchFailed(f"no step was answered: {'; '.join(errors) or f'no answer within {loop.duration_s:g} s'}")
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


def _step_along(loop: ClosedLoop, member: LoadProcess, sessions: int) -> LoopShare:
    """Runs a load process's share of the sessions."""
    raise_file_limit()
    # Garbage collection stays enabled, as in a trainer, but skips the modules of this process.
    gc.freeze()
    part = LoopShare()

    async def measure() -> LoopShare:
        places = asyncio.Semaphore(CONNECTING)
        steppers: list[Stepper]
        if loop.vector:
            steppers = [VectorStepper(loop, part, sessions)]
        else:
            steppers = [SessionStepper(loop, part) for _ in range(sessions)]
        await asyncio.gather(*(stepper.prepare(places) for stepper in steppers))
        part.latencies, part.steps, part.resets = array("d"), 0, 0  # discard the warm-up
        member.meet()
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(stepper.step_until(began + loop.duration_s) for stepper in steppers))
        part.seconds, part.cpu_s = time.perf_counter() - began, time.process_time() - cpu
        member.meet()
        part.sessions = sum(stepper.alive for stepper in steppers)
        await asyncio.gather(*(stepper.close() for stepper in steppers))
        return part

    return run_loop(measure())


@dataclass(slots=True)
class Trials:
    """The results of all trials.

    Attributes:
        server: One result per trial.
        floor: Results of the empty server, one per trial, or empty.
    """

    server: list[StepCost] = field(default_factory=list)
    floor: list[StepCost] = field(default_factory=list)


def measure_trials(
    loop: ClosedLoop,
    trials: int,
    processes: int,
    server: Metered | None,
    *,
    floor: bool = False,
    stage: Callable[[str], None] = lambda text: None,
) -> Trials:
    """Measures a server and, if requested, an empty server, in alternation.

    Args:
        loop: The load. The floor always has single steps.
        trials: Number of trials.
        processes: Number of load processes among which the sessions are divided.
        server: The server, for its CPU time and memory.
        floor: Whether to run the same load with an empty server on this machine.
        stage: Called with a sentence at the start of each part.

    Raises:
        UsageError, LaunchFailed: As `measure_steps`.
    """
    found = Trials()
    what = f"{loop.sessions:,} sessions step for {loop.duration_s:g} s"
    with Floor() if floor else nullcontext() as empty:
        for number in range(1, trials + 1):
            which = f", trial {number} of {trials}" if trials > 1 else ""
            stage(what + which)
            cost = measure_steps(loop, processes, server)
            # A server keeps the memory that closed sessions have freed: it grows only in the first trial.
            found.server.append(cost if number == 1 else replace(cost, kib_per_session=None))
            if empty is not None:
                stage(f"the floor: {what}{which}")
                at_floor = replace(loop, url=empty.url, action={}, vector=False)
                found.floor.append(measure_steps(at_floor, processes, empty))
    return found


def steps_document(
    loop: ClosedLoop,
    command: str,
    target: str | None,
    served_by: str,
    trials: Sequence[StepCost],
    floor: Sequence[StepCost] = (),
) -> dict[str, Any]:
    """The document that `openenv bench steps --json` prints: the means of all trials, then each trial.

    Args:
        loop: The load.
        command: The command line of the measurement.
        target: Target of `openenv serve`. None if unknown.
        served_by: Description of the server.
        trials: The results, at least one.
        floor: Results of an empty server under the same load.
    """
    workload = {"target": target, "sessions": loop.sessions, "vector": loop.vector, "action": dict(loop.action)}
    return {
        **document_head("steps", command, workload, served_by),
        **asdict(mean_cost(trials)),
        "trials": [asdict(trial) for trial in trials],
        "floor": [asdict(trial) for trial in floor],
    }
