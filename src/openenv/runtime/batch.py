"""Calls of an environment that plays many episodes: the checks of its results, and the server's autoreset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._introspection import accepted_arguments
from ..batched import AUTORESETS, Autoreset, BatchedEnvironment, Columns
from ..errors import InvalidArgument, ResetRequired, StepFailed, UsageError
from ..types import State
from .columns import BatchSpec, copied_columns, list_column, merged_columns, merged_infos
from .executor import load, save
from .outcome import BatchOutcome

Mask = NDArray[np.bool_]


def batch_spec_of(cls: type[BatchedEnvironment[Any, Any, Any]], action_cls: Any, observation_cls: Any) -> BatchSpec:
    """The fields of a class's batches.

    Raises:
        UsageError: Its `num_envs` or `autoreset` is not valid, or as for `BatchSpec`.
    """
    num_envs, autoreset = getattr(cls, "num_envs", None), cls.autoreset
    if not isinstance(num_envs, int) or num_envs < 1:
        raise UsageError(f"{cls.__name__}.num_envs is {num_envs!r}: set the number of its episodes, at least 1")
    if autoreset not in AUTORESETS:
        raise UsageError(f"{cls.__name__}.autoreset is {autoreset!r}: it must be one of {', '.join(AUTORESETS)}")
    return BatchSpec(cls.__name__, num_envs, autoreset, action_cls, observation_cls, cls.owned_only)


def checked_autoreset(spec: BatchSpec, wanted: Any) -> Any:
    """The mode in which a client can own a batch; by default the environment's own mode.

    Raises:
        UsageError: The environment does not offer it.
    """
    if wanted is not None and wanted not in spec.autoresets:
        raise UsageError(f"{spec.name} does not offer the autoreset {wanted!r}: use {' or '.join(spec.autoresets)}")
    return wanted or spec.autoreset


class CheckedBatch:
    """One instance of an environment, with checked results.

    Args:
        spec: The fields.
        environment: The instance. It is used by one call at a time.

    Attributes:
        episode_steps: The steps of each episode, of shape (num_envs,); counted by the caller.
    """

    def __init__(self, spec: BatchSpec, environment: BatchedEnvironment[Any, Any, Any]):
        if environment.num_envs != spec.num_envs:
            raise UsageError(
                f"{spec.name} made an instance of {environment.num_envs} episodes, but its class declares num_envs = "
                f"{spec.num_envs}: make a subclass for another number"
            )
        self.spec = spec
        self.environment = environment
        self.episode_steps = np.zeros(spec.num_envs, np.int64)
        self._accepted = accepted_arguments(environment.reset, positional=2)

    def reset(self, seeds: list[int | None], mask: Mask, arguments: dict[str, Any]) -> BatchOutcome:
        """Starts episodes.

        Raises:
            StepFailed: The environment's result is not valid.
        """
        returned = self.environment.reset(seeds, mask, **self._accepted.of(arguments))
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise StepFailed(f"{self.spec.name}.reset returned {_kind(returned)}: return (observations, infos)")
        observations, infos = returned
        count = self.spec.num_envs
        columns = self.spec.observation_columns(observations, "reset")
        none = np.zeros(count, np.bool_)
        return BatchOutcome(self.spec, columns, None, none, none, self._infos(infos, "reset"), mask)

    def step(self, actions: dict[str, Any], mask: Mask) -> BatchOutcome:
        """Executes one action of each episode in the mask.

        Raises:
            StepFailed: The environment's result is not valid.
        """
        spec = self.spec
        returned = self.environment.step(actions, mask)
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise StepFailed(
                f"{spec.name}.step returned {_kind(returned)}: return (observations, rewards, terminated, "
                "truncated, infos)"
            )
        observations, rewards, terminated, truncated, infos = returned
        rewards = self._vector(rewards, "rewards", np.dtype(np.float64))
        if not np.isfinite(rewards).all() and (wrong := np.flatnonzero(~np.isfinite(rewards) & mask)).size:
            index = int(wrong[0])
            raise StepFailed(f"the reward of episode {index} of {spec.name} is {rewards[index]}: it must be finite")
        return BatchOutcome(
            spec,
            spec.observation_columns(observations, "step"),
            rewards,
            self._vector(terminated, "terminated", np.dtype(np.bool_)),
            self._vector(truncated, "truncated", np.dtype(np.bool_)),
            self._infos(infos, "step"),
            np.zeros(spec.num_envs, np.bool_),
        )

    def close(self) -> Any:
        """Closes the environment."""
        return self.environment.close()

    def _vector(self, value: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        what = f"{name} of {self.spec.name}.step"
        array = np.asarray(list_column(value, self.spec.num_envs, what))
        if array.ndim != 1 or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise StepFailed(
                f"{what} is an array of {array.dtype} {array.shape}: return {dtype} ({self.spec.num_envs},)"
            )
        return array.astype(dtype, copy=False)

    def _infos(self, infos: Any, method: str) -> Mapping[str, Any]:
        if not infos:
            return {}
        if not isinstance(infos, Mapping):
            raise StepFailed(f"the infos of {self.spec.name}.{method} are a {type(infos).__name__}: return a dict")
        what = f"of the infos of {self.spec.name}.{method}"
        return {
            str(name): self._infos(column, f"{method}, {name!r}")
            if isinstance(column, Mapping)
            else list_column(column, self.spec.num_envs, f"{name!r} {what}")
            for name, column in infos.items()
        }


def _kind(returned: Any) -> str:
    return f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"


class OwnedBatch:
    """The environment of a session that owns a whole batch.

    Args:
        batch: The instance.
        autoreset: When an episode that has ended is followed by the next one. If the environment does not do that
            itself, this does.
    """

    def __init__(self, batch: CheckedBatch, autoreset: Autoreset):
        self._batch = batch
        self._count = batch.spec.num_envs
        # What is left to do here: nothing if the environment resets its episodes itself.
        self._autoreset = autoreset if batch.spec.autoreset == "disabled" else None
        self._over = np.zeros(self._count, np.bool_)
        self._started = np.zeros(self._count, np.bool_)
        self._all = np.ones(self._count, np.bool_)
        self._seeds: list[int | None] = [None] * self._count
        self._steps = 0

    def reset(self, arguments: dict[str, Any]) -> BatchOutcome:
        """Starts the episodes in `mask`, by default all, with their `seeds`.

        Raises:
            InvalidArgument: One of them has another length or type.
            ResetRequired: The mask leaves out an episode that was never started.
        """
        others = {name: value for name, value in arguments.items() if name not in {"seeds", "mask", "episode_id"}}
        mask = arguments.get("mask")
        mask = self._all.copy() if mask is None else np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self._count,):
            raise InvalidArgument(
                f"mask has elements of {mask.dtype} and shape {mask.shape}: give {self._count} bools"
            )
        seeds = self._read_seeds(arguments.get("seeds"))
        if not (self._started | mask).all():
            index = int(np.flatnonzero(~(self._started | mask))[0])
            raise ResetRequired(f"episode {index} was never started: reset all episodes first, without a mask")
        outcome = self._batch.reset(seeds, mask, others)
        self._started = self._all
        self._over = self._over & ~mask
        self._steps = 0
        return outcome

    def step(self, actions: dict[str, Any]) -> BatchOutcome:
        """Executes one action of each episode.

        Raises:
            ResetRequired: No reset came before; or an episode has ended, and the mode is `"disabled"` or the next one
                could not be started.
        """
        if self._started is not self._all:
            raise ResetRequired("no episode was started: reset before the first step")
        over, mode = self._over, self._autoreset
        ended = mode is not None and over.any()
        if ended and mode != "next_step":
            index = int(np.flatnonzero(over)[0])
            other = ", or open the batch with another autoreset" if mode == "disabled" else ""
            raise ResetRequired(f"episode {index} is over: reset it (mask){other}")
        actions = self._batch.spec.with_defaults(actions)
        outcome = self._batch.step(actions, ~over if ended else self._all)
        if ended:
            assert outcome.rewards is not None
            outcome.rewards = np.where(over, 0.0, outcome.rewards)
            outcome.terminated, outcome.truncated = outcome.terminated & ~over, outcome.truncated & ~over
        if mode is not None:
            # Before episodes are started: if that fails, those that are over must not step.
            now_over = outcome.terminated | outcome.truncated
            self._over = now_over | over
            if ended:
                self._restart(outcome, over)
                self._over = now_over
            if mode == "same_step" and now_over.any():
                final, infos = self._restart(outcome, now_over, keep=True)
                self._over = np.zeros(self._count, np.bool_)
                outcome.infos = {**outcome.infos, "final_obs": final, "_final_obs": now_over}
                if infos:
                    outcome.infos |= {"final_info": infos, "_final_info": now_over}
        self._steps += 1
        return outcome

    def _restart(self, outcome: BatchOutcome, mask: Mask, keep: bool = False) -> tuple[Columns, Columns]:
        """Starts episodes, and puts their first observations into the outcome of a step.

        Returns:
            With `keep`, the observations and the infos of the step.
        """
        # Copies, because the environment may change its arrays in the reset.
        columns, infos = copied_columns(outcome.observations), copied_columns(outcome.infos)
        if keep:
            outcome.detach()
        first = self._batch.reset(self._seeds, mask, {})
        before = (copied_columns(columns), copied_columns(infos)) if keep else ({}, {})
        outcome.observations = merged_columns(columns, first.observations, mask)
        outcome.infos = merged_infos(infos, first.infos, mask)
        outcome.started = mask
        return before

    @property
    def state(self) -> State:
        """The number of steps since the last reset of the owner."""
        return State(step_count=self._steps)

    def save_state(self) -> Any:
        """The state of all episodes. Raises `NotForkable` if the environment's cannot be copied."""
        return save(self._batch.environment, None), self._started, self._over, self._steps

    def load_state(self, state: Any) -> None:
        """Continues from a `save_state`."""
        snapshot, started, self._over, self._steps = state
        self._started = self._all if started.all() else started
        load(self._batch.environment, snapshot)

    def close(self) -> Any:
        """Closes the environment."""
        return self._batch.close()

    def _read_seeds(self, seeds: Any) -> list[int | None]:
        if seeds is None:
            return list(self._seeds)
        values = seeds.tolist() if isinstance(seeds, np.ndarray) else seeds
        if not isinstance(values, list) or not all(seed is None or type(seed) is int for seed in values):
            raise InvalidArgument(f"seeds must be a list of {self._count} integers or None, not {seeds!r:.100}")
        if len(values) != self._count:
            raise InvalidArgument(f"seeds has {len(values)} values: give one for each of the {self._count} episodes")
        return values
