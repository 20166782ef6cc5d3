"""Served environments in PufferLib's vectorization, and PufferLib's environments, served."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import PPO

from openenv.adapters.gymnasium import RemoteEnv, RemoteVectorEnv, gymnasium_app
from openenv.adapters.stable_baselines3 import SB3VecEnv
from openenv.errors import UsageError
from openenv.project.target import load

from .environments import served

pytest.importorskip("pufferlib", reason="PufferLib has no wheel: docs/training.md says how it is installed")

import pufferlib
import pufferlib.emulation
import pufferlib.ocean
import pufferlib.vector

from openenv.adapters.pufferlib import RemotePufferEnv

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # PufferLib's own warnings

COUNT = 4
LIMIT = 23


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1", max_episode_steps=LIMIT)) as at:
        yield at


def own() -> SyncVectorEnv:
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=LIMIT)
    return SyncVectorEnv([make] * COUNT, autoreset_mode="SameStep")


def compare(envs: Any, steps: int = 100) -> list[dict[str, float]]:
    """Plays the same actions here and there. Returns the logs."""
    theirs, logs = own(), []
    np.testing.assert_array_equal(envs.reset(seed=7)[0], theirs.reset(seed=7)[0])
    rng = np.random.default_rng(1)
    for _ in range(steps):
        actions = rng.integers(0, 2, COUNT)
        mine = envs.step(actions)
        for given, wanted in zip(mine[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(given, wanted)
        logs += mine[4]
    theirs.close()
    return logs


def test_a_native_environment_writes_to_its_own_arrays(address: str) -> None:
    envs = pufferlib.vector.make(RemotePufferEnv, env_kwargs={"base_url": address, "num_envs": COUNT})
    logs = compare(envs)
    assert logs
    assert all(log["episode_return"] == log["episode_length"] for log in logs)  # of CartPole
    assert max(log["episode_length"] for log in logs) <= LIMIT
    first = envs.reset(seed=7)[0].copy()
    envs.async_reset(seed=7)
    assert envs.recv()[0] is envs.observations
    np.testing.assert_array_equal(envs.observations, first)
    envs.send(np.zeros(COUNT, np.int64))
    assert not np.array_equal(envs.recv()[0], first)
    envs.close()


@pytest.mark.parametrize(("backend", "options"), [("Serial", {}), ("Multiprocessing", {"num_workers": 1})])
def test_its_vectorizations_hold_several(
    address: str, backend: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # PufferLib leaves a link where its processes import it
    kwargs = {"base_url": address, "num_envs": COUNT // 2}
    envs = pufferlib.vector.make(RemotePufferEnv, env_kwargs=kwargs, backend=backend, num_envs=2, **options)
    assert envs.num_agents == COUNT
    observations, _ = envs.reset(seed=7)
    assert observations.shape == (COUNT, 4)
    ends = 0
    for _ in range(2 * LIMIT):
        envs.send(np.ones(COUNT, np.int64))
        _, rewards, terminals, truncations, _, agents, _ = envs.recv()
        assert rewards.tolist() == [1.0] * COUNT
        assert sorted(agents.ravel()) == list(range(COUNT))
        ends += int((terminals | truncations).sum())
    assert ends >= 2 * COUNT
    envs.close()


class Compass(gymnasium.Env[Any, Any]):
    """Observations in a `Dict`: where it stands, and where it looks."""

    observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (2,)), "heading": spaces.Box(0, 4, (1,))})
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.place = np.zeros(2, np.float32)
        return self.seen(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place[0] += action
        return self.seen(action), float(action), False, False, {}

    def seen(self, heading: int) -> dict[str, Any]:
        return {"place": self.place.copy(), "heading": np.array([heading], np.float32)}


gymnasium.register("openenv-tests/Compass-v0", Compass)


def test_other_spaces_are_emulated() -> None:
    with served(gymnasium_app("openenv-tests/Compass-v0")) as address:
        with pytest.raises(pufferlib.APIUsageError, match="must be a Box"):
            RemotePufferEnv(address, COUNT)
        creator = {"env_creator": RemoteEnv, "env_args": [address]}
        envs = pufferlib.vector.make(
            pufferlib.emulation.GymnasiumPufferEnv, env_kwargs=creator, backend="Serial", num_envs=2
        )
        assert envs.reset(seed=3)[0].tolist() == [[0.0, 0.0, 0.0]] * 2
        observations, rewards, *_ = envs.step(np.array([1, 3]))
        assert observations.tolist() == [[1.0, 1.0, 0.0], [3.0, 3.0, 0.0]]
        assert rewards.tolist() == [1.0, 3.0]
        envs.close()


class Ladder(pufferlib.PufferEnv):
    """A native environment: an agent climbs as many rungs as its action says, and an episode has 9."""

    def __init__(self, num_envs: int = 1, buf: Any = None, seed: int = 0):
        self.single_observation_space = spaces.Box(0, 99, (2,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        self.num_agents = num_envs
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> Any:
        self.first = (seed or 0) + np.arange(self.num_agents)
        self.observations[:] = np.stack([self.first, np.zeros(self.num_agents)], axis=1)
        return self.observations, []

    def step(self, actions: Any) -> Any:
        self.observations[:, 1] += actions
        self.rewards[:] = actions
        self.terminals[:] = self.observations[:, 1] >= 9
        self.observations[self.terminals, 1] = 0
        return self.observations, self.rewards, self.terminals, self.truncations, self.logs()

    def logs(self) -> list[dict[str, float]]:
        return [{"top": float(self.terminals.sum())}] if self.terminals.any() else []

    def close(self) -> None:
        pass


class Stairs(Ladder):
    """The same without vectorization of its own."""

    def __init__(self, buf: Any = None, seed: int = 0):
        super().__init__(1, buf, seed)


def env_creator(name: str) -> Any:
    """As the modules of PufferLib's environments have it."""
    return {"ladder": Ladder, "stairs": Stairs, "cart": lambda: emulated()}[name]


def emulated() -> Any:
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=partial(gymnasium.make, "CartPole-v1"))


@pytest.mark.parametrize("name", ["ladder", "stairs"])
def test_a_native_environment_is_served_as_a_batch(name: str) -> None:
    with served(load(f"pufferlib:{__name__}:{name}?num_envs={COUNT}")) as address:
        envs = RemoteVectorEnv(address)
        assert (envs.num_envs, envs.autoreset_mode.value) == (COUNT, "SameStep")
        first = envs.reset(seed=5)[0]
        assert first[:, 1].tolist() == [0.0] * COUNT
        actions = np.arange(COUNT) % 4
        rows = [envs.step(actions) for _ in range(3)]
        for number, (observations, rewards, terminated, _, infos) in enumerate(rows, 1):
            assert rewards.tolist() == actions.tolist()
            assert terminated.tolist() == [number * action >= 9 for action in actions]
            assert observations[:, 1].tolist() == [number * a if number * a < 9 else 0 for a in actions.tolist()]
            assert ("log" in infos) == terminated.any()
        assert rows[2][4]["log"][0] == [{"top": 1.0}]
        envs.close()


def test_an_environment_in_c_is_served_as_a_batch() -> None:
    own = pufferlib.ocean.env_creator("puffer_squared")(num_envs=COUNT)
    with served(load(f"pufferlib:puffer_squared?num_envs={COUNT}")) as address:
        envs = RemoteVectorEnv(address)
        assert envs.single_observation_space == own.single_observation_space
        stays = np.zeros(COUNT, np.int64)
        played = [own.reset(seed=3)[0].copy(), *(own.step(stays)[0].copy() for _ in range(10))]
        np.testing.assert_array_equal(envs.reset(seed=3)[0], played[0])
        for wanted in played[1:]:
            np.testing.assert_array_equal(envs.step(stays)[0], wanted)
        envs.close()
    own.close()


def test_it_trains_in_stable_baselines3_without_last_observations() -> None:
    with served(load(f"pufferlib:puffer_cartpole?num_envs={COUNT}")) as address:
        envs = SB3VecEnv(RemoteVectorEnv(address))
        PPO("MlpPolicy", envs, n_steps=16, batch_size=64, n_epochs=1, device="cpu").learn(32 * COUNT)
        envs.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("puffer_nothing", "puffer_nothing"),
        ("nowhere:puffer_squared", "nowhere"),
        ("puffer_squared?num_envs=0", "num_envs=0"),
        (f"{__name__}:cart", "GymnasiumPufferEnv.*gymnasium:ENV_ID"),
    ],
)
def test_what_cannot_be_served_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(f"pufferlib:{name}")
