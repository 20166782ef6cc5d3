"""The loop of CleanRL's `ppo.py`, which takes any vector environment of Gymnasium, on a served one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

from openenv.adapters.gymnasium import RemoteVectorEnv, gymnasium_app

from .environments import served

pytestmark = pytest.mark.real

COUNT, STEPS = 4, 64


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1")) as at:
        yield at


def rollout(envs: Any) -> dict[str, Any]:
    """A rollout as CleanRL collects it, and the returns of the episodes that ended in it."""
    torch.manual_seed(1)
    envs = RecordEpisodeStatistics(envs)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    stored: dict[str, Any] = {
        "obs": torch.zeros((STEPS, COUNT, *envs.single_observation_space.shape)),
        "actions": torch.zeros((STEPS, COUNT, *envs.single_action_space.shape)),
        "rewards": torch.zeros((STEPS, COUNT)),
        "dones": torch.zeros((STEPS, COUNT)),
        "returns": [],
    }
    seen, _ = envs.reset(seed=1)
    next_obs, next_done = torch.Tensor(seen), torch.zeros(COUNT)
    for step in range(STEPS):
        stored["obs"][step], stored["dones"][step] = next_obs, next_done
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(next_obs)).sample()
        stored["actions"][step] = action
        seen, reward, terminations, truncations, infos = envs.step(action.numpy())
        next_done = torch.Tensor(np.logical_or(terminations, truncations))
        stored["rewards"][step], next_obs = torch.tensor(reward), torch.Tensor(seen)
        if "episode" in infos:
            stored["returns"] += infos["episode"]["r"][infos["_episode"]].tolist()
    envs.close()
    return stored


def test_a_rollout_is_that_of_an_environment_of_this_process(address: str) -> None:
    ours = rollout(RemoteVectorEnv(address, COUNT))
    own = rollout(SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * COUNT))
    assert len(ours["returns"]) > COUNT
    assert ours.pop("returns") == own.pop("returns")
    for name, values in own.items():
        assert torch.equal(ours[name], values), name
