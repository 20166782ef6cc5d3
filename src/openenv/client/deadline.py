"""How long a call may take, for the server and for who waits for it."""

from __future__ import annotations

__all__ = ["LATE_S", "deadline_of"]

LATE_S = 0.25
"""Seconds after a deadline in which the server's own word about it is awaited."""
# What the protocol allows.
SHORTEST_S, LONGEST_S = 0.001, 86_400.0


def deadline_of(due: float, now: float) -> float:
    """What is left until a deadline, as the protocol has it."""
    return min(LONGEST_S, max(SHORTEST_S, due - now))
