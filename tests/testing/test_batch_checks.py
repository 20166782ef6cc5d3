"""The conformance tests of batched environments: good ones pass, and faults are found by the test of that name."""

from __future__ import annotations

import re
from typing import Annotated, Any

import numpy as np
import pytest

from openenv import Array, BatchedEnvironment
from openenv.testing import BatchedEnvironmentConformance
from openenv.types import Action, Observation, State

from .test_environments import Stairs, outcome

COUNT = 5


class Push(Action):
    push: Annotated[np.ndarray, Array("float32", (2,), low=-1, high=1)]
    note: str = ""


class Puck(Observation):
    at: Annotated[np.ndarray, Array("float32", (2,))]
    name: str
    steps: int


class Pucks(BatchedEnvironment[Push, Puck, State]):
    """Pushes pucks until they are far away."""

    num_envs = COUNT

    def __init__(self) -> None:
        super().__init__()
        self.at = np.zeros((COUNT, 2), np.float32)
        self.steps = np.zeros(COUNT, np.int64)
        self.generators = [np.random.default_rng() for _ in range(COUNT)]

    def reset(self, seeds: Any, mask: Any) -> Any:
        for index in np.flatnonzero(mask):
            if seeds[index] is not None:
                self.generators[index] = np.random.default_rng(seeds[index])
            self.at[index] = self.generators[index].uniform(-1, 1, 2)
        self.steps[mask] = 0
        return self.seen(), {}

    def step(self, actions: Any, mask: Any) -> Any:
        self.at[mask] += actions["push"][mask]
        self.steps[mask] += 1
        return self.seen(), self.at.sum(axis=1), np.abs(self.at).max(axis=1) > 2, np.zeros(COUNT, bool), {}

    def seen(self) -> dict[str, Any]:
        return {"at": self.at.copy(), "name": [f"{x:.3f}" for x, _ in self.at], "steps": self.steps.copy()}


class TestPucks(BatchedEnvironmentConformance):
    def app(self) -> Any:
        return Pucks


class TogetherOnly(Pucks):
    """Starts the next episodes itself, and cannot leave one out."""

    autoreset = "same_step"

    def step(self, actions: Any, mask: Any) -> Any:
        assert mask.all()
        seen, rewards, terminated, truncated, _ = super().step(actions, mask)
        if terminated.any():
            self.reset([None] * COUNT, terminated)
            seen = self.seen()
        return seen, rewards, terminated, truncated, {}


class FewRows(Pucks):
    def seen(self) -> dict[str, Any]:
        return {**super().seen(), "name": ["one"]}


class Doubles(Pucks):
    def seen(self) -> dict[str, Any]:
        return {**super().seen(), "at": self.at.astype(np.float64)}


class Raising(Pucks):
    def step(self, actions: Any, mask: Any) -> Any:
        raise KeyError("lost")


class Unseeded(Pucks):
    def reset(self, seeds: Any, mask: Any) -> Any:
        return super().reset([None] * COUNT, mask)


class Drifting(Pucks):
    """Moves all pucks in every step."""

    def step(self, actions: Any, mask: Any) -> Any:
        self.at += np.float32(0.1)
        return super().step(actions, mask)


class Clearing(Pucks):
    """Changes all episodes in the reset of some."""

    def reset(self, seeds: Any, mask: Any) -> Any:
        seen = super().reset(seeds, mask)
        self.steps[:] = 0
        return seen


class Blank(Pucks):
    """Returns the observations of the episodes that a reset has started, and nothing for the others."""

    def reset(self, seeds: Any, mask: Any) -> Any:
        seen, infos = super().reset(seeds, mask)
        seen["at"][~mask] = 0
        return seen, infos


class Sloping(Pucks):
    """Is steeper in the higher slots."""

    def step(self, actions: Any, mask: Any) -> Any:
        self.at[mask] += np.arange(COUNT, dtype=np.float32)[mask, np.newaxis] / 10
        return super().step(actions, mask)


class Crowded(Pucks):
    """Pays for the number of episodes that step, which two halves and their whole do not show."""

    def step(self, actions: Any, mask: Any) -> Any:
        seen, rewards, *rest = super().step(actions, mask)
        return seen, rewards + (mask.sum() == 1), *rest


class Reusing(Pucks):
    def seen(self) -> dict[str, Any]:
        return {**super().seen(), "at": self.at}


def suite(cls: type[Any]) -> BatchedEnvironmentConformance:
    return type("Suite", (BatchedEnvironmentConformance,), {"app": lambda self: cls})()


@pytest.mark.parametrize(
    ("cls", "test", "said"),
    [
        (
            FewRows,
            "test_a_batch_returns_a_row_for_each_episode",
            "failed: reset of the batch raised .*'name'",
        ),
        (Doubles, "test_a_batch_returns_a_row_for_each_episode", r"warned: .*at \(float64, declared float32\)"),
        (Raising, "test_a_batch_returns_a_row_for_each_episode", "failed: step of the batch raised KeyError: 'lost'"),
        (Unseeded, "test_the_same_seeds_give_the_same_batch", "failed: at of episode 0 .* in another instance"),
        (Drifting, "test_episodes_outside_of_the_mask_do_not_change", "failed: at of episode 1 .* calls of other"),
        (Clearing, "test_episodes_outside_of_the_mask_do_not_change", "failed: steps of episode 1 .* other episodes"),
        (Blank, "test_episodes_outside_of_the_mask_do_not_change", "failed: at of episode 0 .* a reset of other"),
        (Sloping, "test_an_episode_is_the_same_in_each_slot", "failed: at of episode 0 .* in the next slot"),
        (Crowded, "test_an_episode_is_the_same_in_each_slot", "failed: reward of episode 0 .* when it plays alone"),
        (Reusing, "test_results_stay_as_they_are", "warned: the next call changed at in the result of reset"),
    ],
)
def test_a_fault_is_found_by_the_test_of_that_name(cls: type[Any], test: str, said: str) -> None:
    found = outcome(getattr(suite(cls), test))
    assert re.match(said, found), found
    assert "To fix it: " in found


def test_an_environment_that_steps_as_a_whole_has_no_masks_to_check() -> None:
    asked = suite(TogetherOnly)
    assert outcome(asked.test_a_batch_returns_a_row_for_each_episode) == "passed"
    assert outcome(asked.test_the_same_seeds_give_the_same_batch) == "passed"
    for test in (
        asked.test_episodes_outside_of_the_mask_do_not_change,
        asked.test_an_episode_is_the_same_in_each_slot,
    ):
        assert "skipped: the episodes of the batch start and step together" in outcome(test)
    assert outcome(asked.test_a_session_opens).startswith("skipped: single sessions are refused")
    assert outcome(asked.test_sessions_do_not_see_each_other).startswith("skipped: single sessions are refused")


def test_an_environment_of_one_episode_has_no_batch_to_check() -> None:
    said = outcome(suite(Stairs).test_a_batch_returns_a_row_for_each_episode)
    assert said.startswith("skipped: the environment plays one episode at a time")
