"""Many served environments as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from ...client import GenericEnvClient, SyncVectorEnvClient, VectorEnvClient
from ...errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired
from ...types import StepResult
from .autoreset import AutoresetMode, mode_of, word_of
from .batch import ActionBatch, ObservationBatch
from .outlet import Fields, Outlet, ends_of

__all__ = ["RemoteVectorEnv"]

Infos = dict[str, Any]
Result = StepResult[Any]


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """Sessions of a served environment, stepped together: one message a step and connection::

        envs = RemoteVectorEnv("http://localhost:8000", num_envs=16)
        observations, infos = envs.reset(seed=1)
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())

    It does what Gymnasium's own `SyncVectorEnv` does over the same environment, in each autoreset mode, with the same
    seeds and `reset_mask`. Spaces, `info` and pickling are as for `RemoteEnv`.

    What goes wrong in some environments is raised by `step` or `reset`, and no reward is made up for it:
    `error.data["env_ids"]` tells which environments they are. Those are reset before the next step, with all others
    or alone (`reset(options={"reset_mask": ...})`, which returns the present observations of the others); until then
    `step` raises `ResetRequired`. A connection that is lost is made again, and nobody notices.

    Args:
        base_url: As for `EnvClient`.
        num_envs: How many environments.
        autoreset_mode: As for `SyncVectorEnv`. SAME_STEP takes a second trip to the server when episodes end.
        connections: How many connections share the environments. A server with several workers puts each connection
            on one of them.
        observation_space: As for `RemoteEnv`, of one environment.
        decode_observation: As for `RemoteEnv`.
        action_space: As for `RemoteEnv`, of one environment.
        encode_action: As for `RemoteEnv`.
        missing_reward: As for `RemoteEnv`.
        options: Further arguments of `EnvClient`.

    Raises:
        ConnectionFailed: There is no server that tells its types.
        UnmappableSpace: There is no space for its action or observation.
        UsageError: A number or mode that makes no sense.
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
        outlet = self._outlet = Outlet(
            base_url, observation_space, decode_observation, action_space, encode_action, missing_reward, options
        )
        self.single_observation_space, self.single_action_space = outlet.observation_space, outlet.action_space
        self._begin()
        self.observation_space, self.action_space = self._observed.space, self._acted.space

    @property
    def client(self) -> SyncVectorEnvClient[Any, Any]:
        """The client behind it."""
        return self._client

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Starts episodes.

        Args:
            seed: One for each environment, or that of the first: the others get the numbers after it.
            options: As for `RemoteEnv`; `reset_mask`, an array of bools, says which environments are reset.

        Returns:
            The observations of all environments, and the infos of those that were reset.

        Raises:
            OpenEnvError: Some could not be reset; see above.
        """
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
        seeds = self._seeds(seed)
        env_ids, options = self._chosen(options)
        given = None if seeds is None else [seeds[index] for index in env_ids]
        self.closed = False
        arguments = self._outlet.reset_arguments(None, options)
        with self._undecided(env_ids):
            results = self._client.reset(given, env_ids, **arguments)
        for index, result in zip(env_ids, results, strict=True):
            over_at_once = result.done and self.autoreset_mode is AutoresetMode.SAME_STEP
            self._idle[index] = over_at_once or result.error is not None
            self._ended[index] = result.done
            if result.error is None:
                self._rows[index] = result.observation
        self._raise_errors(env_ids, results)
        infos: Infos = {}
        for index, result in zip(env_ids, results, strict=True):
            if result.metadata:
                infos = self._add_info(infos, result.metadata, index)
        if None in self._rows:
            raise ResetRequired("some environments have no observation yet: call reset() without a reset_mask first")
        return self._observed.together(self._rows), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        """Does one action in each environment.

        Raises:
            InvalidAction: One of them is not in its space.
            ResetRequired: Some have no running episode, and none begins by itself.
            OpenEnvError: Some have failed; see above.
        """
        waiting = self._ended if self.autoreset_mode is AutoresetMode.DISABLED else self._idle
        if waiting.any() or self._idle.any():
            raise _reset_required(np.flatnonzero(waiting | self._idle))
        fields = self._acted.fields(actions)
        with self._undecided(range(self.num_envs)):
            results = self._client.step(fields)
        resetting = self._ended
        terminated, truncated = self._note_ends(results)
        self._raise_errors(range(self.num_envs), results)
        rewards = self._rewards(results, resetting)
        infos = self._infos(results)
        return self._observed.together(self._rows), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the sessions and their connections; a later reset begins anew."""
        self._idle[:] = True
        self._client.close()

    def __del__(self) -> None:
        # Not as Gymnasium has it: who collects garbage must not wait, least of all on the loop that is waited for.
        client = None if self.closed or "_client" not in self.__dict__ else self._client.async_client
        if client is not None and client._loop is not None and not client._homeless():
            asyncio.run_coroutine_threadsafe(client.close(), client._loop)

    def __getstate__(self) -> dict[str, Any]:
        of_now = {"_client", "_acted", "_observed", "_rows", "_idle", "_ended"}
        return {name: value for name, value in self.__dict__.items() if name not in of_now}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Begins without sessions."""
        base_url, options = self._outlet.vector_arguments()
        client: VectorEnvClient[Any, Any] = VectorEnvClient(
            GenericEnvClient, base_url, self.num_envs, self._connections, word_of(self.autoreset_mode), **options
        )
        self._client = client.sync()
        self._acted = ActionBatch(self._outlet, self.num_envs)
        self._observed = ObservationBatch(self._outlet, self.num_envs)
        self._rows: list[Any] = [None] * self.num_envs
        self._idle = np.ones(self.num_envs, dtype=np.bool_)  # those that only a reset brings on
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    @contextmanager
    def _undecided(self, env_ids: Sequence[int]) -> Iterator[None]:
        """A call for some environments; if it is interrupted, nobody knows who has done it: only a reset helps."""
        self._idle[env_ids] = True
        try:
            yield
        except OpenEnvError as error:
            error.data.setdefault("env_ids", list(env_ids))
            raise

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None] | None:
        if seed is None:
            return None
        if isinstance(seed, (int, np.integer)):
            return range(int(seed), int(seed) + self.num_envs)
        if len(seed) != self.num_envs:
            raise InvalidArgument(f"{len(seed)} seeds for {self.num_envs} environments: one for each")
        return seed

    def _chosen(self, options: dict[str, Any] | None) -> tuple[list[int], dict[str, Any] | None]:
        """Which environments are reset, and with which options."""
        if not isinstance(options, dict) or "reset_mask" not in options:
            return list(range(self.num_envs)), options
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise InvalidArgument(f"reset_mask is {mask!r:.80}: give a numpy array of {self.num_envs} bools")
        if not mask.any():
            raise InvalidArgument("reset_mask chooses no environment: at least one of its elements must be True")
        return np.flatnonzero(mask).tolist(), {name: value for name, value in options.items() if name != "reset_mask"}

    def _note_ends(self, results: Sequence[Result]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Takes what is known of the episodes, in those environments, too, beside which others have failed."""
        for index, result in enumerate(results):
            if result.error is None:
                self._rows[index] = result.observation
            self._idle[index] = not (result.error is None or isinstance(result.error, InvalidAction))
        terminated, truncated = np.array([ends_of(result) for result in results], dtype=np.bool_).T.copy()
        self._ended = terminated | truncated
        return terminated, truncated

    def _rewards(self, results: Sequence[Result], resetting: NDArray[Any]) -> NDArray[np.float64]:
        rewards: list[Any] = [result.reward for result in results]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            for index in np.flatnonzero(resetting):
                rewards[index] = 0.0  # what Gymnasium gives for the step that resets
        if None in rewards:
            rewards = [
                self._outlet.reward_of(result) if reward is None else reward
                for reward, result in zip(rewards, results, strict=True)
            ]
        return np.array(rewards, dtype=np.float64)

    def _infos(self, results: Sequence[Result]) -> Infos:
        infos: Infos = {}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        for index, result in enumerate(results):
            info = result.metadata
            if same_step and self._ended[index]:
                final, info = self._final(result)
                infos = self._add_info(infos, final, index)
            if info:
                infos = self._add_info(infos, info, index)
        return infos

    def _final(self, result: Result) -> tuple[Infos, Infos]:
        """The end of an episode, and the info of the beginning after it."""
        info = dict(result.metadata or {})
        if "final_observation" not in info:  # the reset after it failed, as the next step will tell
            return {"final_obs": self._outlet.member_of(result.observation), "final_info": info}, {}
        last = self._outlet.member_of(info.pop("final_observation"))
        return {"final_obs": last, "final_info": info.pop("final_metadata") or {}}, info

    def _raise_errors(self, env_ids: Sequence[int], results: Sequence[Result]) -> None:
        failed = [(index, result.error) for index, result in zip(env_ids, results, strict=True) if result.error]
        if failed:
            raise _failure(failed, self.num_envs)


def _failure(failed: Sequence[tuple[int, OpenEnvError]], count: int) -> OpenEnvError:
    """One error for all: the first, with the numbers of the environments."""
    first = failed[0][1]
    error = copy.copy(first)
    numbers = [index for index, _ in failed]
    listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    error.message = f"{len(numbers)} of {count} environments failed ({listed}); the first: {first.message}"
    error.args = (error.message,)
    error.data = {**first.data, "env_ids": numbers}
    error.__cause__ = first
    return error


def _reset_required(numbers: NDArray[Any]) -> ResetRequired:
    return ResetRequired(
        f"environments {numbers[:8].tolist()} have no running episode: call reset(), or "
        "reset(options={'reset_mask': mask}) for those alone",
        data={"env_ids": numbers.tolist()},
    )
