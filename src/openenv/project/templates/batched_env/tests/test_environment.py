"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from my_env import MyAction, MyEnv, MyObservation
from my_env.server.my_env_environment import MyEnvironment

from openenv import BatchedEnvClient, SyncEnvClient
from openenv.errors import InvalidAction
from openenv.testing import BatchedEnvironmentConformance
from openenv.types import State

Env = SyncEnvClient[MyAction, MyObservation, State]


class TestConformance(BatchedEnvironmentConformance):
    """The checks for all environments, and those for batches: masks, slots, seeds, shapes."""

    def app(self) -> Any:
        return MyEnvironment


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of one episode in this process, with the same calls and rules as over a network."""
    with MyEnv(env=MyEnvironment).sync() as client:
        yield client


@pytest.fixture
def envs() -> Iterator[Any]:
    """A client of the whole batch in this process. The next step after the end of an episode starts another one."""
    with BatchedEnvClient(env=MyEnvironment, autoreset="next_step").sync() as client:
        yield client


def test_every_puck_that_is_pushed_to_its_goal_gets_there(envs: Any) -> None:
    result = envs.reset(seed=1)
    arrived = np.zeros(envs.num_envs, bool)
    for _ in range(30):
        way = result.observation["goal"] - result.observation["position"]
        result = envs.step({"push": np.clip(10 * way, -1, 1)})
        arrived |= result.terminated
    assert arrived.all()


def test_an_episode_is_cut_short_after_100_steps(envs: Any) -> None:
    envs.reset(seed=1)
    still = {"push": np.zeros((envs.num_envs, 2), np.float32)}
    away = np.ones(envs.num_envs, bool)
    for _ in range(99):
        result = envs.step(still)
        assert not result.truncated.any()
        away &= ~result.terminated
    assert np.array_equal(envs.step(still).truncated, away)


def test_a_batch_and_a_single_client_play_the_same_episode(env: Env, envs: Any) -> None:
    batch, single = envs.reset(seed=7), env.reset(seed=10)
    assert np.array_equal(batch.observation["goal"][3], single.observation.goal)
    push = np.full((envs.num_envs, 2), 0.5, np.float32)
    batch, single = envs.step({"push": push}), env.step(MyAction(push=push[3]))
    assert np.array_equal(batch.observation["position"][3], single.observation.position)
    assert batch.reward[3] == pytest.approx(single.reward)


def test_a_push_out_of_bounds_is_refused(envs: Any) -> None:
    envs.reset()
    with pytest.raises(InvalidAction, match="push"):
        envs.step({"push": np.full((envs.num_envs, 2), 2, np.float32)})
