"""Serve environments of EnvPool: `envpool:TASK_ID?num_envs=256`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..batched import BatchedEnvironment
from ..errors import InvalidAction, MissingExtra, UsageError

try:
    import envpool
except ModuleNotFoundError as missing:
    raise MissingExtra("envpool", None) from missing

from .gymnasium.batch_codec import BatchCodec
from .gymnasium.batched import batch_class
from .gymnasium.environment import GymnasiumAction, GymnasiumObservation, GymnasiumState

__all__ = ["EnvPoolBatch", "envpool_batch"]

Columns = dict[str, Any]


class EnvPoolBatch(BatchedEnvironment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """A pool of one task. Serve the subclasses that `envpool_batch` makes.

    Attributes:
        env_id: Name of the task in EnvPool.
        arguments: Keyword arguments for `envpool.make`.
    """

    env_id: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]
    action_codec: ClassVar[BatchCodec]
    observation_codec: ClassVar[BatchCodec]

    def __init__(self) -> None:
        super().__init__()
        # Without a seed, EnvPool takes 42: all instances would play the same episodes.
        self._pool = _pool(self.env_id, self.num_envs, {"seed": self.rng.randrange(2**30), **self.arguments})
        self._observation: Any = None

    def reset(self, seeds: Sequence[int | None], mask: NDArray[np.bool_]) -> tuple[Columns, Columns]:
        """Starts episodes.

        Args:
            seeds: One for each episode, modulo 2**31. EnvPool takes seeds only for all episodes together: in any
                other reset, the info `seedable` of an episode with a seed is False, and clients report `SeedIgnored`.
            mask: The episodes to start.
        """
        given = [seed for seed in seeds if seed is not None]
        together = bool(mask.all()) and len(given) == self.num_envs
        if together:
            self._pool.close()
            arguments = {**self.arguments, "seed": [seed % 2**31 for seed in given]}
            self._pool = _pool(self.env_id, self.num_envs, arguments)
        observation, infos = self._pool.reset(_numbers(mask))
        columns, info = self._columns(observation, infos, mask)
        if given and not together:
            info["seedable"] = [None if seed is None else False for seed in seeds]
        return columns, info

    def step(
        self, actions: Mapping[str, Any], mask: NDArray[np.bool_]
    ) -> tuple[Columns, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Columns]:
        """Takes one step of the episodes in the mask.

        Args:
            actions: `action`, as `action_codec` encodes a batch.
            mask: The episodes that step.

        Raises:
            InvalidAction: The actions do not have the form of the space.
        """
        try:
            action = self.action_codec.decode(actions["action"])
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidAction(f"the actions of {self.env_id}: {error}") from error
        observation, *ends, infos = self._pool.step(_chosen(action, mask), _numbers(mask))
        reward, terminated, truncated = [_spread(column, mask, None) for column in ends]
        columns, infos = self._columns(observation, infos, mask)
        return columns, reward, terminated, truncated, infos

    def close(self) -> None:
        self._pool.close()

    def _columns(self, observation: Any, infos: Columns, mask: NDArray[np.bool_]) -> tuple[Columns, Columns]:
        """Observations and infos of all episodes, of which those in the mask are new."""
        self._observation = _spread(observation, mask, self._observation)
        info = {
            name: _spread(column, mask, None) for name, column in infos.items() if name not in {"env_id", "players"}
        }
        return {"observation": self.observation_codec.encode(self._observation)}, info


def _numbers(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.flatnonzero(mask).astype(np.int32)


def _chosen(batch: Any, mask: NDArray[np.bool_]) -> Any:
    """The members of a batch that are in the mask."""
    if isinstance(batch, Mapping):
        return {name: _chosen(part, mask) for name, part in batch.items()}
    return batch if mask.all() else batch[mask]


def _spread(part: Any, mask: NDArray[np.bool_], present: Any) -> Any:
    """A batch of all episodes: `part` for those in the mask, and `present` for the others, or 0 if that is None."""
    if isinstance(part, Mapping):
        return {name: _spread(each, mask, present and present[name]) for name, each in part.items()}
    if mask.all():
        return part
    column = np.zeros((len(mask), *part.shape[1:]), part.dtype) if present is None else present.copy()
    column[mask] = part
    return column


def envpool_batch(task_id: str, num_envs: int | None = None, **kwargs: Any) -> type[EnvPoolBatch]:
    """Makes a class that serves a task of EnvPool. One pool is made to read its spaces.

    Args:
        task_id: A name of `envpool.list_all_envs()`, such as `Pong-v5`.
        num_envs: Number of its episodes.
        kwargs: Passed to `envpool.make`.

    Raises:
        UsageError: `num_envs` is not an integer of at least 1, EnvPool cannot make the task, it has several players,
            or one of its spaces cannot be served.
    """
    if type(num_envs) is not int or num_envs < 1:
        raise UsageError(f"num_envs={num_envs!r} of {task_id!r}: give the number of episodes, at least 1")
    if "batch_size" in kwargs:
        raise UsageError(f"batch_size of {task_id!r}: leave it out, and give it to the client's RemoteVectorEnv")
    pool = _pool(task_id, 1, kwargs)
    try:
        if pool.config.get("max_num_players", 1) > 1:
            raise UsageError(f"{task_id!r} has several players: an episode that is served has one")
        made: type[EnvPoolBatch] = batch_class(
            EnvPoolBatch,
            task_id,
            (pool.action_space, pool.observation_space),
            num_envs,
            (envpool_batch, task_id, {"num_envs": num_envs, **kwargs}),
            __doc__=f"{task_id}: a task of EnvPool.",
            arguments=kwargs,
        )
        return made
    finally:
        pool.close()


def _pool(task_id: str, num_envs: int, arguments: dict[str, Any]) -> Any:
    try:
        return envpool.make(task_id, env_type="gymnasium", num_envs=num_envs, **arguments)
    except Exception as error:
        raise UsageError(
            f"EnvPool cannot make {task_id!r} with {arguments}: {type(error).__name__}: {error}"
        ) from error
