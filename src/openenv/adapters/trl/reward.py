"""One number for an episode, out of what its steps gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import UsageError
from ...types import StepResult

__all__ = ["Results", "Reward", "reward_of"]

Results = Sequence[StepResult[Any]]
# None for an episode that cannot be scored, which trainers then leave out.
Reward = Callable[[list[StepResult[Any]]], float | None]


def total(results: Results) -> float | None:
    """The sum of the rewards. 0 for an episode without a step; None where there were steps and none gave a reward."""
    given = _given(results)
    return float(sum(given)) if given or not results else None


def last(results: Results) -> float | None:
    """The last reward that a step gave; otherwise as `total`."""
    given = _given(results)
    return given[-1] if given else total(results)


def reward_of(reward: Reward | str) -> Reward:
    """The function that `reward=` means.

    Raises:
        UsageError: It is none, and not the name of one.
    """
    named: dict[Any, Reward] = {"sum": total, "last": last}
    if callable(reward):
        return reward
    if reward in named:
        return named[reward]
    raise UsageError(
        f"reward={reward!r}: give 'sum', 'last', None or a function from the list of StepResults to a number"
    )


def _given(results: Results) -> list[float]:
    return [float(result.reward) for result in results if result.reward is not None]
