"""Rubrics as asynchronous code uses them, whichever of their parts are synchronous."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv import Action, Environment, Observation, State
from openenv.rubrics import Gate, Rubric, Sequential, TrajectoryRubric, WeightedSum


class Half(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return 0.5


class Counting(Rubric):
    """Forgets by `reset_async` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def forward(self, action: Any, observation: Any) -> float:
        self.count += 1
        return float(self.count)

    async def reset_async(self) -> None:
        await asyncio.sleep(0)
        self.count = 0


class Judged(Environment[Action, Observation, State]):
    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Observation:
        self._reset_rubric()
        return Observation()

    async def reset_async(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Observation:
        await self._reset_rubric_async()
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(reward=self._apply_rubric(action, None))

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(reward=await self._apply_rubric_async(action, None))

    @property
    def state(self) -> State:
        return State()


@pytest.mark.parametrize(
    ("rubric", "score"),
    [
        (Sequential(), 1.0),
        (Sequential(Half(), Half()), 0.5),
        (WeightedSum([Half()], [1.0]), 0.5),
        (Gate(Half(), 0.5), 0.5),
    ],
)
async def test_a_score_of_synchronous_rubrics_can_be_awaited(rubric: Rubric, score: float) -> None:
    assert await rubric("a", "o") == rubric("a", "o") == score
    assert Observation(reward=rubric("a", "o")).model_dump_json() == Observation(reward=score).model_dump_json()


@pytest.mark.parametrize("nested", [False, True])
async def test_reset_async_of_a_rubric_is_called_between_episodes(nested: bool) -> None:
    rubric = Counting()
    environment = Judged(rubric=Sequential(rubric) if nested else rubric)
    for _ in range(2):
        await environment.reset_async()
        rewards = [(await environment.step_async(Action())).reward for _ in range(3)]
        assert rewards == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("nested", [False, True])
def test_reset_async_of_a_rubric_is_called_from_synchronous_code_too(nested: bool) -> None:
    rubric = Counting()
    environment = Judged(rubric=Sequential(rubric) if nested else rubric)
    for _ in range(2):
        environment.reset()
        assert [environment.step(Action()).reward for _ in range(3)] == [1.0, 2.0, 3.0]


class Steps(TrajectoryRubric):
    def __init__(self) -> None:  # as many write it: without super().__init__()
        pass

    def score_trajectory(self, trajectory: Any) -> float:
        return 1.0

    def compute_step_rewards(self) -> list[float]:
        return [1.0] * len(self._trajectory)


def test_a_trajectory_is_a_list_from_the_beginning_and_belongs_to_its_rubric() -> None:
    one, other = Steps(), Steps()
    assert one.compute_step_rewards() == []
    one("a", Observation())
    assert (one.compute_step_rewards(), other.compute_step_rewards()) == ([1.0], [])
    one.reset()
    assert one.compute_step_rewards() == []
