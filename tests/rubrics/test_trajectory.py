from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.errors import RubricFailed
from openenv.rubrics import ExponentialDiscountingTrajectoryRubric, TrajectoryRubric, WeightedSum

from .rubrics import Constant

GOING, DONE = SimpleNamespace(done=False), SimpleNamespace(done=True)


class Won(ExponentialDiscountingTrajectoryRubric):
    """An episode's score is what its last action was."""

    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Any:
        return trajectory[-1][0]


class Judged(Won):
    async def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Any:
        await asyncio.sleep(0)
        return trajectory[-1][0]


def played(rubric: Won, steps: int, score: float) -> list[Any]:
    return [rubric(at, GOING) for at in range(steps - 1)] + [rubric(score, DONE)]


def test_only_the_last_step_is_judged():
    assert played(Won(), 3, 0.5) == [0.0, 0.0, 0.5]
    assert played(Won(intermediate_reward=-0.1), 3, 0.5) == [-0.1, -0.1, 0.5]


@pytest.mark.parametrize("observation", [{"done": True}, DONE])
def test_an_observation_may_be_a_mapping(observation):
    assert Won()(0.5, observation) == 0.5


@pytest.mark.parametrize("observation", [{}, object(), None])
def test_an_observation_that_says_nothing_is_not_the_last(observation):
    assert Won()(0.5, observation) == 0.0


def test_the_trajectory_is_told_and_cannot_be_changed_from_outside():
    rubric = Won()
    rubric(1, GOING)
    rubric.trajectory.clear()
    assert rubric.trajectory == [(1, GOING)]


def test_reset_forgets_the_episode():
    rubric = Won()
    played(rubric, 3, 0.5)
    rubric.reset()
    assert (rubric.trajectory, rubric.compute_step_rewards()) == ([], [])
    assert played(rubric, 2, 0.25) == [0.0, 0.25]
    assert len(rubric.trajectory) == 2


def test_a_reset_from_above_reaches_it():
    rubric = Won()
    tree = WeightedSum([rubric, Constant()], [0.5, 0.5])
    tree(1, DONE)
    tree.reset()
    assert rubric.trajectory == []


def test_an_episode_that_was_not_reset_is_told(caplog):
    rubric = Won()
    played(rubric, 2, 0.5)
    with caplog.at_level(logging.WARNING):
        rubric(0.1, GOING)
        rubric(0.2, GOING)
    assert len(caplog.records) == 1
    assert "_reset_rubric" in caplog.text


def test_a_rubric_without_the_base_constructor_works():
    class Plain(Won):
        def __init__(self):
            self.own = 1

    assert played(Plain(), 2, 0.5) == [0.0, 0.5]


async def test_a_trajectory_may_be_judged_asynchronously():
    rubric = Judged(gamma=0.5)
    *before, last = played(rubric, 3, 0.5)
    assert before == [0.0, 0.0]
    assert await last == 0.5
    assert rubric.compute_step_rewards() == [0.125, 0.25, 0.5]


async def test_step_rewards_before_the_end_are_of_what_there_is():
    rubric = Won(gamma=0.5)
    rubric(4.0, GOING)
    rubric(2.0, GOING)
    assert rubric.compute_step_rewards() == [1.0, 2.0]
    asynchronous = Judged(gamma=0.5)
    asynchronous(2.0, GOING)
    assert await asynchronous.compute_step_rewards() == [2.0]


@pytest.mark.parametrize("score", [float("nan"), None, "won"])
async def test_a_trajectory_without_a_score_is_an_error(score):
    with pytest.raises(RubricFailed, match="Won returned"):
        Won()(score, DONE)
    with pytest.raises(RubricFailed, match="Judged returned"):
        await Judged()(score, DONE)


@pytest.mark.parametrize("missing", ["score_trajectory", "compute_step_rewards"])
def test_both_methods_must_be_written(missing):
    body = {name: lambda self, *_: 0.0 for name in ("score_trajectory", "compute_step_rewards") if name != missing}
    with pytest.raises(TypeError, match=missing):
        type("Unfinished", (TrajectoryRubric,), body)()


# Discounting

scores = st.floats(-1e6, 1e6)
gammas = st.floats(0.0, 1.0)
lengths = st.integers(1, 60)


@given(gammas, lengths, scores)
def test_each_reward_is_the_score_discounted_by_the_steps_that_follow(gamma, steps, score):
    rubric = Won(gamma=gamma)
    played(rubric, steps, score)
    rewards = rubric.compute_step_rewards()
    assert len(rewards) == steps
    assert rewards[-1] == score
    assert rewards == [pytest.approx(gamma ** (steps - 1 - at) * score) for at in range(steps)]
    for earlier, later in itertools.pairwise(rewards):
        assert earlier == pytest.approx(gamma * later)
        assert abs(earlier) <= abs(later)


@given(lengths, scores)
def test_the_ends_of_gamma(steps, score):
    everybody, last = Won(gamma=1.0), Won(gamma=0.0)
    for rubric in (everybody, last):
        played(rubric, steps, score)
    assert everybody.compute_step_rewards() == [score] * steps
    assert last.compute_step_rewards() == [0.0 * score] * (steps - 1) + [score]


def test_gamma_is_0_99_unless_told_otherwise():
    rubric = Won()
    played(rubric, 2, 1.0)
    assert rubric.compute_step_rewards() == [0.99, 1.0]


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan"), float("inf")])
def test_gamma_must_be_in_its_range(gamma):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Won(gamma=gamma)
    rubric = Won(gamma=0.5)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        rubric.load_state_dict({"gamma": gamma})
    assert rubric.gamma == 0.5


def test_the_settings_go_into_another_rubric():
    rubric, other = Won(gamma=0.5, intermediate_reward=0.1), Won()
    assert rubric.state_dict() == {"gamma": 0.5, "intermediate_reward": 0.1}
    other.load_state_dict(rubric.state_dict())
    assert other.state_dict() == rubric.state_dict()
    other.load_state_dict({})
    assert other.gamma == 0.5
