"""EnvPool's environments, served, beside EnvPool in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from openenv.adapters.gymnasium import RemoteEnv, RemoteVectorEnv
from openenv.errors import SeedIgnored, UsageError
from openenv.project.target import load
from openenv.types import StepResult

from .environments import served

pytest.importorskip("envpool", reason="envpool is not installed: make test-trainers")

import envpool

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # EnvPool's own warnings

COUNT = 8
LIMIT = 23


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(load(f"envpool:CartPole-v1?num_envs={COUNT}&max_episode_steps={LIMIT}")) as at:
        yield at


def own(task_id: str = "CartPole-v1", num_envs: int = COUNT, **options: Any) -> Any:
    return envpool.make(task_id, env_type="gymnasium", num_envs=num_envs, seed=3, **options)


def assert_same(mine: Any, theirs: Any) -> None:
    for given, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_the_owner_of_a_pool_plays_it_as_in_process(address: str) -> None:
    ours, theirs = RemoteVectorEnv(address), own(max_episode_steps=LIMIT)
    assert (ours.num_envs, ours.single_action_space) == (COUNT, theirs.action_space)
    assert ours.single_observation_space == theirs.observation_space
    assert_same(ours.reset(seed=3)[:1], theirs.reset()[:1])
    rng, ends = np.random.default_rng(1), 0
    for _ in range(3 * LIMIT):
        actions = rng.integers(0, 2, COUNT)
        mine, expected = ours.step(actions), theirs.step(actions)
        assert_same(mine[:4], expected[:4])
        assert_same([mine[4]["elapsed_step"]], [expected[4]["elapsed_step"]])
        ends += int((mine[2] | mine[3]).sum())
    assert ends > COUNT
    ours.close()


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_its_other_modes_are_those_of_gymnasium(address: str, mode: str) -> None:
    envs = RemoteVectorEnv(address, autoreset_mode=mode)
    envs.reset(seed=3)
    played = np.zeros(COUNT, np.int64)
    for _ in range(2 * LIMIT):
        observations, rewards, terminated, truncated, infos = envs.step(np.arange(COUNT) % 2)
        ended = terminated | truncated
        played += 1
        assert rewards.tolist() == [1.0] * COUNT
        if mode == "SameStep" and ended.any():
            assert infos["_final_obs"].tolist() == ended.tolist()
            assert infos["final_info"]["elapsed_step"][ended].tolist() == played[ended].tolist()
        played[ended] = 0
        if mode == "Disabled" and ended.any():
            before = observations.copy()
            observations, _ = envs.reset(options={"reset_mask": ended})
            assert_same([observations[~ended]], [before[~ended]])
    envs.close()


def test_sessions_share_a_pool(address: str) -> None:
    envs, single = RemoteVectorEnv(address, 3), RemoteEnv(address)
    observations, _ = envs.reset()
    assert len(np.unique(observations, axis=0)) == 3
    single.reset()
    for step in itertools.count(1):
        rewards = envs.step(np.array([0, 1, 0]))[1]
        _, reward, *ends, info = single.step(step % 2)
        assert (info["elapsed_step"], reward) == (step, 1.0)
        if any(ends):
            break
        assert rewards.shape == (3,)
    envs.close()
    single.close()


def test_a_seed_for_one_of_its_episodes_is_reported_as_ignored(address: str) -> None:
    with RemoteEnv(address, strict=True).client as client:
        with pytest.raises(SeedIgnored):
            client.reset(seed=3)
        assert isinstance(client.step({"action": 0}), StepResult)


def test_instances_without_a_seed_play_different_episodes(address: str) -> None:
    pools = [RemoteVectorEnv(address) for _ in range(2)]
    first, second = [envs.reset()[0] for envs in pools]
    assert not np.array_equal(first, second)
    for envs in pools:
        envs.close()


def test_pixels_of_a_real_game() -> None:
    with served(load("envpool:Pong-v5?num_envs=2&noop_max=1")) as at:
        ours, theirs = RemoteVectorEnv(at), own("Pong-v5", num_envs=2, noop_max=1)
        assert ours.single_observation_space == theirs.observation_space
        assert_same(ours.reset(seed=3)[:1], theirs.reset()[:1])
        for action in range(10):
            actions = np.array([action % 6, 3])
            mine, expected = ours.step(actions), theirs.step(actions)
            assert_same(mine[:4], expected[:4])
            assert_same([mine[4]["lives"]], [expected[4]["lives"]])
        ours.close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("CartPole-v1", "num_envs"),
        ("CartPole-v1?num_envs=0", "num_envs=0"),
        ("Nothing-v5?num_envs=2", "Nothing-v5"),
        ("CartPole-v1?num_envs=2&color=red", "color"),
        ("CartPole-v1?num_envs=4&batch_size=2", "RemoteVectorEnv"),
    ],
)
def test_what_cannot_be_served_is_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(f"envpool:{target}")
