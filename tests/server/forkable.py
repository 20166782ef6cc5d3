"""Environments whose state says whether a fork has it whole, and some that cannot be forked."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from openenv.environment import Environment
from openenv.errors import NotForkable
from openenv.rubrics import TrajectoryRubric
from openenv.types import State

from .probe import ProbeAction, ProbeEnvironment, ProbeObservation


class Walk(ProbeEnvironment):
    """Each step goes as far as its number and a random one. A deep copy is all that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0
        self._trail: list[int] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> ProbeObservation:
        self._at, self._trail = 0, []
        return super().reset(seed, episode_id)

    def do_ok(self, action: ProbeAction) -> ProbeObservation:
        self._at += action.number + self.rng.randrange(1000)
        self._trail.append(self._at)
        return ProbeObservation(
            value=list(self._trail), step_count=self._steps, reward=1.5, thread=threading.get_ident()
        )


class InlineWalk(Walk):
    execution = "inline"


class AsyncWalk(Walk):
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> ProbeObservation:
        return self.reset(seed, episode_id)

    async def step_async(self, action: ProbeAction) -> ProbeObservation:
        await asyncio.sleep(0)
        return self.step(action)


class Locked(Walk):
    """Holds what no copy can be made of."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()


class Saving(Locked):
    """Says itself what its state is; it stays on the thread that made it."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def save_state(self) -> Any:
        return {"steps": self._steps, "at": self._at, "trail": self._trail}

    def load_state(self, state: Any) -> None:
        assert threading.get_ident() == self._thread
        self._steps, self._at, self._trail = state["steps"], state["at"], state["trail"]


class AsyncSaving(Saving):
    """The same where everything is asynchronous."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> ProbeObservation:
        return self.reset(seed, episode_id)

    async def step_async(self, action: ProbeAction) -> ProbeObservation:
        return self.step(action)

    async def save_state(self) -> Any:
        await asyncio.sleep(0)
        return {"steps": self._steps, "at": self._at, "trail": self._trail}

    async def load_state(self, state: Any) -> None:
        await asyncio.sleep(0)
        self._steps, self._at, self._trail = state["steps"], state["at"], state["trail"]


class Refusing(Walk):
    def save_state(self) -> Any:
        raise NotForkable("Refusing holds a game server that nobody can copy: open another session and replay it")


class BrokenSave(Walk):
    def save_state(self) -> Any:
        raise LookupError("no such state")

    def load_state(self, state: Any) -> None:
        raise AssertionError("never called")


class BrokenLoad(Walk):
    def save_state(self) -> Any:
        return 1

    def load_state(self, state: Any) -> None:
        raise LookupError("no such state")


class Duck:
    """No `Environment`, and no call of anybody's constructor."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self) -> ProbeObservation:
        self.count = 0
        return ProbeObservation(value=[])

    def step(self, action: ProbeAction) -> ProbeObservation:
        self.count += action.number
        return ProbeObservation(value=[self.count])

    @property
    def state(self) -> State:
        return State(step_count=self.count)


class Length(TrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return float(len(trajectory))

    def compute_step_rewards(self) -> list[float]:
        return [0.0] * len(self.trajectory)


class Judged(Environment[ProbeAction, ProbeObservation, State]):
    """The last step's reward is the number of its episode's steps, which only the rubric knows."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(rubric=Length())

    def reset(self, seed: int | None = None) -> ProbeObservation:
        self._reset_rubric()
        return ProbeObservation()

    def step(self, action: ProbeAction) -> ProbeObservation:
        observation = ProbeObservation(done=action.kind == "end")
        observation.reward = self._apply_rubric(action, observation)
        return observation

    @property
    def state(self) -> State:
        return State()


class JudgedSaving(Judged):
    def save_state(self) -> Any:
        return None

    def load_state(self, state: Any) -> None:
        pass
