"""The environment that tests of the TypeScript client play in."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import numpy as np

from openenv import Action, Array, Environment, Observation, State
from openenv.server import create_app


class Order(Action):
    """What a step does."""

    kind: Literal["add", "fail", "hang", "say"] = "add"
    amount: int = 1
    value: Any = None


class Sum(Observation):
    """What a step shows."""

    total: int = 0
    value: Any = None
    pixels: Annotated[np.ndarray, Array("uint8", (2, 2))]


class Adder(Environment[Order, Sum, State]):
    """Adds numbers, and repeats what a client says."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Sum:
        self._total = start
        self._state = State(episode_id=episode_id, step_count=0)
        return self._look()

    def step(self, action: Order) -> Sum:
        raise NotImplementedError  # steps are asynchronous, so that a deadline can stop them

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Sum:
        return self.reset(seed, episode_id, **kwargs)

    async def step_async(self, action: Order, timeout_s: float | None = None, **kwargs: Any) -> Sum:
        if action.kind == "hang":
            await asyncio.Event().wait()
        if action.kind == "fail":
            raise ValueError("told to fail")
        self._total += action.amount
        self._state.step_count += 1
        return self._look(action.value)

    @property
    def state(self) -> State:
        return self._state

    def _look(self, value: Any = None) -> Sum:
        pixels = np.arange(4, dtype=np.uint8).reshape(2, 2)
        return Sum(total=self._total, value=value, pixels=pixels, reward=float(self._total), done=self._total >= 100)


app = create_app(Adder, Order, Sum)
