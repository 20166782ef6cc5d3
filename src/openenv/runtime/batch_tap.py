"""Records of a session that owns a batch: the episodes one by one, as those of as many sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..recording import Source, Tap
from .columns import BatchSpec
from .outcome import BatchOutcome, EpisodeOutcome


class BatchTap:
    """Has the methods of a `Tap`, for the calls of a whole batch.

    Args:
        taps: A tap of each episode.
        spec: The fields of the batch.
        autoreset: The mode in which the session owns it.
    """

    def __init__(self, taps: Sequence[Tap], spec: BatchSpec, autoreset: str):
        self._taps, self._spec, self._autoreset = taps, spec, autoreset
        self._over = np.zeros(spec.num_envs, np.bool_)
        self._running: list[int] = []

    def reset(self, arguments: Mapping[str, Any]) -> None:
        """Records the start of a reset of the episodes in its mask."""
        self.settle()
        count, mask, seeds = self._spec.num_envs, arguments.get("mask"), arguments.get("seeds")
        self._running = list(range(count))
        if mask is not None and np.shape(mask) == (count,):
            self._running = np.flatnonzero(mask).tolist()
        self._over[self._running] = False
        others = {name: value for name, value in arguments.items() if name not in {"mask", "seeds", "episode_id"}}
        has_seeds = isinstance(seeds, Sequence) and len(seeds) == count
        for index in self._running:
            seed = seeds[index] if has_seeds and seeds is not None else None
            self._taps[index].reset({**others, "seed": seed})

    def do(self, action: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """Records the start of a step; of a reset, for an episode that starts in place of a step."""
        self.settle()
        self._running = list(range(self._spec.num_envs))
        starts = self._over.tolist() if self._autoreset == "next_step" else [False] * self._spec.num_envs
        for index, tap in enumerate(self._taps):
            if starts[index]:
                tap.reset({})
            else:
                fields = self._spec.actions
                values = {
                    field.name: field.row(action[field.name], index) for field in fields if field.name in action
                }
                tap.do(values, arguments)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """Records the error of the call for each of its episodes."""
        for index in self._running:
            self._taps[index].ended(result, error)

    def returned(self, outcome: BatchOutcome) -> None:
        """Keeps the results of the episodes; `settle` records them."""
        self._over = outcome.terminated | outcome.truncated
        last = outcome
        final = outcome.infos.get("final_obs")
        if final is not None:
            infos = outcome.infos.get("final_info", {})
            last = BatchOutcome(
                self._spec, final, outcome.rewards, outcome.terminated, outcome.truncated, infos, outcome.started
            )
        began = outcome.replaced_by_first()
        started = outcome.started.tolist()
        over = self._over.tolist()
        for index in self._running:
            tap = self._taps[index]
            if final is not None and over[index]:
                tap.returned(EpisodeOutcome(last, index))
                tap.reset({})
            is_first = started[index] or (final is not None and over[index])
            tap.returned(EpisodeOutcome(began if is_first else outcome, index))

    def settle(self, refusal: Exception | None = None) -> None:
        """Records the kept results."""
        for tap in self._taps:
            tap.settle(refusal)

    @property
    def place(self) -> Any:
        """The positions of all episodes."""
        return [tap.place for tap in self._taps]

    def continue_from(self, source: Sequence[Source]) -> None:
        """Continues from the state of another session that owns a batch."""
        for tap, place in zip(self._taps, source, strict=True):
            tap.continue_from(place)


def batch_tap_of(
    session_id: str, factory: Callable[[str], Tap | None], spec: BatchSpec, autoreset: str
) -> BatchTap | None:
    """The tap of a session that owns a batch; None if the recorder records none of its episodes."""
    taps = [factory(f"{session_id}.{index}") for index in range(spec.num_envs)]
    recorded = [tap for tap in taps if tap is not None]
    return BatchTap(recorded, spec, autoreset) if len(recorded) == spec.num_envs else None
