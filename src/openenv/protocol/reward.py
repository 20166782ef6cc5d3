"""Rewards: a finite number, a bool or nothing. An infrastructure must not turn anything else into one."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ..errors import StepFailed

__all__ = ["finite_reward"]


def finite_reward(reward: Any) -> bool | int | float:
    """A reward as a plain number.

    Raises:
        StepFailed: It is NaN, infinite or no number.
    """
    try:
        number = float(reward)  # also of subclasses, such as numpy.float64, and of other libraries' numbers
    except (TypeError, ValueError, OverflowError) as error:
        raise StepFailed(
            f"the reward is a {type(reward).__name__} that cannot be sent: it must be a finite number or None"
        ) from error
    if not isfinite(number):
        raise StepFailed(f"the reward is {number}: it must be a finite number or None")
    if isinstance(reward, int):
        return reward if type(reward) is bool or type(reward) is int else int(reward)
    return number
