"""The maze."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.errors import ResetRequired
from openenv.types import State

from ..models import MazeAction, MazeObservation

STEPS = 10
MOVES = {"left": -1, "stay": 0, "right": 1}


class MazeEnvironment(Environment[MazeAction, MazeObservation, State]):
    """A line with a goal on it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._position = self._goal = 0
        self._over = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MazeObservation:
        self._state = State(episode_id=episode_id or uuid4().hex)
        self._position = 0
        self._goal = self.rng.choice([-5, -4, -3, 3, 4, 5])
        self._over = False
        return self._observe(None)

    def step(self, action: MazeAction, timeout_s: float | None = None, **kwargs: Any) -> MazeObservation:
        if self._over:
            raise ResetRequired("the episode is over: reset first")
        self._state.step_count += 1
        self._position += MOVES[action.move]
        self._over = self._position == self._goal or self._state.step_count == STEPS
        return self._observe(1.0 if self._position == self._goal else 0.0)

    @property
    def state(self) -> State:
        return self._state

    def _observe(self, reward: float | None) -> MazeObservation:
        return MazeObservation(
            position=self._position,
            goal=self._goal,
            steps_left=STEPS - self._state.step_count,
            pixels=[self._position % 256] * 20_000,
            reward=reward,
            done=self._over,
        )
