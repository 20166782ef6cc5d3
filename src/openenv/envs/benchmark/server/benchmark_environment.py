"""The benchmark environment, in three variants. Run this file to check it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import sys
import time
from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.envs.benchmark.models import BenchmarkAction, BenchmarkObservation
from openenv.types import State

__all__ = ["AsyncBenchmarkEnvironment", "BenchmarkEnvironment", "InlineBenchmarkEnvironment", "check"]

HOST = socket.gethostname()


class BenchmarkEnvironment(Environment[BenchmarkAction, BenchmarkObservation, State]):
    """Waits for the duration in the action, on its own thread. The reward is 1 / (1 + seconds waited).

    Episodes do not end.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._session_hash = secrets.token_hex(8)
        self._pid = os.getpid()
        self._episode_id = uuid4().hex
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> BenchmarkObservation:
        """Starts an episode. The seed has no effect, since nothing is random."""
        self._episode_id = episode_id or uuid4().hex
        self._steps = 0
        return self._observe(0.0, None)

    def step(self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any) -> BenchmarkObservation:
        """Sleeps, which only blocks the thread of this session."""
        waited = action.wait_seconds
        if waited:
            time.sleep(waited)
        self._steps += 1
        return self._observe(waited, 1.0 / (1.0 + waited))

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps)

    def _observe(self, waited: float, reward: float | None) -> BenchmarkObservation:
        return BenchmarkObservation(
            host_url=HOST,
            pid=self._pid,
            session_hash=self._session_hash,
            waited_seconds=waited,
            timestamp=time.time(),
            step_count=self._steps,
            reward=reward,
        )


class AsyncBenchmarkEnvironment(BenchmarkEnvironment):
    """The same on the server's event loop, with an asynchronous wait."""

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        """Starts an episode."""
        return self.reset(seed=seed, episode_id=episode_id)

    async def step_async(
        self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        """Sleeps without blocking the event loop."""
        waited = action.wait_seconds
        if waited:
            await asyncio.sleep(waited)
        self._steps += 1
        return self._observe(waited, 1.0 / (1.0 + waited))


class InlineBenchmarkEnvironment(BenchmarkEnvironment):
    """The synchronous code on the server's event loop, to measure the cost of a step without a thread.

    Only for steps without a wait: a sleep blocks all sessions of the server.
    """

    execution = "inline"


def check(environment: BenchmarkEnvironment) -> list[str]:
    """Plays a short episode, and returns its faults."""
    ready = environment.reset(episode_id="check")
    started = time.monotonic()
    seen = environment.step(BenchmarkAction(wait_seconds=0.01))
    taken = time.monotonic() - started
    awaited = asyncio.run(environment.step_async(BenchmarkAction()))
    findings = {
        "a session's hash is 16 hex characters": re.fullmatch("[0-9a-f]{16}", seen.session_hash) is not None,
        "a session keeps its hash": ready.session_hash == seen.session_hash == awaited.session_hash,
        "sessions differ in their hash": type(environment)().reset().session_hash != seen.session_hash,
        "a step takes the time asked for": taken >= 0.01 and seen.waited_seconds == 0.01,
        "the reward is 1 / (1 + seconds)": seen.reward == 1 / 1.01 and awaited.reward == 1.0,
        "host and process are named": seen.host_url == HOST and seen.pid == os.getpid(),
        "time goes on": ready.timestamp <= seen.timestamp <= awaited.timestamp,
        "the episode goes on": not (ready.done or seen.done or awaited.done),
        "steps are counted": (ready.step_count, seen.step_count, awaited.step_count) == (0, 1, 2),
        "state counts too": environment.state == State(episode_id="check", step_count=2),
    }
    return [claim for claim, holds in findings.items() if not holds]


if __name__ == "__main__":
    variants = (BenchmarkEnvironment, AsyncBenchmarkEnvironment, InlineBenchmarkEnvironment)
    faults = [f"{variant.__name__}: {fault}" for variant in variants for fault in check(variant())]
    print("\n".join(f"wrong: {fault}" for fault in faults) or "benchmark environment: ok")
    sys.exit(bool(faults))
