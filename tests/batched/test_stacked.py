"""The results of single sessions as one batch of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv.client import BatchResult, GenericEnvClient, VectorEnvClient
from openenv.errors import SessionLost, UsageError
from openenv.types import Observation, StepResult

from .environments import FewPoles, app_of


async def test_sessions_of_a_vector() -> None:
    async with VectorEnvClient(GenericEnvClient, num_envs=3, app=app_of(FewPoles)) as envs:
        await envs.reset(seeds=[1, 2, 3])
        batch = BatchResult.of(await envs.step([{"action": 1}] * 3))
    assert batch.observation["observation"].shape == (3, 4)
    assert batch.observation["observation"].dtype == np.float32
    assert batch.reward.tolist() == [1.0, 1.0, 1.0]
    assert not batch.terminated.any()
    assert (batch.errors, batch.info) == ({}, {})


def test_a_failure_and_a_missing_reward_are_no_numbers() -> None:
    lost = SessionLost("gone")
    results: list[StepResult[Any]] = [
        StepResult({"image": np.ones(2), "score": 3, "text": "a"}, 1, metadata={"level": 4}),
        StepResult(None, error=lost),
        StepResult({"image": np.zeros(2), "score": 5, "text": "b"}, None, done=True, truncated=True),
    ]
    batch = BatchResult.of(results)
    assert np.isnan(batch.reward).tolist() == [False, True, True]
    assert batch.errors == {1: lost}
    assert batch.observation["image"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert batch.observation["score"].tolist() == [3, 0, 5]
    assert batch.observation["text"] == ["a", None, "b"]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False] * 3, [False, False, True])
    assert batch.info["level"] == [4, None, None]
    assert batch.info["_level"].tolist() == [True, False, False]


def test_models_and_values_that_are_no_arrays() -> None:
    class Seen(Observation):
        points: Any

    ragged = BatchResult.of([StepResult(Seen(points=np.ones(2))), StepResult(Seen(points=np.ones(3)))])
    assert [len(points) for points in ragged.observation["points"]] == [2, 3]
    with pytest.raises(UsageError, match="none of 1 results has an observation: gone"):
        BatchResult.of([StepResult(None, error=SessionLost("gone"))])
