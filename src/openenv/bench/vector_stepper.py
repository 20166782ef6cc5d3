"""Sessions that step together, a batch a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..client import GenericEnvClient
from ..client.vector import VectorEnvClient
from ..errors import OpenEnvError
from ..types import StepResult
from .crew import Member
from .stepper import WARM_UP, Loop, Part

__all__ = ["VectorStepper"]


class VectorStepper:
    """The sessions of one `VectorEnvClient`. One that has failed once counts as failed, though it steps on."""

    def __init__(self, loop: Loop, part: Part, member: Member, sessions: int):
        self._part = part
        self._member = member
        self._sessions = sessions
        self._actions = [dict(loop.action)] * sessions
        self._failed: set[int] = set()
        # Episodes that are over: their next step is a reset.
        self._over = 0
        self._client = VectorEnvClient(
            GenericEnvClient,
            base_url=loop.url,
            num_envs=sessions,
            connections=min(loop.connections, sessions),
            autoreset_mode="next_step",
            connect_timeout_s=loop.timeout_s,
            message_timeout_s=loop.timeout_s,
        )

    @property
    def alive(self) -> int:
        return self._sessions - len(self._failed)

    async def prepare(self, places: asyncio.Semaphore) -> None:
        async with places:
            try:
                self._count(await self._client.reset())
            except OpenEnvError as error:
                for number in range(self._sessions):
                    self._fail(number, error)
            for _ in range(self.alive):
                self._member.count("connected")
            left = iter(range(WARM_UP))
            await self._steps(lambda: next(left, None) is not None)

    async def step_until(self, end: float) -> None:
        await self._steps(lambda: time.perf_counter() < end)

    async def close(self) -> None:
        await self._client.close()

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
        """How many of the results are none of a failure."""
        failures = [(number, result.error) for number, result in enumerate(results) if result.error is not None]
        for number, error in failures:
            self._fail(number, error)
        return len(results) - len(failures)

    def _fail(self, number: int, error: OpenEnvError) -> None:
        if number not in self._failed:
            self._failed.add(number)
            self._part.note(error)
            self._member.count("failed")
