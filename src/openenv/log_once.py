"""Warnings that a process logs once, however often it comes by their cause."""

from __future__ import annotations

import logging

__all__ = ["warn_once"]

# Of one process. Their arguments are names of types and the like, of which there are few.
MOST_SAID = 1000
_said: set[tuple[str, ...]] = set()


def warn_once(logger: logging.Logger, message: str, *arguments: str) -> None:
    """Logs a warning the first time that this process says it of these arguments."""
    said = (message, *arguments)
    if said not in _said and len(_said) < MOST_SAID:
        _said.add(said)
        logger.warning(message, *arguments)
