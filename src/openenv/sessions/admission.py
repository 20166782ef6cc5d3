"""Whether a new session may open: a pure rule over counts and limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Counts", "Decision", "Limits", "decide"]

# How long a newcomer waits for slots whose sessions are already closing, though no queue was asked for:
# a client that closes and connects again at once must find its own slot.
CLOSING_GRACE_S = 5.0


class Decision(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows.

    Attributes:
        max_sessions: Most sessions of the whole server at one time, from the start of their constructor to the end
            of their close.
        queue_timeout_s: Seconds a newcomer may wait for a slot; 0 refuses at once.
        idle_timeout_s: Seconds without a call after which a session is closed; None: never.
    """

    max_sessions: int
    queue_timeout_s: float = 0.0
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many sessions of the server hold a slot, how many of those are closing, how many newcomers wait here."""

    held: int
    closing: int
    waiting: int


def decide(counts: Counts, limits: Limits, wait_s: float | None = None) -> Decision:
    """Decides about one newcomer, who comes after all that wait already.

    Nobody overtakes the queue; without a queue, a newcomer waits only for a slot that is about to be free.

    Args:
        wait_s: Seconds that the newcomer itself is willing to wait; None leaves it to the limits.
    """
    if counts.held < limits.max_sessions and counts.waiting == 0:
        return Decision.ADMIT
    if _asked_for(limits, wait_s) > 0 or counts.closing > counts.waiting:
        return Decision.WAIT
    return Decision.REFUSE


def patience(limits: Limits, wait_s: float | None = None) -> float:
    """Seconds that a waiting newcomer is kept before it is refused."""
    return _asked_for(limits, wait_s) or CLOSING_GRACE_S


def _asked_for(limits: Limits, wait_s: float | None) -> float:
    return limits.queue_timeout_s if wait_s is None else wait_s
