"""Environments to evaluate in: honest ones, and some that fail."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from openenv.environment import Environment
from openenv.errors import JudgeFailed, ResetRequired
from openenv.types import Action, Observation, State

__all__ = [
    "Deadly",
    "Dice",
    "DiceAction",
    "DiceObservation",
    "EndsEarly",
    "Exclusive",
    "Exuberant",
    "Faulty",
    "Flaky",
    "Full",
    "Judged",
    "Tasked",
    "TellsSuccess",
    "Wordless",
]


class DiceAction(Action):
    stop: bool = False


class DiceObservation(Observation):
    total: int = 0


class Dice(Environment[DiceAction, DiceObservation, State]):
    """Throws a die at each step and pays what it shows; over at 20, or when somebody stops."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> DiceObservation:
        self.total = 0
        return DiceObservation(total=0)

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        eyes = self.rng.randint(1, 6)
        self.total += eyes
        return DiceObservation(total=self.total, reward=float(eyes), done=action.stop or self.total >= 20)

    @property
    def state(self) -> State:
        return State(step_count=0)


class TellsSuccess(Dice):
    """Says of an episode whether it was a success: an even total."""

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        seen = super().step(action)
        if seen.done:
            seen.metadata["success"] = self.total % 2 == 0
        return seen


class Wordless(Environment[Any, Observation, State]):
    """Takes any object: nothing says what a model could do."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(done=True)

    @property
    def state(self) -> State:
        return State()


class Judged(Dice):
    """Reports the parts of its rubric: one for each eye of the die, and one that is never evaluated."""

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        seen = super().step(action)
        seen.metadata["rubric"] = {"eyes": seen.reward, "style": None, "total": 1}
        return seen


class Tasked(Dice):
    """Has tasks: its reward is the task's index, at once."""

    def reset(self, seed: int | None = None, split: str = "train", index: int = 0, **kwargs: Any) -> DiceObservation:
        self.index = index
        assert split == "test"
        return super().reset(seed)

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        return DiceObservation(reward=float(self.index), done=True)

    @staticmethod
    def list_splits() -> list[str]:
        return ["train", "test"]

    @staticmethod
    def num_tasks(split: str) -> int:
        return {"train": 5, "test": 3}[split]


class Faulty(Dice):
    """Fails by itself in every episode with an odd first number."""

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        seen = super().step(action)
        if self.total % 2:
            raise ValueError("odd")
        return seen


class Flaky(Dice):
    """Its judge is not always there: for some episodes not at their first try, for some never."""

    tries: ClassVar[dict[Any, int]] = {}
    failing: ClassVar[dict[Any, int]] = {}

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> DiceObservation:
        self.seed = seed
        self.tries[seed] = self.tries.get(seed, 0) + 1
        return super().reset(seed)

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        if self.tries[self.seed] <= self.failing.get(self.seed, 0):
            raise JudgeFailed("the judge did not answer")
        return super().step(action)


class Full(Dice):
    """Counts how many there are at a time."""

    most: ClassVar[int] = 0
    inside: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Full.inside += 1
        Full.most = max(Full.most, Full.inside)

    def close(self) -> None:
        Full.inside -= 1


class EndsEarly(Dice):
    """Wants a reset in the middle of an episode."""

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        raise ResetRequired("call reset")


class Exclusive(Dice):
    """Has room for one session, and takes no seed."""

    SUPPORTS_CONCURRENT_SESSIONS = False

    def reset(self, episode_id: str | None = None) -> DiceObservation:
        return DiceObservation()


class Exuberant(Dice):
    """Rewards without measure; of its seeds, the odd ones are beyond all floats."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> DiceObservation:
        self.seed = seed or 0
        return super().reset(seed)

    def step(self, action: DiceAction, timeout_s: float | None = None, **kwargs: Any) -> DiceObservation:
        return DiceObservation(reward=float("inf") if self.seed % 2 else 1.5e308, done=action.stop)


class Deadly(Dice):
    """Ends its whole server in its third episode."""

    episodes: ClassVar[int] = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> DiceObservation:
        Deadly.episodes += 1
        if Deadly.episodes == 4:  # one was the question whether it is ready
            os._exit(3)
        return super().reset(seed)
