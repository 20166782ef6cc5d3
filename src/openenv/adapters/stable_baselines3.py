"""Gymnasium's vector environments in the interface of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtra, UsageError

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as missing:
    raise MissingExtra("stable-baselines3", None) from missing

from gymnasium.vector import VectorEnv

__all__ = ["SB3VecEnv"]

Infos = list[dict[str, Any]]


class SB3VecEnv(VecEnv):
    """Any `gymnasium.vector.VectorEnv` as a `VecEnv`::

        envs = RemoteVectorEnv("http://localhost:8000", num_envs=16, autoreset_mode="SameStep")
        model = PPO("MlpPolicy", SB3VecEnv(envs)).learn(100_000)

    Args:
        envs: The environments, in autoreset mode SAME_STEP, the only one in Stable-Baselines3. They are closed with
            this object.

    Raises:
        UsageError: The environments have another autoreset mode.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]):
        mode = envs.metadata.get("autoreset_mode")
        if getattr(mode, "value", mode) != "SameStep":
            raise UsageError(
                f"Stable-Baselines3 resets in the step that ends an episode, and these environments do not ({mode}): "
                'make them with autoreset_mode="SameStep"'
            )
        self.envs = envs
        self._actions: Any = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Starts an episode in each environment, with the seeds and options that were set before."""
        seeds: Any = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        first = self._options[0]
        if any(options != first for options in self._options):
            raise UsageError("these environments are reset with the same options: set_options() takes one dict")
        observations, infos = self.envs.reset(seed=seeds, options=first or None)
        self.reset_infos = _split_infos(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Keeps the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], Infos]:
        """Takes one step in each environment, with the actions of `step_async`.

        Returns:
            Observations, rewards, ends, and infos. At the end of an episode, infos have `terminal_observation` and
            `TimeLimit.truncated`.
        """
        observations, rewards, terminated, truncated, infos = self.envs.step(self._actions)
        dones = terminated | truncated
        single_infos = _split_infos(infos, self.num_envs)
        for index in np.flatnonzero(dones):
            info = single_infos[index]
            last = {"terminal_observation": info.pop("final_obs")} if "final_obs" in info else {}
            final = info.pop("final_info", None) or {}
            self.reset_infos[index] = info
            cut = bool(truncated[index] and not terminated[index])
            single_infos[index] = {**final, **last, "TimeLimit.truncated": cut}
        return observations, rewards.astype(np.float32), dones, single_infos

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of each environment, or the vector environment's attribute if they have none."""
        ask = getattr(self.envs, "get_attr", None)
        every = [getattr(self.envs, attr_name)] * self.num_envs if ask is None else list(ask(attr_name))
        return [every[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of all environments. Raises `UsageError` for some of them, or if they are on a server."""
        indices = list(self._get_indices(indices))
        if not hasattr(self.envs, "set_attr") or len(indices) != self.num_envs:
            raise UsageError(f"{attr_name} cannot be set in these environments: set it where they are made")
        self.envs.set_attr(attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Calls a method of each environment. Raises `UsageError` if they are on a server."""
        if not hasattr(self.envs, "call"):
            raise UsageError(f"{method_name} cannot be called in these environments: they run on a server")
        every = self.envs.call(method_name, *args, **kwargs)
        return [every[index] for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """False for each, since wrappers of single environments are not visible here."""
        return [False for _ in self._get_indices(indices)]


def _split_infos(infos: dict[str, Any], count: int) -> Infos:
    """Splits the infos of a batch into one dict per environment."""
    single_infos: Infos = [{} for _ in range(count)]
    for name, values in infos.items():
        mask: Sequence[bool] | None = infos.get(f"_{name}")
        if mask is None:  # the entry is a mask
            continue
        parts = _split_infos(values, count) if isinstance(values, dict) else values
        for index in np.flatnonzero(mask):
            single_infos[index][name] = parts[index]
    return single_infos
