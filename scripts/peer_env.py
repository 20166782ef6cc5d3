"""One benchmark environment for every package that offers `openenv.core`, in three forms.

`bench_peer.py` serves it under this package and under the released one. MAX_CONCURRENT_ENVS sets the session limit.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

LIMIT = int(os.environ.get("MAX_CONCURRENT_ENVS", "20000"))


class WaitAction(Action):
    """A step with a given duration."""

    wait_seconds: float = 0.0


class WaitObservation(Observation):
    """The session and process of the step."""

    waited_seconds: float = 0.0
    pid: int = 0
    session_hash: str = ""
    step_count: int = 0


class SyncWait(Environment):  # type: ignore[type-arg]  # not every package's Environment takes types
    """Waits with `time.sleep`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._session_hash = secrets.token_hex(8)
        self._state = State(episode_id=self._session_hash, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> WaitObservation:
        self._state = State(episode_id=episode_id or self._session_hash, step_count=0)
        return self._observe(0.0)

    def step(self, action: WaitAction, timeout_s: float | None = None, **kwargs: Any) -> WaitObservation:
        if action.wait_seconds:
            time.sleep(action.wait_seconds)
        return self._observe(action.wait_seconds, steps=1)

    @property
    def state(self) -> State:
        return self._state

    def _observe(self, waited: float, steps: int = 0) -> WaitObservation:
        self._state.step_count += steps
        return WaitObservation(
            waited_seconds=waited,
            pid=os.getpid(),
            session_hash=self._session_hash,
            step_count=self._state.step_count,
            reward=1.0 / (1.0 + waited),
        )


class AsyncWait(SyncWait):
    """Waits with `asyncio.sleep`."""

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> WaitObservation:
        return self.reset(seed=seed, episode_id=episode_id)

    async def step_async(self, action: WaitAction, timeout_s: float | None = None, **kwargs: Any) -> WaitObservation:
        if action.wait_seconds:
            await asyncio.sleep(action.wait_seconds)
        return self._observe(action.wait_seconds, steps=1)


class InlineWait(SyncWait):
    """The synchronous form, declared as inline for this package's event loop. Others ignore that."""

    execution = "inline"


def _app(environment: type[SyncWait]) -> Any:
    return create_app(environment, WaitAction, WaitObservation, env_name="wait", max_concurrent_envs=LIMIT)


app_sync = _app(SyncWait)
app_async = _app(AsyncWait)
app_inline = _app(InlineWait)
