"""Processes of this machine: limits, priority, signals, parents. What a system lacks does nothing, or is refused."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ._imports import module_or_none

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

# The module `resource` of POSIX; None on Windows.
_resource: Any = module_or_none("resource")
# The C library, where its system calls are those of Linux.
LIBC: Any = None
if sys.platform == "linux":
    with contextlib.suppress(OSError):
        LIBC = ctypes.CDLL(None, use_errno=True)

# Windows has one signal of the two, and both of its meanings: the process ends at once.
if sys.platform == "win32":
    KILL = signal.SIGTERM
else:
    KILL = signal.SIGKILL
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signals(*names: str) -> list[signal.Signals]:
    """Those of the signals that this system has, by name; Windows has no SIGHUP, SIGCHLD, SIGUSR1."""
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def on_signal(name: str, call: Callable[..., object], *arguments: Any) -> None:
    """Has the running event loop call a function at a signal, given by name; never if the system lacks it."""
    import asyncio  # noqa: PLC0415 - commands that need no event loop start without it

    loop = asyncio.get_running_loop()
    for number in signals(name):
        try:
            loop.add_signal_handler(number, call, *arguments)
        except NotImplementedError:  # the loops of Windows: Python calls the handler between two instructions

            def handle(*_: object) -> None:
                loop.call_soon_threadsafe(call, *arguments)

            signal.signal(number, handle)


@contextlib.contextmanager
def signals_held_back(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Signals of this thread wait until the block ends; a process that it starts inherits that they wait."""
    if sys.platform == "win32":  # it has no masks
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_group(leader: int, number: int) -> None:
    """Sends a signal to a process group. On Windows, which has none, it ends the process and its descendants.

    Raises:
        ProcessLookupError: The group has ended.
        PermissionError: It belongs to another user.
    """
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(leader)]
        subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - a command line of numbers
    else:
        os.killpg(leader, number)


def can_fork() -> bool:
    """Whether a process can continue as two: not on Windows."""
    return hasattr(os, "fork")


def fork() -> int:
    """`os.fork`. Raises `OSError` unless `can_fork`."""
    if sys.platform == "win32":
        raise OSError("Windows has no fork")
    return os.fork()


def fork_process(name: str, target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """A process, not started yet, that forks and calls a function. Raises `OSError` unless `can_fork`."""
    if sys.platform == "win32":
        raise OSError("Windows has no fork")
    import multiprocessing  # noqa: PLC0415 - only the parent of workers needs it

    return multiprocessing.get_context("fork").Process(name=name, target=target, args=arguments)


def die_with_parent(number: int = KILL) -> None:
    """Makes Linux send this process a signal when its parent ends. Elsewhere it does nothing: read a pipe's end."""
    if LIBC is not None:
        check_call(LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans(wanted: bool = True) -> None:
    """Makes this process the parent of descendants whose parent ends, or leaves them to an ancestor. Linux only."""
    check_call(LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def check_call(result: int, what: str) -> None:
    """Raises the `OSError` of a call of the C library whose result is not 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# The kernel's default limit for a process, used if the system sets none.
UNLIMITED = 1_048_576


def raise_file_limit() -> int:
    """Raises this process's limit of open files to the maximum, for itself and its child processes.

    Returns:
        The number of files that it may open; on Windows, where only memory limits it, `UNLIMITED`.
    """
    if _resource is None:
        return UNLIMITED
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    if hard == _resource.RLIM_INFINITY:
        return UNLIMITED if soft == _resource.RLIM_INFINITY else int(soft)
    if soft != hard:
        _resource.setrlimit(_resource.RLIMIT_NOFILE, (hard, hard))
    return int(hard)


def has_limits() -> bool:
    """Whether processes have limits (`setrlimit`): not on Windows."""
    return _resource is not None


def limit_of(name: str) -> int:
    """A limit of this process, `sys.maxsize` for none. Windows has none.

    Args:
        name: As in getrlimit(2), such as "RLIMIT_FSIZE".
    """
    soft = -1 if _resource is None else _resource.getrlimit(getattr(_resource, name))[0]
    return sys.maxsize if _resource is None or soft == _resource.RLIM_INFINITY else int(soft)


def lower_limit(name: str, limit: int, beyond: int = 0) -> None:
    """Lowers a limit of this process and its children, unless it is lower already. Nothing where it does not exist.

    Args:
        name: As for `limit_of`.
        limit: The limit that the process may not raise beyond the next one.
        beyond: By how much the hard limit is higher.
    """
    kind = getattr(_resource, name, None)
    if kind is None:
        return
    _, hard = _resource.getrlimit(kind)
    most = limit + beyond if hard == _resource.RLIM_INFINITY else min(hard, limit + beyond)
    _resource.setrlimit(kind, (min(limit, most), most))


def peak_bytes() -> int:
    """The largest resident memory of this process so far, in bytes; 0 if unknown (Windows)."""
    if _resource is None:
        return 0
    return int(_resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def usable_cores() -> int:
    """The number of processors that this process may use; where only Linux knows, those of the machine."""
    if sys.platform == "linux" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_cores(pid: int, cores: Iterable[int]) -> None:
    """Keeps a process on some processors, given by number; only Linux does so."""
    if sys.platform == "linux" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, cores)


_malloc_trim = getattr(LIBC, "malloc_trim", None)


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
    if sys.platform == "linux" and hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # A sandbox may forbid it. Child processes inherit it: they get the same share of the CPU, a moment later.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_when_idle() -> None:
    """Gives this process the lowest priority: SCHED_IDLE on Linux, niceness on POSIX, on Windows nothing.

    SCHED_IDLE runs only on an idle processor; with niceness alone, a server that wakes up may wait.
    """
    if sys.platform == "linux" and hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):  # it may be forbidden
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(19)


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
