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
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from ...client import GenericEnvClient, SyncBatchedEnvClient, SyncVectorEnvClient, VectorEnvClient
from ...client.payloads import is_bare
from ...client.vector_sessions import EnvOutcome
from ...errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired, UsageError
from ...protocol.buffers import array_of_rows
from ...protocol.shared_arrays import MIN_SHARED_BYTES
from ...types import StepResult
from .remote import Fields, RemoteSpaces, ends_of, outside_error
from .remote_batched import RemoteBatch, checked_array, reset_required

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

    If the server plays a batch (`BatchedEnvironment`, `gymnasium:ID?vectorized=true`), this owns the whole batch, and
    a step of all its environments is one call with arrays.

    It behaves like Gymnasium's `SyncVectorEnv` over the same environment, in each autoreset mode, with the same seeds
    and `reset_mask`. Spaces, `info` and pickling are those of `RemoteEnv`.

    `async_reset`, `send` and `recv` are those of EnvPool: a batch has the `batch_size` environments that finish
    first, so that slow ones do not hold the others::

        envs = RemoteVectorEnv("http://localhost:8000", num_envs=64, batch_size=16)
        envs.async_reset(seed=1)
        while training:
            observations, rewards, terminations, truncations, infos = envs.recv()
            envs.send(policy(observations), infos["env_id"])

    If some environments fail, `step` or `reset` raises an error with their numbers in `error.data["env_ids"]`, since
    they have no reward. Reset them before the next step, alone (`reset(options={"reset_mask": ...})`, which returns
    the current observations of the others) or with all others; until then `step` raises `ResetRequired`. A lost
    connection is made again without an error.

    Args:
        base_url: URL of the server, as in `EnvClient`.
        num_envs: Number of environments; None for 8, or for all of the server's batch. With another number than the
            batch has, they are single sessions, which share batches.
        autoreset_mode: Mode as in `SyncVectorEnv`; None for NEXT_STEP, or for the only one that a batch offers.
            SAME_STEP needs a second round trip when the episodes of sessions end.
        batch_size: Number of environments in a batch of `recv`; None for all. With fewer, they are single sessions.
        connections: Number of connections that share the environments; the owner of a batch has one. A server with
            several workers puts each connection on one of them.
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

    _arrived: dict[int, EnvOutcome]
    _rows: list[Any]  # the fields of the observations; None where there is none

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        batch_size: int | None = None,
        connections: int = 1,
        observation_space: Space[Any] | None = None,
        decode_observation: Callable[[Fields], Any] | None = None,
        action_space: Space[Any] | None = None,
        encode_action: Callable[[Any], Fields] | None = None,
        missing_reward: float | None = None,
        **options: Any,
    ):
        super().__init__()
        mode = None if autoreset_mode is None else mode_of(autoreset_mode)
        spaces = self._spaces = RemoteSpaces(
            base_url, observation_space, decode_observation, action_space, encode_action, missing_reward, options
        )
        batch = spaces.batch or {"num_envs": 8, "autoresets": ["next_step"]}
        num_envs = batch["num_envs"] if num_envs is None else num_envs
        self.num_envs = num_envs
        self.batch_size = num_envs if batch_size is None else batch_size
        if type(self.batch_size) is not int or not 1 <= self.batch_size <= num_envs:
            raise UsageError(f"batch_size={batch_size!r}: give an integer from 1 to {num_envs} (num_envs)")
        self._owns_batch = spaces.batch is not None and num_envs == batch["num_envs"] == self.batch_size
        if mode is None:
            offered = batch["autoresets"] if self._owns_batch else ["next_step"]
            mode = mode_of("next_step" if "next_step" in offered else offered[0])
        self.autoreset_mode = mode
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self._connections = connections
        self._env_ids = np.arange(num_envs)
        self.single_observation_space, self.single_action_space = spaces.observation_space, spaces.action_space
        self._begin()
        self.observation_space = batch_space(spaces.observation_space, num_envs)
        self.action_space = batch_space(spaces.action_space, num_envs)

    @property
    def client(self) -> SyncVectorEnvClient[Any, Any] | SyncBatchedEnvClient:
        """The vector client, or that of the batch."""
        client: SyncVectorEnvClient[Any, Any] | SyncBatchedEnvClient = self._client
        return client

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Starts episodes.

        Args:
            seed: Seeds of the environments, or the seed of the first one: the others get the numbers after it.
            options: Options as in `RemoteEnv`; `reset_mask`, an array of bools, selects the environments to reset.

        Returns:
            The observations of all environments, and the infos of those that were reset. Those of the others are the
            ones that the caller has, if they are large arrays (16 KiB): what it has changed in them in place is
            changed here too, except with DISABLED after a step that ended an episode.

        Raises:
            OpenEnvError: Some environments could not be reset; see the class.
        """
        env_ids, seeds, arguments = self._reset_calls(seed, options)
        if self._batch is not None:
            return self._batch.reset(seeds, env_ids, arguments)
        with self._undecided(env_ids):
            results = self._client.reset(seeds, env_ids, **arguments)
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
            numbers = [index for index, row in enumerate(self._rows) if row is None]
            raise ResetRequired(
                f"environments {numbers[:8]} have no observation yet: call reset() without a reset_mask first, or "
                "select them too"
            )
        return self._join(self._rows), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """Takes one step in each environment.

        Raises:
            InvalidAction: An action is not in its space.
            ResetRequired: Some environments have no running episode, and autoreset does not start one.
            OpenEnvError: Some environments failed; see the class.
        """
        if self._batch is not None:
            return self._batch.step(actions)
        env_ids = self._env_ids
        fields = self._step_calls(actions, env_ids)
        client = self._client.async_client
        self._rows = [None] * self.num_envs  # so that their memory is used again, if the caller has let go of it
        with self._undecided(env_ids):
            outcomes = client.blocking(client.step_outcomes(fields))
        self._note_resets(env_ids)
        return self._results(env_ids, outcomes)

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begins episodes; `recv` returns their first observations.

        Args:
            seed: As for `reset`.
            options: As for `reset`.

        Raises:
            UsageError: Some environments have results that `recv` has not returned, or belong to an owned batch,
                which steps as a whole.
        """
        self._refuse_owned()
        env_ids, seeds, arguments = self._reset_calls(seed, options)
        with self._undecided(env_ids):
            self._client.send_reset(seeds, env_ids, **arguments)
        self._sent[env_ids] = self._resetting[env_ids] = True

    def send(self, actions: Any, env_id: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Begins a step in some environments; `recv` returns the results.

        Args:
            actions: One for each of them, in order, in the form of a batch of actions.
            env_id: Their numbers, as in `infos["env_id"]`; None for all.

        Raises:
            InvalidAction: An action is not in its space; nothing was sent.
            InvalidArgument: The numbers of actions and environments differ, or `env_id` is invalid.
            ResetRequired: Some of the environments have no running episode, and autoreset does not start one.
            UsageError: Some of them have results that `recv` has not returned, or belong to an owned batch, which
                steps as a whole.
        """
        self._refuse_owned()
        env_ids = self._env_ids if env_id is None else self._numbers(env_id)
        fields = self._step_calls(actions, env_ids)
        with self._undecided(env_ids):
            self._client.send(fields, env_ids.tolist())
        self._note_resets(env_ids)
        self._sent[env_ids] = True

    def recv(self) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """Waits for the first `batch_size` results of `async_reset` and `send`.

        Returns:
            Observations, rewards, terminations, truncations and infos as `step` returns them, for a batch of
            `batch_size` environments. `infos["env_id"]` has their numbers, in ascending order (int32). The reward of
            a reset is 0.

        Raises:
            UsageError: Fewer calls are in flight.
            OpenEnvError: Some environments failed, as for `step`: `async_reset` those. The results of the others wait
                for the next `recv`.
        """
        on_their_way = np.count_nonzero(self._sent)
        if on_their_way < self.batch_size:
            raise UsageError(
                f"a batch has {self.batch_size} results (batch_size), and {on_their_way} are on their way: "
                "send() or async_reset() more environments first"
            )
        missing = self.batch_size - len(self._arrived)
        if missing > 0:
            client = self._client.async_client
            self._arrived.update(client.blocking(client.recv_outcomes(missing)))
        env_ids = np.array(sorted(list(self._arrived)[: self.batch_size]))
        batch = {env_id: self._arrived.pop(env_id) for env_id in env_ids.tolist()}
        self._sent[env_ids] = False
        try:
            *results, infos = self._results(env_ids, list(batch.values()))
        except OpenEnvError as error:
            failed = error.data.get("env_ids", batch)
            others = {env_id: outcome for env_id, outcome in batch.items() if env_id not in failed}
            self._arrived = {**others, **self._arrived}
            self._sent[list(others)] = True
            raise
        return *results, {**infos, "env_id": env_ids.astype(np.int32)}

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the sessions and their connections. A later reset opens new ones."""
        self._idle[:] = True
        self._sent[:] = False
        self._arrived = {}
        if self._batch is not None:
            self._batch.forget()
        self._client.close()

    def __del__(self) -> None:
        # Unlike Gymnasium's, it does not wait: garbage may be collected on the loop that would do the closing.
        client = None if self.closed or "_client" not in self.__dict__ else self._client.async_client
        loop = None if client is None or client._pid != os.getpid() else client._loop
        if client is not None and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(client._close(), loop)

    def __getstate__(self) -> dict[str, Any]:
        of_now = {"_batch", "_client", "_rows", "_idle", "_ended", "_sent", "_resetting", "_arrived"}
        return {name: value for name, value in self.__dict__.items() if name not in of_now}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Sets up the client and an initial state without sessions."""
        mode, spaces = _MODES[str(self.autoreset_mode.value)], self._spaces
        self._batch = RemoteBatch(spaces, self.num_envs, mode) if self._owns_batch else None
        self._has_rows = _has_large(spaces.observation_space)
        self._client: Any
        if self._batch is not None:
            self._client = self._batch.client
        else:
            arrays: Any = "batch" if self._has_rows else "each"
            client: VectorEnvClient[Any, Any] = VectorEnvClient(
                GenericEnvClient, spaces.base_url, self.num_envs, self._connections, mode, arrays, **spaces.options
            )
            self._client = client.sync()
        self._rows = [None] * self.num_envs
        self._idle = np.ones(self.num_envs, dtype=np.bool_)  # environments that need a reset
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._resetting = np.zeros(self.num_envs, dtype=np.bool_)  # their last call starts an episode
        self._sent = np.zeros(self.num_envs, dtype=np.bool_)  # `recv` has a result for them
        self._arrived = {}  # these results, those that came first in front

    def _refuse_owned(self) -> None:
        if self._batch is not None:
            raise UsageError(
                f"the {self.num_envs} environments of an owned batch step together: use reset and step, or give a "
                "smaller batch_size, for which they are single sessions"
            )

    def _reset_calls(self, seed: Any, options: Any) -> tuple[list[int], list[int | None] | None, Fields]:
        """The numbers of the environments to reset, their seeds, and the other arguments."""
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
            seeds: Sequence[int | None] | None = range(int(seed), int(seed) + self.num_envs)
        else:
            seeds = seed
            if seeds is not None and len(seeds) != self.num_envs:
                raise InvalidArgument(f"{len(seeds)} seeds for {self.num_envs} environments: one for each")
        env_ids, options = self._chosen(options)
        self._refuse_sent(env_ids)
        self.closed = False
        given = None if seeds is None else [seeds[index] for index in env_ids]
        return env_ids, given, self._spaces.reset_arguments(None, options)

    def _step_calls(self, actions: Any, env_ids: NDArray[Any]) -> list[Fields]:
        """The fields of each action, if all of the environments can take a step."""
        self._refuse_sent(env_ids)
        waiting = self._idle | self._ended if self.autoreset_mode is AutoresetMode.DISABLED else self._idle
        if waiting[env_ids].any():
            numbers = env_ids[waiting[env_ids]].tolist()
            raise reset_required(numbers, "reset() or async_reset()")
        return self._split(actions, len(env_ids))

    def _numbers(self, env_id: Any) -> NDArray[Any]:
        """The numbers of environments as an array. Raises `InvalidArgument` for anything else."""
        array = np.asarray(env_id)
        if (
            array.ndim != 1
            or array.dtype.kind not in "iu"
            or not ((array >= 0) & (array < self.num_envs)).all()
            or len(np.unique(array)) < len(array)
        ):
            raise InvalidArgument(
                f"env_id={env_id!s:.80}: give a list of integers from 0 to {self.num_envs - 1}, each at most once"
            )
        return array

    def _refuse_sent(self, env_ids: Sequence[int] | NDArray[Any]) -> None:
        """Raises `UsageError` if one of the environments has a result that was not returned."""
        sent = self._sent[env_ids]
        if sent.any():
            numbers = np.asarray(env_ids)[sent].tolist()
            raise UsageError(f"environments {numbers[:8]} have results that were not returned: recv() first")

    def _note_resets(self, env_ids: NDArray[Any]) -> None:
        """Notes which of the calls that were made start an episode."""
        self._resetting[env_ids] = self._ended[env_ids] if self.autoreset_mode is AutoresetMode.NEXT_STEP else False

    def _results(
        self, env_ids: NDArray[Any], outcomes: Sequence[EnvOutcome]
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """The results of some environments as `step` returns them; raises as it does."""
        numbers, client = env_ids.tolist(), self._client.async_client
        rewards: list[Any] = [0.0] * len(numbers)
        # The results of episodes that end or have an info, and of failures: few of them, in most steps.
        results: dict[int, Result] = {}
        for row, outcome in enumerate(outcomes):
            if type(outcome) is dict and is_bare(outcome):
                self._rows[numbers[row]], rewards[row] = outcome["observation"], outcome["reward"]
            else:
                result = results[row] = client.result_of(outcome)
                rewards[row] = result.reward
        terminated, truncated = self._note_ends(env_ids, results)
        self._raise_errors([numbers[row] for row in results], list(results.values()))
        for row in np.flatnonzero(self._resetting[env_ids]).tolist():
            rewards[row] = 0.0  # Gymnasium's reward for the step that resets
        if None in rewards:
            rewards = [self._spaces.reward_or_missing(reward) for reward in rewards]
        infos = self._infos(env_ids, results)
        observations = self._join([self._rows[number] for number in numbers])
        if self._has_rows and self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            self._rows = copy.deepcopy(self._rows)  # a reset returns them again, and the caller may change its arrays
        return observations, np.array(rewards, dtype=np.float64), terminated, truncated, infos

    def _split(self, actions: Any, count: int) -> list[Fields]:
        """The fields of each action.

        Raises:
            InvalidAction: An action is not in its space; no action was sent.
            InvalidArgument: The number of actions is not `count`.
        """
        spaces = self._spaces
        if spaces.bounds is None:
            try:
                members = list(iterate(self.action_space, actions))
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise outside_error(actions, self.action_space) from error
            if len(members) != count:
                raise InvalidArgument(f"{len(members)} actions for {count} environments: one for each")
            for index, member in enumerate(members):
                if not spaces.action_space.contains(member):
                    raise outside_error(member, spaces.action_space, index)
            return [spaces.fields_of(member) for member in members]
        array = checked_array(actions, spaces, count)
        side = spaces.action
        field = side.field
        if field is None or not side.plain:
            return [spaces.fields_of(action) for action in array]
        values = (array.reshape(count) if side.single else array).tolist()
        return [{field: value} for value in values]

    def _join(self, rows: Sequence[Fields]) -> Any:
        """A batch of the environments' observations, given as fields: of large arrays, that of which they are rows.

        Raises:
            ProtocolViolation: An observation does not fit its space.
        """
        spaces, single = self._spaces, self._spaces.observation_space
        field = spaces.observation.field
        if field is not None and spaces.observation.plain:
            try:
                values = [row[field] for row in rows]
                whole = array_of_rows(values) if self._has_rows else None
                batch = np.asarray(values if whole is None else whole, single.dtype)
                return batch.reshape((len(rows), *(single.shape or ())))
            except (LookupError, TypeError, ValueError, OverflowError):  # the slower way below names the observation
                pass
        members = [spaces.member_of(row) for row in rows]
        try:
            return _concatenated(single, members)
        except (TypeError, ValueError, LookupError) as error:
            raise spaces.misfit(rows[0], error) from error

    @contextmanager
    def _undecided(self, env_ids: Sequence[int] | NDArray[Any]) -> Iterator[None]:
        """Marks environments as in need of a reset: if the call is interrupted, their state is unknown."""
        self._idle[env_ids] = True
        try:
            yield
        except OpenEnvError as error:
            error.data.setdefault("env_ids", np.asarray(env_ids).tolist())
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

    def _note_ends(self, env_ids: NDArray[Any], results: Mapping[int, Result]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Updates the state of the environments, even if others failed.

        Args:
            env_ids: Their numbers.
            results: Results by their place in `env_ids`; environments without one play on.

        Returns:
            Which have terminated, and which were truncated.
        """
        self._idle[env_ids] = False
        terminated, truncated = np.zeros(len(env_ids), np.bool_), np.zeros(len(env_ids), np.bool_)
        for row, result in results.items():
            number = env_ids[row]
            if result.error is None:
                self._rows[number] = result.observation
            self._idle[number] = not (result.error is None or isinstance(result.error, InvalidAction))
            terminated[row], truncated[row] = ends_of(result)
        self._ended[env_ids] = terminated | truncated
        return terminated, truncated

    def _infos(self, env_ids: NDArray[Any], results: Mapping[int, Result]) -> Infos:
        infos: Infos = {}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        batch: VectorEnv[Any, Any, Any] = VectorEnv()  # makes infos with one element for each of `env_ids`
        batch.num_envs = len(env_ids)
        for row, result in results.items():
            info = result.metadata
            if same_step and self._ended[env_ids[row]]:
                # The end of an episode, and the info of the next one's reset.
                final, info = dict(info or {}), {}
                last = result.observation
                if "final_observation" in final:  # otherwise its reset failed, and the next step raises that
                    last, info = final.pop("final_observation"), final
                    final = info.pop("final_metadata") or {}
                final_obs = self._spaces.member_of(last)
                infos = batch._add_info(infos, {"final_obs": final_obs, "final_info": final}, row)
            if info:
                infos = batch._add_info(infos, info, row)
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


def _has_large(space: Space[Any]) -> bool:
    """Whether members of a space have an array that would travel through shared memory."""
    if isinstance(space, (Dict, Tuple)):
        return any(map(_has_large, space.values() if isinstance(space, Dict) else space))
    return isinstance(space, Box) and space.low.nbytes >= MIN_SHARED_BYTES


def _concatenated(space: Space[Any], members: Sequence[Any]) -> Any:
    """As Gymnasium's `concatenate`, without a copy of arrays that are the rows of one."""
    if isinstance(space, Dict):
        return {key: _concatenated(part, [member[key] for member in members]) for key, part in space.items()}
    if isinstance(space, Tuple):
        columns = zip(*members, strict=True)
        return tuple(_concatenated(part, column) for part, column in zip(space, columns, strict=True))
    whole = array_of_rows(members) if isinstance(space, Box) else None
    if whole is not None:
        return whole
    empty: Any = create_empty_array(space, n=len(members), fn=np.zeros)
    return concatenate(space, members, empty)
