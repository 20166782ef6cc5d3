"""When a worker that died is replaced: a pure rule over the times of deaths."""

from __future__ import annotations

from collections import deque

__all__ = ["RestartPolicy"]

WINDOW_S = 60.0
# A worker that lived this long did not die of how it was started.
WELL_S = 30.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class RestartPolicy:
    """A budget of restarts, and pauses between them that grow while workers die young.

    Args:
        most: Most restarts within a minute.
    """

    def __init__(self, most: int):
        self._most = most
        self._deaths: deque[float] = deque()
        self._streak = 0

    def died(self, now: float, lived_s: float) -> float | None:
        """A worker died.

        Args:
            now: Seconds on any clock that only goes on.
            lived_s: How long it had been ready; 0 if it never was.

        Returns:
            Seconds until it may be replaced: none for the first. None: the budget is used up.
        """
        if lived_s >= WELL_S:
            self._streak = 0
        while self._deaths and self._deaths[0] <= now - WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._most:
            return None
        pause = 0.0 if self._streak == 0 else FIRST_PAUSE_S * 2 ** (self._streak - 1)
        self._streak += 1
        return min(pause, LONGEST_PAUSE_S)
