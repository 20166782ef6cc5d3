"""Tuning of the whole process: limit of open files, free memory, scheduling class, switch interval."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import threading

# The kernel's default limit for a process, used if the system sets none.
UNLIMITED = 1_048_576


def raise_file_limit() -> int:
    """Raises this process's limit of open files to the maximum, for itself and its child processes.

    Returns:
        The number of files that it may open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def release_free_memory() -> None:
    """Returns free pages of the heap to the system (glibc's `malloc_trim`); elsewhere it does nothing.

    After the first large block is freed, glibc takes later ones from its heap and keeps them there (mallopt(3),
    M_MMAP_THRESHOLD): 10 clients with 4 MB of unread replies each left 30 to 45 MB behind. A lower threshold would
    return them at once, but fresh pages make a copy of 450 KB take 230 us and not 13. This takes about 10 ms.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def use_batch_scheduling() -> None:
    """Sets SCHED_BATCH: when the calling thread wakes, it does not preempt the running one. Does nothing off Linux.

    A thread wakes while the event loop holds the interpreter lock: if it preempted the loop, it would find the lock
    taken and sleep again. On one core with 64 sessions, that costs two switches and a third to a half of the CPU of a
    step (51 us without, 28 with; `openenv bench steps --serve` of a synchronous environment).
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # A sandbox may forbid it. Child processes inherit it: they get the same share of the CPU, a moment later.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# A thread that waits for the interpreter lock wakes after every switch interval (5 ms) to request it again. With
# thousands of waiting threads, this alone fills the processor: 8,192 sessions whose steps sleep a second took 19.5 s
# at P99 with the default interval, 10.0 s with 100 ms, 16.3 s with 1 s (2 workers on 2 cores, one run after the
# other). So the interval grows with the number of calls, and many threads together wake no more often than a few.
CALLS_A_LEVEL = 100
LEVEL_S = 0.005
MOST_S = 0.1


class SwitchInterval:
    """Counts the calls on threads, and sets the interpreter's switch interval according to their number.

    Thread-safe. There is one for the whole process, because the interval applies to the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._level = 0
        self._usual = sys.getswitchinterval()

    def count(self, calls: int) -> None:
        """Counts calls: a positive number were given to threads, a negative number have returned."""
        with self._lock:
            self._calls += calls
            level = self._calls // CALLS_A_LEVEL
            if level == self._level:
                return
            if self._level == 0:  # the current value, which the process may have changed
                self._usual = sys.getswitchinterval()
            self._level = level
            sys.setswitchinterval(max(self._usual, min(level * LEVEL_S, MOST_S)))


SWITCH_INTERVAL = SwitchInterval()
