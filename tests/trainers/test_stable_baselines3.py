"""Vector environments as Stable-Baselines3 has them, beside its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from openenv.adapters.gymnasium import RemoteVectorEnv, gymnasium_app
from openenv.adapters.stable_baselines3 import SB3VecEnv
from openenv.errors import ConnectionFailed, UsageError

from .environments import served

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # theirs are not ours to mend

COUNT = 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1", max_episode_steps=23)) as at:
        yield at


@pytest.fixture
def remote(address: str) -> Iterator[SB3VecEnv]:
    envs = SB3VecEnv(RemoteVectorEnv(address, COUNT, autoreset_mode="SameStep"))
    yield envs
    envs.close()


def make() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=23)


def test_it_does_what_its_own_does(remote: SB3VecEnv) -> None:
    own = DummyVecEnv([make] * COUNT)
    for envs in (remote, own):
        envs.seed(5)
    np.testing.assert_array_equal(remote.reset(), own.reset())
    rng, ends, cuts = np.random.default_rng(1), 0, 0
    for _ in range(200):
        actions = rng.integers(0, 2, COUNT)
        ours, theirs = remote.step(actions), own.step(actions)
        for mine, its in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(mine, its)
            assert mine.dtype == its.dtype
        for mine, its, ended in zip(ours[3], theirs[3], ours[2], strict=True):
            assert mine.get("TimeLimit.truncated", False) == its.get("TimeLimit.truncated", False)
            np.testing.assert_equal(mine.get("terminal_observation"), its.get("terminal_observation"))
            ends += ended
            cuts += mine.get("TimeLimit.truncated", False)
    assert ends > cuts > 0
    own.close()


def test_seeds_and_options_hold_for_one_reset(remote: SB3VecEnv) -> None:
    remote.seed(5)
    remote.set_options({"low": 0.02, "high": 0.03})
    first = remote.reset()
    assert ((first >= 0.02) & (first <= 0.03)).all()
    remote.seed(5)
    assert not np.array_equal(remote.reset(), first)
    assert not np.array_equal(remote.reset(), remote.reset())


def test_options_are_the_same_for_all(remote: SB3VecEnv) -> None:
    remote.set_options([{"low": 0.0}, {}, {}])
    with pytest.raises(UsageError, match="one dict"):
        remote.reset()


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_only_the_mode_that_it_knows_is_taken(address: str, mode: str) -> None:
    envs = RemoteVectorEnv(address, COUNT, autoreset_mode=mode)
    with pytest.raises(UsageError, match="SameStep"):
        SB3VecEnv(envs)
    envs.close()


def test_what_runs_elsewhere_is_not_reached_into(remote: SB3VecEnv) -> None:
    assert remote.get_attr("render_mode") == [None] * COUNT
    assert not remote.has_attr("gravity")
    assert remote.env_is_wrapped(gymnasium.Wrapper) == [False] * COUNT
    with pytest.raises(UsageError, match="gravity"):
        remote.set_attr("gravity", 1.0)
    with pytest.raises(UsageError, match="on a server"):
        remote.env_method("close")


def test_what_runs_here_is() -> None:
    envs = SB3VecEnv(SyncVectorEnv([make] * COUNT, autoreset_mode="SameStep"))
    assert envs.get_attr("spec", [1])[0].id == "CartPole-v1"
    envs.set_attr("gravity", 1.0)
    assert envs.env_method("has_wrapper_attr", "gravity", indices=0) == [True]
    envs.close()


def test_learning_goes_on_after_the_server_was_lost() -> None:
    app = gymnasium_app("CartPole-v1")
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        address = first.enter_context(served(app))
        envs = SB3VecEnv(RemoteVectorEnv(address, COUNT, autoreset_mode="SameStep"))

        def fail(local: dict[str, Any], _: dict[str, Any]) -> bool:
            if local["self"].num_timesteps == 10 * COUNT:
                first.close()
                stack.enter_context(served(gymnasium_app("CartPole-v1"), int(address.rpartition(":")[2])))
            return True

        model = PPO("MlpPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=1)
        with pytest.raises(ConnectionFailed, match="3 of 3 environments failed"):
            model.learn(20 * COUNT, callback=fail)
        assert model.num_timesteps == 10 * COUNT
        model.set_env(model.get_env(), force_reset=True)
        model.learn(20 * COUNT - model.num_timesteps, reset_num_timesteps=False)
        assert model.num_timesteps >= 20 * COUNT
        envs.close()


def test_its_monitor_counts_episodes(remote: SB3VecEnv) -> None:
    monitored = VecMonitor(remote)
    monitored.reset()
    lengths = []
    for _ in range(40):
        infos = monitored.step(np.ones(COUNT, np.int64))[3]
        lengths += [info["episode"]["l"] for info in infos if "episode" in info]
    assert len(lengths) >= COUNT
    assert max(lengths) <= 23
