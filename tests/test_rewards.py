"""Which rewards a trainer may learn from."""

from __future__ import annotations

import math
import sys

import openenv
from openenv.errors import SessionLost, StepFailed
from openenv.types import StepResult, reward_mask


def test_a_reward_of_nothing_is_one_and_none_is_not():
    rewards = [0, 0.0, False, -1.5, math.nan, None]
    results = [StepResult(observation={}, reward=reward) for reward in rewards]
    assert reward_mask(results) == [True, True, True, True, True, False]


def test_a_failure_has_no_reward():
    results = [StepResult(observation=None, error=error) for error in (SessionLost("gone"), StepFailed("bad"))]
    results.append(StepResult(observation=None, reward=3.0, error=StepFailed("bad")))
    assert reward_mask(iter(results)) == [False, False, False]
    assert [(result.error.blame, result.error.retryable) for result in results[:2]] == [
        ("infrastructure", False),
        ("environment", False),
    ]


def test_it_is_a_name_of_the_package():
    assert openenv.reward_mask is reward_mask
    assert reward_mask([]) == []
    assert all(type(usable) is bool for usable in reward_mask([StepResult({}, 1)]))
    assert "numpy" not in vars(sys.modules["openenv.types"])
