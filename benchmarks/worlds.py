"""The batched environments of `openenv bench batched`, as their server and as a caller in process see them.

`openenv serve benchmarks.worlds:CartPoles4096` serves 4,096 worlds in one environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from openenv.arrays import Array
from openenv.batched import BatchedEnvironment
from openenv.envs.cartpole import CartPoles
from openenv.errors import UsageError
from openenv.types import Action, Observation, State

# Steps of the simulation in a step, and the angle in radians that ends an episode, as in InvertedPendulum-v5.
FRAME_SKIP, FALLEN = 2, 0.2
_MODEL = """
<mujoco>
  <option timestep="0.02"><flag contact="disable"/></option>
  <worldbody>
    <body>
      <joint name="slider" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.2 0.1 0.1" mass="10"/>
      <body>
        <joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.6" size="0.05" mass="5"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slider" gear="100" ctrlrange="-3 3" ctrllimited="true"/></actuator>
</mujoco>
"""


class PendulumAction(Action):
    """Pushes the cart with a force from -3 to 3."""

    action: Annotated[np.ndarray, Array("float32", (1,))]


class PendulumObservation(Observation):
    """The positions of cart and pole, then their velocities."""

    observation: Annotated[np.ndarray, Array("float64", (4,))]


class Pendulums(BatchedEnvironment[PendulumAction, PendulumObservation, State]):
    """Carts with a pole each, which MuJoCo steps in C on all cores. The reward is 1 until the pole falls.

    Raises:
        UsageError: MuJoCo is not installed.
    """

    num_envs = 1024

    def __init__(self) -> None:
        super().__init__()
        try:
            import mujoco  # noqa: PLC0415
            from mujoco import rollout  # noqa: PLC0415
        except ModuleNotFoundError:
            raise UsageError(
                "MuJoCo is not installed: pip install mujoco, or use .venv-trainers (`make test-trainers`)"
            ) from None
        self._model = mujoco.MjModel.from_xml_string(_MODEL)
        threads = os.cpu_count() or 1
        self._data = [mujoco.MjData(self._model) for _ in range(threads)]
        self._rollout = rollout.Rollout(nthread=threads)
        self._random = np.random.default_rng(self.rng.getrandbits(64))
        # The state of a world is the time, then the observation.
        self._states = np.zeros((self.num_envs, 5))
        self._path = np.empty((self.num_envs, FRAME_SKIP, 5))

    def reset(
        self, seeds: Sequence[int | None], mask: NDArray[np.bool_]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Starts episodes near the upright position."""
        for index in np.flatnonzero(mask).tolist():
            random = self._random if seeds[index] is None else np.random.default_rng(seeds[index])
            self._states[index, 1:] = random.uniform(-0.01, 0.01, 4)
        return {"observation": self._states[:, 1:]}, {}

    def step(self, actions: Mapping[str, Any], mask: NDArray[np.bool_]) -> tuple[Any, Any, Any, Any, Any]:
        """Simulates 0.04 s."""
        control = np.repeat(actions["action"][:, np.newaxis], FRAME_SKIP, axis=1).astype(np.float64)
        self._rollout.rollout(self._model, self._data, self._states, control, state=self._path)
        self._states[mask] = self._path[mask, -1]
        fell = np.abs(self._states[:, 2]) > FALLEN
        return {"observation": self._states[:, 1:]}, np.ones(self.num_envs), fell, np.zeros_like(fell), {}

    def close(self) -> None:
        """Ends the threads."""
        self._rollout.close()


@dataclass(frozen=True, slots=True)
class World:
    """A batched environment whose actions and observations are one array, and a policy for it.

    Attributes:
        base: Its class.
        observation_space: Space of one world's observations.
        action_space: Space of one world's actions.
        policy: Chooses the actions from the observations of all worlds.
    """

    base: type[BatchedEnvironment[Any, Any, Any]]
    observation_space: Space[Any]
    action_space: Space[Any]
    policy: Callable[[NDArray[Any]], NDArray[Any]]

    def sized(self, num_envs: int) -> type[BatchedEnvironment[Any, Any, Any]]:
        """Its class with another number of worlds."""
        return type(f"{self.base.__name__}{num_envs}", (self.base,), {"num_envs": num_envs, "__module__": __name__})


def push_after_pole(observations: NDArray[Any]) -> NDArray[np.int64]:
    """Pushes the cart to where its pole leans."""
    actions: NDArray[np.int64] = (observations[:, 2] + 0.5 * observations[:, 3] > 0).astype(np.int64)
    return actions


def balance(observations: NDArray[Any]) -> NDArray[np.float32]:
    """A linear controller that keeps the pole upright."""
    force = observations @ np.array([[0.1], [10.0], [0.0], [2.0]])
    actions: NDArray[np.float32] = np.clip(force, -3, 3).astype(np.float32)
    return actions


WORLDS = {
    "cartpole": World(CartPoles, Box(-np.inf, np.inf, (4,), np.float32), Discrete(2), push_after_pole),
    "pendulums": World(Pendulums, Box(-np.inf, np.inf, (4,), np.float64), Box(-3, 3, (1,), np.float32), balance),
}


def __getattr__(name: str) -> type[BatchedEnvironment[Any, Any, Any]]:
    """`CartPoles4096` is the class with 4,096 worlds."""
    found = re.fullmatch(r"(CartPoles|Pendulums)(\d+)", name)
    if found is None:
        raise AttributeError(f"{__name__} has no {name}")
    world = next(world for world in WORLDS.values() if world.base.__name__ == found[1])
    return world.sized(int(found[2]))


class LocalBatch:
    """A batched environment in this process, with the interface of a vector environment.

    The step after the one that ended an episode starts the next one (autoreset `next_step`).

    Args:
        world: The environment.
        num_envs: Number of worlds.
    """

    def __init__(self, world: World, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space = world.observation_space
        self.action_space = batch_space(world.action_space, num_envs)
        self._environment = world.sized(num_envs)()
        self._unseeded: list[int | None] = [None] * num_envs
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts all episodes."""
        seeds = self._unseeded if seed is None else list(range(seed, seed + self.num_envs))
        self._ended[:] = False
        observations, _ = self._environment.reset(seeds, ~self._ended)
        return observations["observation"], {}

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Steps all worlds, and starts the episodes that ended with the last step."""
        starting = self._ended
        results = self._environment.step({"action": actions}, ~starting)
        observations, rewards, terminated, truncated, _ = results
        if starting.any():
            observations, _ = self._environment.reset(self._unseeded, starting)
            rewards, terminated, truncated = (
                np.where(starting, 0, column) for column in (rewards, terminated, truncated)
            )
        self._ended = terminated | truncated
        return observations["observation"], rewards, terminated, truncated

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()
