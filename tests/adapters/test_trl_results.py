"""What an episode is worth, and what a model cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.adapters.trl.episode import answer_of, reward_of
from openenv.errors import StepFailed, UsageError
from openenv.types import StepResult


def test_an_observation_that_cannot_be_text_says_what_helps() -> None:
    with pytest.raises(StepFailed, match="`chat` of the environment.*render="):
        answer_of({"cells": object()})


def steps(*rewards: Any) -> list[StepResult[Any]]:
    return [StepResult(None, reward) for reward in rewards]


@pytest.mark.parametrize(
    ("name", "rewards", "reward"),
    [
        ("sum", (), 0.0),
        ("sum", (1, None, 0.5, True), 2.5),
        ("sum", (None, None), None),
        ("last", (), 0.0),
        ("last", (1, 2, None), 2.0),
        ("last", (None,), None),
    ],
)
def test_an_episode_is_worth_what_its_steps_gave(name: str, rewards: tuple[Any, ...], reward: float | None) -> None:
    assert reward_of(name)(steps(*rewards)) == reward


def test_a_reward_that_is_none_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="'sum', 'last', None or a function"):
        reward_of("mean")
