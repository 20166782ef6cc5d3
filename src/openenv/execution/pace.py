"""How long a thread may keep the interpreter while others wait for it."""

from __future__ import annotations

import sys
import threading

__all__ = ["Pace"]

# A thread that waits for the interpreter wakes up after every switch interval (5 ms) to ask for it again. With
# thousands that wait, that alone fills the processor: 8,192 sessions whose steps sleep a second took 19.5 s at P99
# with the usual interval, 10.0 s with 100 ms, 16.3 s with 1 s (2 workers on 2 cores, one run after the other). So the
# interval grows with the calls there are, and many together ask no more often than a few would.
CALLS_A_LEVEL = 100
LEVEL_S = 0.005
MOST_S = 0.1


class Pace:
    """Counts the calls that are with threads, and sets the interpreter's switch interval by them.

    Safe from every thread; one for the whole process, as the interval is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._level = 0
        self._usual = sys.getswitchinterval()

    def begin(self) -> None:
        """A call was given to a thread."""
        self._count(1)

    def end(self, calls: int) -> None:
        """So many calls have come back."""
        self._count(-calls)

    def _count(self, calls: int) -> None:
        with self._lock:
            self._calls += calls
            level = self._calls // CALLS_A_LEVEL
            if level == self._level:
                return
            if self._level == 0:  # what the process has chosen for itself by now
                self._usual = sys.getswitchinterval()
            self._level = level
            sys.setswitchinterval(max(self._usual, min(level * LEVEL_S, MOST_S)))


PROCESS = Pace()
