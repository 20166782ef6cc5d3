"""What resets of Farama's interfaces take."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidAction

__all__ = ["check_reset_arguments"]


def check_reset_arguments(seed: Any, options: Any) -> None:
    """Refuses a seed or options that no environment of Gymnasium or PettingZoo takes.

    Raises:
        InvalidAction: The seed is neither None nor an integer of at least 0, or options are no dict.
    """
    if seed is not None and (type(seed) is not int or seed < 0):
        raise InvalidAction(f"seed is {seed!r}: it must be an integer of at least 0, or null")
    if options is not None and not isinstance(options, dict):
        raise InvalidAction(f"options is {options!r}: it must be an object, or null")
