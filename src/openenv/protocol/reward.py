"""Rewards: a finite number, a bool or nothing. An infrastructure must not turn anything else into one."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ..errors import ProtocolViolation, StepFailed

__all__ = ["check_outcome", "finite_reward"]

_NUMBERS = frozenset({float, int, bool})


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


def check_outcome(payload: Mapping[str, Any]) -> None:
    """Looks at a reply to reset or step before anybody's parsing does.

    Raises:
        ProtocolViolation: It has no observation, or its reward is no finite number: nothing else is a reward.
    """
    if "observation" not in payload:
        raise ProtocolViolation(f"a reply without an observation: {dict(payload)!r:.200}")
    reward = payload.get("reward")
    if reward is None or (type(reward) in _NUMBERS and reward - reward == 0):
        return
    raise ProtocolViolation(f"a reply whose reward is {reward!r:.50}, which is no finite number and not null")
