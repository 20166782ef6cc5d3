"""Counts, for as long as it is asked to."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.server import create_app
from openenv.types import Action, Observation, State


class CountAction(Action):
    """Adds."""

    by: int = 1


class CountObservation(Observation):
    """What it is now."""

    value: int


class Counter(Environment[CountAction, CountObservation, State]):
    """Adds numbers; the reward is the number."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self._state = State(step_count=0)
        self._value = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> CountObservation:
        """Begins at the seed."""
        self._value = seed or 0
        self._state = State(episode_id=episode_id or uuid4().hex, step_count=0)
        return CountObservation(value=self._value)

    def step(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        """Adds."""
        self._state.step_count += 1
        self._value += action.by
        return CountObservation(value=self._value, reward=float(action.by))

    @property
    def state(self) -> State:
        return self._state


app = create_app(Counter, CountAction, CountObservation, env_name="counter", max_concurrent_envs=16)
