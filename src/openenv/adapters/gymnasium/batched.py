"""Serve a Gymnasium environment that steps many episodes in one call: its `vector_entry_point` as a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ...batched import BatchedEnvironment
from ...errors import InvalidAction, ResetRequired, UsageError
from ...protocol.arrays import is_array
from ..farama import check_reset_arguments, served_class
from .batch_codec import BatchCodec, batch_codec_of, host_array
from .codec import codec_of, field_of
from .environment import (
    GymnasiumAction,
    GymnasiumObservation,
    GymnasiumState,
    class_name_of,
    execution_of,
    summary_of,
)

# By the values of Gymnasium's modes.
MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


def info_of(value: Any) -> Any:
    """An `info` of a vector environment with arrays of numbers as they are, and all other values as JSON.

    An array of objects, such as `final_obs`, is a list.
    """
    if isinstance(value, Mapping):
        return {str(name): info_of(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [info_of(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return info_of(value.item())
    if is_array(value):
        array = host_array(value)
        return array if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 else info_of(array.tolist())
    return str(value)


class GymnasiumBatch(BatchedEnvironment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """A vector environment of Gymnasium, which one client plays. Serve the subclasses that `gymnasium_batch` makes.

    Attributes:
        env_id: Name of the environment in Gymnasium's registry.
        arguments: Keyword arguments for `gymnasium.make_vec`.
    """

    owned_only = True

    env_id: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]
    action_codec: ClassVar[BatchCodec]
    observation_codec: ClassVar[BatchCodec]

    def __init__(self) -> None:
        super().__init__()
        self._env = self.make_vector()
        self._ended = np.ones(self.num_envs, dtype=np.bool_)  # has no running episode

    @classmethod
    def make_vector(cls) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Makes the vector environment of an instance."""
        return _vector(cls.env_id, cls.num_envs, cls.arguments)

    def reset(
        self, seeds: list[int | None], mask: NDArray[np.bool_], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts episodes.

        Args:
            seeds: One for each episode: N for the first and N + i for episode i, since the vector environment takes
                N alone; or all None.
            mask: The episodes to start: all, unless the autoreset mode of the environment is DISABLED.
            options: The `options` of the environment's own `reset`.

        Raises:
            InvalidAction: Seeds, mask or options are not like that.
        """
        options = self._options(mask, options)
        seed = self._seed(seeds, mask)
        self._ended |= mask  # until it has succeeded
        observation, infos = self._env.reset(seed=seed, options=options)
        self._ended &= ~mask
        return {"observation": self.observation_codec.encode(observation)}, self._info_columns(infos)

    def step(
        self, actions: dict[str, Any], mask: NDArray[np.bool_]
    ) -> tuple[dict[str, Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one step of all episodes.

        Args:
            actions: `action`, as `action_codec` encodes a batch.
            mask: All episodes that run, since the vector environment steps as a whole.

        Raises:
            InvalidAction: An action is not in its space, or the mask leaves out an episode that runs.
            ResetRequired: The mask has an episode that does not run.
        """
        if (mask & self._ended).any():
            numbers = np.flatnonzero(mask & self._ended)
            raise ResetRequired(f"episodes {numbers[:8].tolist()} of {self.env_id} are not running: reset them first")
        if not (mask | self._ended).all():
            raise InvalidAction(
                f"{self.env_id} steps all of its {self.num_envs} episodes in one call: give an action for each"
            )
        try:
            action = self.action_codec.decode(actions["action"])
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidAction(f"the actions of {self.env_id}: {error}") from error
        if not self._env.action_space.contains(action):
            raise InvalidAction(f"the actions {action!s:.200} are not in the space {self._env.action_space!s:.200}")
        observation, rewards, terminated, truncated, infos = self._env.step(action)
        count = (self.num_envs,)
        terminated, truncated = host_array(terminated, count, np.bool_), host_array(truncated, count, np.bool_)
        if self.autoreset == "disabled":
            self._ended = terminated | truncated
        return (
            {"observation": self.observation_codec.encode(observation)},
            host_array(rewards, count),
            terminated,
            truncated,
            self._info_columns(infos),
        )

    def close(self) -> None:
        self._env.close()

    def _info_columns(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Infos with a value for each episode; one that is not an array of all episodes holds for each."""
        columns: dict[str, Any] = {}
        for name, value in infos.items():
            if name == "final_obs":  # as the server of another batch names its fields
                batched = isinstance(value, Mapping) or getattr(value, "dtype", None) != np.object_
                columns[name] = {"observation": self.observation_codec.encode(value) if batched else info_of(value)}
            elif isinstance(value, Mapping):
                columns[str(name)] = self._info_columns(value)
            else:
                column = info_of(value)
                shape = getattr(column, "shape", (len(column),) if isinstance(column, list) else ())
                columns[str(name)] = column if shape[:1] == (self.num_envs,) else [column] * self.num_envs
        return columns

    def _options(self, mask: NDArray[np.bool_], options: Any) -> dict[str, Any] | None:
        check_reset_arguments(None, options)
        if mask.all():
            return None if options is None else dict(options)
        if self.autoreset != "disabled":
            raise InvalidAction(
                f"{self.env_id} resets all of its {self.num_envs} episodes in one call, and then each at its end "
                f"({self.autoreset}): reset without a mask"
            )
        return {**(options or {}), "reset_mask": mask}

    def _seed(self, seeds: list[int | None], mask: NDArray[np.bool_]) -> int | None:
        """The one seed from which the vector environment numbers its episodes' seeds."""
        chosen = [(int(index), seeds[index]) for index in np.flatnonzero(mask)]
        if all(seed is None for _, seed in chosen):
            return None
        for _, seed in chosen:
            check_reset_arguments(seed, None)
        firsts = {None if seed is None else seed - index for index, seed in chosen}
        first = firsts.pop()
        if firsts or first is None or first < 0:
            raise InvalidAction(
                f"{self.env_id} takes one seed for all episodes: give seed=N, which is N + i for episode i"
            )
        return first


def batch_class(
    base: type[Any],
    env_id: str,
    member_spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
    num_envs: int,
    reference: tuple[Callable[..., Any], str, dict[str, Any]],
    **members: Any,
) -> Any:
    """A class that serves a batch of one environment, with the types of its spaces.

    Args:
        base: Its base class.
        env_id: Name of the environment.
        member_spaces: The spaces of one action and of one observation.
        num_envs: Number of episodes.
        reference: As for `served_class`.
        members: Further attributes of the class.

    Raises:
        UsageError: One of the spaces cannot be served.
    """
    action, observation = member_spaces
    return served_class(
        class_name_of(env_id),
        base,
        (GymnasiumAction, GymnasiumObservation, GymnasiumState),
        {"action": (codec_of(action).type, field_of(action))},
        {"observation": (codec_of(observation).type, field_of(observation))},
        reference,
        env_id=env_id,
        num_envs=num_envs,
        action_codec=batch_codec_of(action, num_envs),
        observation_codec=batch_codec_of(observation, num_envs),
        **members,
    )


def gymnasium_batch(
    env_id: str, num_envs: int | None = None, autoreset: str | None = None, **kwargs: Any
) -> type[GymnasiumBatch]:
    """Makes a class that serves the `vector_entry_point` of a registered Gymnasium environment.

    One instance is created to read its spaces and its autoreset mode, which becomes that of the class.

    Args:
        env_id: A registered name, such as `CartPole-v1`, or `module:Name-v0` to import a module first.
        num_envs: Number of its episodes.
        autoreset: The mode, if the environment's metadata has none: `next_step`, `same_step` or `disabled`.
        kwargs: Passed to `gymnasium.make_vec`, and by it to the environment.

    Raises:
        UsageError: `num_envs` is not an integer of at least 1, Gymnasium cannot make it (it has no
            `vector_entry_point`, for example), its metadata has no autoreset mode, or one of its spaces cannot be
            served.
    """
    if type(num_envs) is not int or num_envs < 1:
        raise UsageError(f"num_envs={num_envs!r} of {env_id!r}: give the number of episodes, at least 1")
    env = _vector(env_id, num_envs, kwargs)
    try:
        mode = env.metadata.get("autoreset_mode")
        declared = MODES.get(str(getattr(mode, "value", mode)))
        if declared is None and autoreset not in MODES.values():
            raise UsageError(
                f"metadata['autoreset_mode'] of the vector environment of {env_id!r} is {mode!r}: give its mode, "
                f"autoreset={' or '.join(MODES.values())}"
            )
        made: type[GymnasiumBatch] = batch_class(
            GymnasiumBatch,
            env_id,
            (env.single_action_space, env.single_observation_space),
            num_envs,
            (gymnasium_batch, env_id, {"num_envs": num_envs, "autoreset": autoreset, **kwargs}),
            __doc__=f"{env_id}: {summary_of(env)}",
            arguments=kwargs,
            execution=execution_of(env),
            autoreset=declared or autoreset,
        )
        return made
    finally:
        env.close()


def _vector(env_id: str, num_envs: int, arguments: dict[str, Any]) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    try:
        # A copy, since environments may keep and change their arguments.
        return gymnasium.make_vec(
            env_id, num_envs, vectorization_mode="vector_entry_point", **copy.deepcopy(arguments)
        )
    except Exception as error:
        raise UsageError(
            f"Gymnasium cannot make {env_id!r} with num_envs={num_envs} and {arguments}: "
            f"{type(error).__name__}: {str(error).rstrip('.')}. vectorized=true needs a vector_entry_point in "
            "Gymnasium's registry; without vectorized=true, each session is one environment"
        ) from error
