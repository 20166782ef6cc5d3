"""TorchRL's wrapper of vector environments around served ones, beside Gymnasium's own vector."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from openenv.adapters.gymnasium import RemoteVectorEnv, gymnasium_app

from .environments import served

pytest.importorskip("torchrl", reason="torchrl is not installed: make test-trainers")

from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # TorchRL's own warnings

COUNT = 3
LIMIT = 23


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1", max_episode_steps=LIMIT)) as at:
        yield at


def wrapped(address: str | None, mode: str) -> Any:
    """A served vector in TorchRL, or Gymnasium's own."""
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=LIMIT)
    envs: Any = SyncVectorEnv([make] * COUNT, autoreset_mode=mode)
    return GymWrapper(envs if address is None else RemoteVectorEnv(address, COUNT, autoreset_mode=mode))


def lean() -> Any:
    """A policy: pushes the cart to where the pole leans."""
    return TensorDictModule(
        lambda seen: torch.nn.functional.one_hot((seen[..., 2] > 0).long(), 2), ["observation"], ["action"]
    )


@pytest.mark.parametrize("mode", ["Disabled", "SameStep"])
def test_a_rollout_is_that_of_an_environment_of_this_process(address: str, mode: str) -> None:
    rollouts = []
    for place in (address, None):
        envs = wrapped(place, mode)
        envs.set_seed(7)
        rollouts.append(envs.rollout(60, lean(), break_when_any_done=False))
        envs.close()
    ours, own = rollouts
    assert ours.batch_size == (COUNT, 60)
    assert ours["next", "done"].any()
    for key in ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")):
        assert ours[key].dtype == own[key].dtype
        assert torch.equal(ours[key].nan_to_num(), own[key].nan_to_num()), key


def test_a_collector_collects(address: str) -> None:
    collector = Collector(
        lambda: wrapped(address, "Disabled"),
        lean(),
        frames_per_batch=COUNT * 32,
        total_frames=COUNT * 64,
        device="cpu",
    )
    batches = [batch["next", "reward"].sum().item() for batch in collector]
    assert batches == [COUNT * 32.0] * 2
    collector.shutdown()
