"""A session that steps again as soon as it is answered."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..client import GenericEnvClient
from ..errors import OpenEnvError
from .crew import Member

__all__ = ["WARM_UP", "Loop", "Part", "SessionStepper", "Stepper"]

# Steps of each session before the measurement: buffers and caches are then as large as they get.
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        sessions: How many step at the same time.
        duration_s: For how long.
        action: What each step does.
        timeout_s: Seconds for each call.
        vector: All sessions of a process go through one `VectorEnvClient`, a batch a step.
        connections: Of each such client; one for each worker that shall have work.
    """

    url: str
    sessions: int
    duration_s: float
    action: Mapping[str, Any]
    timeout_s: float = 60.0
    vector: bool = False
    connections: int = 1


@dataclass(slots=True)
class Part:
    """What one process of the load has done.

    Attributes:
        latencies: Seconds of every call, which is one step or one batch of them.
        steps: Steps answered.
        resets: Episodes that ended and were followed by a reset.
        errors: How often each error came, by type and message.
        sessions: How many stepped to the end.
        seconds: Duration.
        cpu_s: CPU time of the process.
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

    def begin(self) -> None:
        """What was done so far was the warm-up."""
        self.latencies, self.steps, self.resets = array("d"), 0, 0


class Stepper(Protocol):
    """Some of the sessions of a closed loop. Failures are counted and end nothing else."""

    @property
    def alive(self) -> int:
        """How many of its sessions step still."""

    async def prepare(self, places: asyncio.Semaphore) -> None:
        """Connects, resets and warms up; holds one of the places meanwhile."""

    async def step_until(self, end: float) -> None:
        """Steps until the clock has reached `end`, and waits for the last answer."""

    async def close(self) -> None:
        """Ends its sessions."""


class SessionStepper:
    """One session with a client of its own. Its first failure ends it."""

    def __init__(self, loop: Loop, part: Part, member: Member):
        self._part = part
        self._member = member
        self._action = dict(loop.action)
        self._client = GenericEnvClient(loop.url, connect_timeout_s=loop.timeout_s, message_timeout_s=loop.timeout_s)
        self.alive = 1

    async def prepare(self, places: asyncio.Semaphore) -> None:
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
        await self._steps(lambda: time.perf_counter() < end)

    async def close(self) -> None:
        await self._client.close()

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
            self._fail(error)

    def _fail(self, error: OpenEnvError) -> None:
        self.alive = 0
        self._part.note(error)
        self._member.count("failed")
