"""Which rewards a trainer may learn from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .types import StepResult

__all__ = ["reward_mask"]


def reward_mask(results: Iterable[StepResult[Any]]) -> list[bool]:
    """Says of each result whether it has a reward: no error, and a reward that is not None.

    A call that failed, and a step for which no reward was given, are not rewarded with 0: they say nothing about the
    policy, and a loss must leave them out. Multiply by the mask, and divide by what is left::

        results = await envs.step(actions)
        mask = torch.tensor(reward_mask(results))
        rewards = torch.tensor([float(result.reward or 0) for result in results])  # what stands for None is masked
        loss = -(log_probs * advantages(rewards, mask) * mask).sum() / mask.sum().clamp(min=1)

    For a group's mean or a baseline, take the rewards under the mask alone: a failure counted as 0 would raise the
    advantage of all others.

    Args:
        results: Of `VectorEnvClient.step`, or gathered otherwise.

    Returns:
        One bool for each, in their order.
    """
    return [result.error is None and result.reward is not None for result in results]
