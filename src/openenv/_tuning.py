"""Tuning of the whole process: its limit of open files, its scheduling class, its switch interval."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading

# Where the system sets none, what the kernel allows a process by default.
UNLIMITED = 1_048_576


def raise_file_limit() -> int:
    """Raises this process's limit as far as it may, for itself and what it starts.

    Returns:
        How many files it may have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def use_batch_scheduling() -> None:
    """Has the kernel not interrupt a running thread when the calling one is woken. Elsewhere than on Linux, nothing.

    A thread is woken while the event loop holds the interpreter: given the processor at once, it would only find that
    out and go back to sleep. On one core, 64 sessions, that is two switches and a third to a half of the CPU of a
    step (51 us without, 28 with; `openenv bench steps --serve` of a synchronous environment).
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # A sandbox may forbid it. What the thread starts inherits it: the same share, later by a moment.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# A thread that waits for the interpreter wakes up after every switch interval (5 ms) to ask for it again. With
# thousands that wait, that alone fills the processor: 8,192 sessions whose steps sleep a second took 19.5 s at P99
# with the usual interval, 10.0 s with 100 ms, 16.3 s with 1 s (2 workers on 2 cores, one run after the other). So the
# interval grows with the calls there are, and many together ask no more often than a few would.
CALLS_A_LEVEL = 100
LEVEL_S = 0.005
MOST_S = 0.1


class SwitchInterval:
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


SWITCH_INTERVAL = SwitchInterval()
