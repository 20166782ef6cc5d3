"""An environment whose episodes can be told apart, and records of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from openenv.environment import Environment
from openenv.types import Action, Observation, State

__all__ = ["Dice", "Roll", "Rolled"]


class Roll(Action):
    sides: int = Field(default=6, ge=2)
    fails: bool = False


class Rolled(Observation):
    eyes: list[int] = []
    share: float = 0.0
    clock: float = Field(default=0.0, json_schema_extra={"seeded": False})


class Dice(Environment[Roll, Rolled, State]):
    """Rolls dice; the tenth roll is the last."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"
    # What a test changes, so that episodes are no longer the same.
    bias = 0

    def __init__(self) -> None:
        super().__init__()
        self._eyes: list[int] = []
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Rolled:
        self._eyes = []
        self._state = State(episode_id=episode_id, step_count=0)
        return self._rolled(None)

    def step(self, action: Roll, timeout_s: float | None = None, **kwargs: Any) -> Rolled:
        self._state.step_count += 1
        if action.fails:
            raise ValueError("the dice fell off the table")
        eyes = self.rng.randint(1, action.sides)
        self._eyes.append(eyes + (self.bias if len(self._eyes) == 2 else 0))
        return self._rolled(float(eyes))

    @property
    def state(self) -> State:
        return self._state

    def _rolled(self, reward: float | None) -> Rolled:
        steps = self._state.step_count
        return Rolled(eyes=list(self._eyes), share=steps / 3, clock=id(self), reward=reward, done=steps == 10)
