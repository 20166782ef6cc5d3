"""Whether a newcomer that found no free slot may wait, and when to come back: pure rules over counts and limits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

__all__ = ["Counts", "Decision", "Limits", "Turnover", "decide", "patience"]

# How long a newcomer waits for slots whose sessions are already closing, though no queue was asked for:
# a client that closes and connects again at once must find its own slot.
CLOSING_GRACE_S = 5.0
# What a refused newcomer is told at least and at most, and where nothing is known.
SOONEST_S, LATEST_S, UNKNOWN_S = 0.1, 60.0, 1.0
# Slots that came free lately, from which it is estimated when the next one does.
REMEMBERED = 32


class Decision(Enum):
    WAIT = "wait"
    REFUSE = "refuse"
    CROWDED = "crowded"
    """It would wait, but as many as may (`queue_limit`) wait already."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows.

    Attributes:
        max_sessions: Most sessions of the whole server at one time, from the start of their constructor to the end
            of their close.
        queue_timeout_s: Seconds a newcomer may wait for a slot; 0 refuses at once.
        idle_timeout_s: Seconds without a call after which a session is closed; None: never.
        queue_limit: Most newcomers that wait, in one process.
        max_sessions_per_key: Most sessions of the whole server that one API key has; None: as many as there are.
        max_executing: Most calls that environments of one process execute at one time; None: all.
        max_constructing: Most environments that one process makes at one time; None: all.
        max_abandoned_threads: Most calls of one process that do not return and are left behind, so that their slots
            are free again.
        abandon_after_s: Seconds that a session which has ended waits for its environment.
    """

    max_sessions: int
    queue_timeout_s: float = 0.0
    idle_timeout_s: float | None = None
    queue_limit: int = 20_000
    max_sessions_per_key: int | None = None
    max_executing: int | None = None
    max_constructing: int | None = None
    max_abandoned_threads: int = 16
    abandon_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What a newcomer finds.

    Attributes:
        held: Sessions of the whole server that hold a slot.
        closing: Those of them that are closing.
        waiting: Newcomers of the whole server that a slot will be given to before it.
        queued: Newcomers that wait in this process, for whatever reason.
    """

    held: int
    closing: int
    waiting: int
    queued: int


def decide(counts: Counts, limits: Limits, wait_s: float | None = None) -> Decision:
    """Decides about one newcomer for whom there is no slot now; it comes after all that wait already.

    Without a queue, a newcomer waits only for a slot that is about to be free and that nobody else waits for.

    Args:
        wait_s: Seconds that the newcomer itself is willing to wait; None leaves it to the limits.
    """
    coming = limits.max_sessions - counts.held + counts.closing
    if _asked_for(limits, wait_s) <= 0 and coming <= counts.waiting:
        return Decision.REFUSE
    return Decision.WAIT if counts.queued < limits.queue_limit else Decision.CROWDED


def patience(limits: Limits, wait_s: float | None = None) -> float:
    """Seconds that a waiting newcomer is kept before it is refused."""
    return _asked_for(limits, wait_s) or CLOSING_GRACE_S


def _asked_for(limits: Limits, wait_s: float | None) -> float:
    return limits.queue_timeout_s if wait_s is None else wait_s


class Turnover:
    """How fast slots come free. It reads no clock: times are seconds on any that only goes on."""

    def __init__(self) -> None:
        self._freed: deque[float] = deque(maxlen=REMEMBERED)

    def freed(self, now: float) -> None:
        """A slot came free."""
        self._freed.append(now)

    def retry_after_s(self, now: float, waiting: int) -> float:
        """When a newcomer that is refused now should try again: after those that wait have had their turn.

        Slots are taken to come free as fast as they did lately, the time since the last one included.
        """
        if not self._freed:
            return UNKNOWN_S
        each = (now - self._freed[0]) / len(self._freed)
        return min(max((waiting + 1) * each, SOONEST_S), LATEST_S)
