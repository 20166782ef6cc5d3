"""Served environments as a native environment of PufferLib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtra

try:
    from pufferlib import PufferEnv
except ModuleNotFoundError as missing:
    raise MissingExtra("pufferlib", None) from missing

from .gymnasium import RemoteVectorEnv

__all__ = ["RemotePufferEnv"]

Logs = list[dict[str, float]]
Step = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Logs]


class RemotePufferEnv(PufferEnv):
    """Sessions of a served environment as one native environment of PufferLib, with an agent for each session::

        served = {"base_url": "http://localhost:8000", "num_envs": 64}
        envs = pufferlib.vector.make(RemotePufferEnv, env_kwargs=served)

    The observations must be in a `Box`, and the actions in a `Discrete`, `MultiDiscrete` or `Box`: for other spaces,
    use `pufferlib.emulation.GymnasiumPufferEnv(env_creator=RemoteEnv, env_args=[base_url])`. As in PufferLib's own
    environments, the step that ends an episode returns the first observation of the next one. Errors are those of
    `RemoteVectorEnv`.

    Args:
        base_url: URL of the server, as in `EnvClient`.
        num_envs: Number of sessions.
        buf: PufferLib's arrays for this environment; None makes them.
        seed: Not used, since PufferLib passes the seed to `reset` too.
        options: Further arguments of `RemoteVectorEnv`, except `autoreset_mode`.

    Raises:
        ConnectionFailed: No server answers with its schemas.
        UnmappableSpace: The schema of its actions or observations has no equivalent space.
        pufferlib.APIUsageError: PufferLib takes these spaces in emulated environments only.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        num_envs: int = 8,
        buf: dict[str, NDArray[Any]] | None = None,
        seed: int | None = None,
        **options: Any,
    ):
        self._envs = RemoteVectorEnv(base_url, num_envs, autoreset_mode="SameStep", **options)
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.num_agents = num_envs
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], Logs]:
        """Starts an episode in each session.

        Args:
            seed: The seed of the first session; the others get the numbers after it.

        Returns:
            The observations, of shape (num_envs, ...), and no logs.
        """
        self.observations[:], _ = self._envs.reset(seed=seed)
        for column in (self.rewards, self.terminals, self.truncations, self._returns, self._lengths):
            column[:] = 0
        return self.observations, []

    def step(self, actions: NDArray[Any]) -> Step:
        """Takes one step in each session, and writes the results to PufferLib's arrays.

        Args:
            actions: One for each session, of shape (num_envs, ...).

        Returns:
            Observations, rewards, terminals, truncations, and logs: if episodes have ended, one with the means of
            their `episode_return` and `episode_length`.
        """
        self.observations[:], self.rewards[:], self.terminals[:], self.truncations[:], _ = self._envs.step(actions)
        self._returns += self.rewards
        self._lengths += 1
        ended = self.terminals | self.truncations
        logs: Logs = []
        if ended.any():
            means = {"episode_return": self._returns[ended].mean(), "episode_length": self._lengths[ended].mean()}
            logs.append({name: float(value) for name, value in means.items()})
            self._returns[ended], self._lengths[ended] = 0, 0
        return self.observations, self.rewards, self.terminals, self.truncations, logs

    def close(self) -> None:
        """Ends the sessions and their connections."""
        self._envs.close()
