"""Serve PufferLib's environments (`pufferlib:NAME?num_envs=256`), and use served environments as one of PufferLib."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..errors import MissingExtra, UsageError

try:
    import pufferlib.vector
    from pufferlib import PufferEnv
except ModuleNotFoundError as missing:
    raise MissingExtra("pufferlib", None) from missing

from .gymnasium import RemoteVectorEnv
from .gymnasium.batched import GymnasiumBatch, batch_class
from .gymnasium.remote_vector import mode_of

__all__ = ["PufferBatch", "PufferVectorEnv", "RemotePufferEnv", "puffer_batch"]

Logs = list[dict[str, float]]
Infos = dict[str, Any]
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


class PufferVectorEnv(VectorEnv[Any, Any, Any]):
    """A native environment of PufferLib as a vector environment of Gymnasium, with an episode for each agent.

    Its autoreset mode is SAME_STEP, without `final_obs`, since PufferLib does not return the last observation of an
    episode. PufferLib's logs, which are of all episodes, are the info `log` of the first one.

    Args:
        name: Name of the environment in PufferLib, such as `puffer_breakout`, or `MODULE:NAME` for the
            `env_creator(NAME)` of another module.
        num_envs: Number of environments.
        kwargs: Passed to the environment.

    Raises:
        UsageError: PufferLib cannot make it, or it is not native.
    """

    _env: Any = None

    def __init__(self, name: str, num_envs: int, **kwargs: Any):
        super().__init__()
        env = self._env = _native(name, num_envs, kwargs)
        self.metadata = {"render_modes": [], "autoreset_mode": mode_of("same_step")}
        self.num_envs = env.num_agents
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = batch_space(env.single_observation_space, self.num_envs)
        self.action_space = batch_space(env.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[NDArray[Any], Infos]:
        """Starts all episodes, with the seed or with a random one: PufferLib's own default is a constant."""
        super().reset(seed=seed)
        observations, logs = self._env.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        return observations, self._infos(logs)

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """Takes one step in each environment. The next step changes the arrays that it returns."""
        observations, rewards, terminals, truncations, logs = self._env.step(actions)
        return observations, rewards, terminals, truncations, self._infos(logs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes PufferLib's environment."""
        if self._env is not None:
            self._env.close()

    def _infos(self, logs: Logs) -> Infos:
        logs = [log for log in logs if log]
        return self._add_info({}, {"log": logs}, 0) if logs else {}


class PufferBatch(GymnasiumBatch):
    """Environments of PufferLib, which one client plays. Serve the subclasses that `puffer_batch` makes."""

    @classmethod
    def make_vector(cls) -> PufferVectorEnv:
        return PufferVectorEnv(cls.env_id, **cls.arguments)


def puffer_batch(name: str, num_envs: int = 1, **kwargs: Any) -> type[PufferBatch]:
    """Makes a class that serves an environment of PufferLib; arguments and errors are those of `PufferVectorEnv`.

    One instance is created to read its spaces and the number of its agents.
    """
    arguments = {"num_envs": num_envs, **kwargs}
    env = PufferVectorEnv(name, **arguments)
    try:
        made: type[PufferBatch] = batch_class(
            PufferBatch,
            name,
            (env.single_action_space, env.single_observation_space),
            env.num_envs,
            (puffer_batch, name, arguments),
            __doc__=f"{name}: an environment of PufferLib.",
            arguments=arguments,
            autoreset="same_step",
        )
        return made
    finally:
        env.close()


def _native(name: str, num_envs: int, kwargs: dict[str, Any]) -> Any:
    """`num_envs` environments as one of PufferLib."""
    if type(num_envs) is not int or num_envs < 1:
        raise UsageError(f"num_envs={num_envs!r} of {name!r}: give the number of environments, at least 1")
    module, _, env_name = name.rpartition(":")
    try:
        create = import_module(module or "pufferlib.ocean").env_creator(env_name)
        single = create(**kwargs)
        single.close()
        if isinstance(single, PufferEnv):
            if "num_envs" in inspect.signature(type(single)).parameters:
                return create(num_envs=num_envs, **kwargs)
            return pufferlib.vector.make(create, env_kwargs=kwargs, backend="Serial", num_envs=num_envs)
    except Exception as error:
        raise UsageError(
            f"PufferLib cannot make {name!r} with num_envs={num_envs} and {kwargs}: {type(error).__name__}: {error}"
        ) from error
    raise UsageError(
        f"{name!r} makes a {type(single).__name__}, which is no native environment of PufferLib: serve what it "
        "wraps, such as gymnasium:ENV_ID"
    )
