"""Many served environments as one `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from ...client import GenericEnvClient, SyncVectorEnvClient, VectorEnvClient
from ...client.payloads import is_bare
from ...errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired
from ...types import StepResult
from .remote import Fields, RemoteSpaces, ends_of, outside_error

Mode = Literal["next_step", "same_step", "disabled"]

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode
else:
    try:
        from gymnasium.vector import AutoresetMode
    except ImportError:  # Gymnasium 1.0 has only NEXT_STEP, without this enum

        class AutoresetMode(Enum):
            """The enum of later versions of Gymnasium."""

            NEXT_STEP = "NextStep"
            SAME_STEP = "SameStep"
            DISABLED = "Disabled"


# By the values of Gymnasium's modes, the names in `VectorEnvClient`.
_MODES: dict[str, Mode] = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


def mode_of(given: AutoresetMode | str) -> AutoresetMode:
    """The mode for a mode, its value, or its name in the client. Raises `InvalidArgument` for anything else."""
    if isinstance(given, AutoresetMode):
        return given
    for value, word in _MODES.items():
        if given in {value, word}:
            return AutoresetMode(value)
    raise InvalidArgument(
        f"autoreset_mode={given!r}: one of {', '.join(_MODES)}, or a gymnasium.vector.AutoresetMode"
    )


Infos = dict[str, Any]
Result = StepResult[Any]


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """Sessions of a served environment, stepped together, with one message per step and connection::

        envs = RemoteVectorEnv("http://localhost:8000", num_envs=16)
        observations, infos = envs.reset(seed=1)
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())

    It behaves like Gymnasium's `SyncVectorEnv` over the same environment, in each autoreset mode, with the same seeds
    and `reset_mask`. Spaces, `info` and pickling are those of `RemoteEnv`.

    If some environments fail, `step` or `reset` raises an error with their numbers in `error.data["env_ids"]`, since
    they have no reward. Reset them before the next step, alone (`reset(options={"reset_mask": ...})`, which returns
    the current observations of the others) or with all others; until then `step` raises `ResetRequired`. A lost
    connection is made again without an error.

    Args:
        base_url: URL of the server, as in `EnvClient`.
        num_envs: Number of environments.
        autoreset_mode: Mode as in `SyncVectorEnv`. SAME_STEP needs a second round trip when episodes end.
        connections: Number of connections that share the environments. A server with several workers puts each
            connection on one of them.
        observation_space: Space of one environment's observations, as in `RemoteEnv`.
        decode_observation: Conversion as in `RemoteEnv`.
        action_space: Space of one environment's actions, as in `RemoteEnv`.
        encode_action: Conversion as in `RemoteEnv`.
        missing_reward: Reward as in `RemoteEnv`.
        options: Further arguments of `EnvClient`.

    Raises:
        ConnectionFailed: No server answers with its schemas.
        UnmappableSpace: The schema of its actions or observations has no equivalent space.
        UsageError: A number or mode is invalid.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        num_envs: int = 8,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        connections: int = 1,
        observation_space: Space[Any] | None = None,
        decode_observation: Callable[[Fields], Any] | None = None,
        action_space: Space[Any] | None = None,
        encode_action: Callable[[Any], Fields] | None = None,
        missing_reward: float | None = None,
        **options: Any,
    ):
        super().__init__()
        self.num_envs = num_envs
        self.autoreset_mode = mode_of(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self._connections = connections
        spaces = self._spaces = RemoteSpaces(
            base_url, observation_space, decode_observation, action_space, encode_action, missing_reward, options
        )
        self.single_observation_space, self.single_action_space = spaces.observation_space, spaces.action_space
        self._begin()
        self.observation_space = batch_space(spaces.observation_space, num_envs)
        self.action_space = batch_space(spaces.action_space, num_envs)

    @property
    def client(self) -> SyncVectorEnvClient[Any, Any]:
        """The vector client."""
        return self._client

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Starts episodes.

        Args:
            seed: Seeds of the environments, or the seed of the first one: the others get the numbers after it.
            options: Options as in `RemoteEnv`; `reset_mask`, an array of bools, selects the environments to reset.

        Returns:
            The observations of all environments, and the infos of those that were reset.

        Raises:
            OpenEnvError: Some environments could not be reset; see the class.
        """
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
            seeds: Sequence[int | None] | None = range(int(seed), int(seed) + self.num_envs)
        else:
            seeds = seed
            if seeds is not None and len(seeds) != self.num_envs:
                raise InvalidArgument(f"{len(seeds)} seeds for {self.num_envs} environments: one for each")
        env_ids, options = self._chosen(options)
        given = None if seeds is None else [seeds[index] for index in env_ids]
        self.closed = False
        arguments = self._spaces.reset_arguments(None, options)
        with self._undecided(env_ids):
            results = self._client.reset(given, env_ids, **arguments)
        infos: Infos = {}
        for index, result in zip(env_ids, results, strict=True):
            over_at_once = result.done and self.autoreset_mode is AutoresetMode.SAME_STEP
            self._idle[index] = over_at_once or result.error is not None
            self._ended[index] = result.done
            if result.error is None:
                self._rows[index] = result.observation
            if result.metadata:
                infos = self._add_info(infos, result.metadata, index)
        self._raise_errors(env_ids, results)
        if None in self._rows:
            raise ResetRequired("some environments have no observation yet: call reset() without a reset_mask first")
        return self._join(self._rows), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """Takes one step in each environment.

        Raises:
            InvalidAction: An action is not in its space.
            ResetRequired: Some environments have no running episode, and autoreset does not start one.
            OpenEnvError: Some environments failed; see the class.
        """
        waiting = self._ended if self.autoreset_mode is AutoresetMode.DISABLED else self._idle
        if waiting.any() or self._idle.any():
            numbers = np.flatnonzero(waiting | self._idle)
            raise ResetRequired(
                f"environments {numbers[:8].tolist()} have no running episode: call reset(), or "
                "reset(options={'reset_mask': mask}) for those alone",
                data={"env_ids": numbers.tolist()},
            )
        fields = self._split(actions)
        client = self._client.async_client
        with self._undecided(range(self.num_envs)):
            outcomes = client.blocking(client.step_outcomes(fields))
        resetting = self._ended
        rewards: list[Any] = [0.0] * self.num_envs
        # The results of episodes that end or have an info, and of failures: few of them, in most steps.
        results: dict[int, Result] = {}
        for index, outcome in enumerate(outcomes):
            if type(outcome) is dict and is_bare(outcome):
                self._rows[index], rewards[index] = outcome["observation"], outcome["reward"]
            else:
                result = results[index] = client.result_of(outcome)
                rewards[index] = result.reward
        terminated, truncated = self._note_ends(results)
        self._raise_errors(list(results), list(results.values()))
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            for index in np.flatnonzero(resetting).tolist():
                rewards[index] = 0.0  # Gymnasium's reward for the step that resets
        if None in rewards:
            rewards = [self._spaces.reward_or_missing(reward) for reward in rewards]
        infos = self._infos(results)
        observations = self._join(self._rows)
        return observations, np.array(rewards, dtype=np.float64), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the sessions and their connections. A later reset opens new ones."""
        self._idle[:] = True
        self._client.close()

    def __del__(self) -> None:
        # Unlike Gymnasium's, it does not wait: garbage may be collected on the loop that would do the closing.
        client = None if self.closed or "_client" not in self.__dict__ else self._client.async_client
        loop = None if client is None or client._pid != os.getpid() else client._loop
        if client is not None and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(client.close(), loop)

    def __getstate__(self) -> dict[str, Any]:
        of_now = {"_client", "_rows", "_idle", "_ended"}
        return {name: value for name, value in self.__dict__.items() if name not in of_now}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Sets up the client and an initial state without sessions."""
        mode, spaces = _MODES[str(self.autoreset_mode.value)], self._spaces
        client: VectorEnvClient[Any, Any] = VectorEnvClient(
            GenericEnvClient, spaces.base_url, self.num_envs, self._connections, mode, **spaces.options
        )
        self._client = client.sync()
        self._rows: list[Any] = [None] * self.num_envs
        self._idle = np.ones(self.num_envs, dtype=np.bool_)  # environments that need a reset
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def _split(self, actions: Any) -> list[Fields]:
        """The fields of each environment's action.

        Raises:
            InvalidAction: An action is not in its space; no action was sent.
            InvalidArgument: The number of actions is not the number of environments.
        """
        spaces, space, count = self._spaces, self.action_space, self.num_envs
        if spaces.bounds is None:
            return self._split_members(actions)
        try:
            array = np.asarray(actions)
        except ValueError as error:
            raise outside_error(actions, space) from error
        if array.shape != space.shape:
            raise InvalidArgument(f"actions of shape {array.shape} for {count} environments: give {space.shape}")
        try:
            inside = spaces.bounds.inside(array)
        except TypeError as error:
            raise outside_error(array, space) from error
        if not inside.all():
            index = int(np.argwhere(~inside)[0][0])
            raise outside_error(array[index], spaces.action_space, index)
        side = spaces.action
        field = side.field
        if field is None or not side.plain:
            return [spaces.fields_of(action) for action in array]
        values = (array.reshape(count) if side.single else array).tolist()
        return [{field: value} for value in values]

    def _split_members(self, actions: Any) -> list[Fields]:
        """The same for actions that are not one array of numbers."""
        spaces = self._spaces
        try:
            members = list(iterate(self.action_space, actions))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise outside_error(actions, self.action_space) from error
        if len(members) != self.num_envs:
            raise InvalidArgument(f"{len(members)} actions for {self.num_envs} environments: one for each")
        for index, member in enumerate(members):
            if not spaces.action_space.contains(member):
                raise outside_error(member, spaces.action_space, index)
        return [spaces.fields_of(member) for member in members]

    def _join(self, rows: Sequence[Fields]) -> Any:
        """A new batch of the environments' observations, given as fields.

        Raises:
            ProtocolViolation: An observation does not fit its space.
        """
        spaces, space = self._spaces, self.observation_space
        field = spaces.observation.field
        if field is not None and spaces.observation.plain:
            try:
                return np.array([row[field] for row in rows], space.dtype).reshape(space.shape or ())
            except (LookupError, TypeError, ValueError, OverflowError):  # the slower way below names the observation
                pass
        members = [spaces.member_of(row) for row in rows]
        single = spaces.observation_space
        empty: Any = create_empty_array(single, n=self.num_envs, fn=np.zeros)
        try:
            return concatenate(single, members, empty)
        except (TypeError, ValueError, LookupError) as error:
            raise spaces.misfit(rows[0], error) from error

    @contextmanager
    def _undecided(self, env_ids: Sequence[int]) -> Iterator[None]:
        """Marks environments as in need of a reset: if the call is interrupted, their state is unknown."""
        self._idle[env_ids] = True
        try:
            yield
        except OpenEnvError as error:
            error.data.setdefault("env_ids", list(env_ids))
            raise

    def _chosen(self, options: dict[str, Any] | None) -> tuple[list[int], dict[str, Any] | None]:
        """The numbers of the environments to reset, and the options."""
        if not isinstance(options, dict) or "reset_mask" not in options:
            return list(range(self.num_envs)), options
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise InvalidArgument(f"reset_mask is {mask!r:.80}: give a numpy array of {self.num_envs} bools")
        if not mask.any():
            raise InvalidArgument("reset_mask chooses no environment: at least one of its elements must be True")
        return np.flatnonzero(mask).tolist(), {name: value for name, value in options.items() if name != "reset_mask"}

    def _note_ends(self, results: Mapping[int, Result]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Updates the state of each environment, even if others failed. Those without a result play on."""
        self._idle[:] = False
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for index, result in results.items():
            if result.error is None:
                self._rows[index] = result.observation
            self._idle[index] = not (result.error is None or isinstance(result.error, InvalidAction))
            terminated[index], truncated[index] = ends_of(result)
        self._ended = terminated | truncated
        return terminated, truncated

    def _infos(self, results: Mapping[int, Result]) -> Infos:
        infos: Infos = {}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        for index, result in results.items():
            info = result.metadata
            if same_step and self._ended[index]:
                # The end of an episode, and the info of the next one's reset.
                final, info = dict(info or {}), {}
                last = result.observation
                if "final_observation" in final:  # otherwise its reset failed, and the next step raises that
                    last, info = final.pop("final_observation"), final
                    final = info.pop("final_metadata") or {}
                final_obs = self._spaces.member_of(last)
                infos = self._add_info(infos, {"final_obs": final_obs, "final_info": final}, index)
            if info:
                infos = self._add_info(infos, info, index)
        return infos

    def _raise_errors(self, env_ids: Sequence[int], results: Sequence[Result]) -> None:
        failed = [(index, result.error) for index, result in zip(env_ids, results, strict=True) if result.error]
        if not failed:
            return
        # The first error, with the numbers of all environments that failed.
        first = failed[0][1]
        error = copy.copy(first)
        numbers = [index for index, _ in failed]
        listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        error.message = (
            f"{len(numbers)} of {self.num_envs} environments failed ({listed}); the first: {first.message}"
        )
        error.args = (error.message,)
        error.data = {**first.data, "env_ids": numbers}
        error.__cause__ = first
        raise error
