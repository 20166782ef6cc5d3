"""A worker process as its parent sees it: its phase, its load, and whether it is silent."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import FrameType

from ..._processes import fork_process, signals, signals_held_back
from ...settings import ServerSettings
from ...telemetry.metrics import METER
from .pipe import MessageKind, Pipe, PipeMessage, close_all
from .table import BEAT, DECIDED, DRIFT, KEY, SharedMetrics, WorkerRow, WorkerTable


class SilenceDetector:
    """Watches a number that a worker changes while its event loop runs.

    Args:
        silence_s: Seconds without a change after which it counts as silent.
        now: Seconds on any monotonic clock.
    """

    def __init__(self, silence_s: float, now: float):
        self._silence_s = silence_s
        self._beat: int | None = None
        self._changed = self._looked = now

    def silent(self, beat: int, now: float) -> bool:
        """Whether the worker is silent, given the current number."""
        # If the watching process itself did not run (stopped, starved), the worker was not silent.
        away = now - self._looked > self._silence_s / 2
        if beat != self._beat or away:
            self._beat, self._changed = beat, now
        self._looked = now
        return now - self._changed > self._silence_s


WorkerMain = Callable[[Pipe, WorkerTable, SharedMetrics, WorkerRow], None]
"""Runs a worker in its process: with its end of the pipe, what all workers share, and its row of both."""

# Signals that end a process because of its own code.
CRASHES = set(signals("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"))
# Signals that a terminal or a service manager sends to the whole group; a worker does what its parent says.
GROUP_SIGNALS = set(signals("SIGINT", "SIGTERM", "SIGHUP"))


def ignore_signal(number: int, frame: FrameType | None) -> None:
    """A signal handler that does nothing. Programs that this process starts do not inherit it, unlike SIG_IGN."""


def _run(main: WorkerMain, pipe: Pipe, table: WorkerTable, metrics: SharedMetrics, row: WorkerRow) -> None:
    """Runs a worker in the process that was forked for it, without what belongs to the parent."""
    if sys.platform == "win32":  # it has no forks
        return
    METER.reset()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for sent in GROUP_SIGNALS:
        signal.signal(sent, ignore_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    parent = multiprocessing.parent_process()
    assert parent is not None
    kept = {0, 1, 2, parent.sentinel, pipe.fileno(), table.descriptor, metrics.descriptor}
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept:  # noqa: PTH208 - only names are wanted
        with suppress(OSError):  # the one that has listed them
            os.close(number)
    with open(os.devnull, "rb") as silence:  # noqa: PTH123 - a device
        os.dup2(silence.fileno(), 0)
    try:
        main(pipe, table, metrics, row)
    finally:
        atexit._run_exitfuncs()  # a fork of `multiprocessing` does so since Python 3.14 only


class WorkerPhase(Enum):
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    GONE = "gone"


class WorkerProcess:
    """One worker process, from its start until it is reaped: a fork, which has what this process has imported.

    Args:
        main: What it runs.
        table: The shared table.
        metrics: The shared metrics.
        row: A free row, for this worker.
        settings: Seconds within which it must become ready, and that it may be silent after that.

    Attributes:
        phase: Starting, serving, leaving, or ended.
        deadline: When it is killed unless it is ready or has ended by then; None for never.
        complaint: Why it cannot start, as the worker reported it.
        pid: Its process.
        pipe: The parent's end of the pipe to it.
        ready_at: When it became ready.
    """

    def __init__(
        self, main: WorkerMain, table: WorkerTable, metrics: SharedMetrics, row: WorkerRow, settings: ServerSettings
    ):
        self.row = row
        self.key = secrets.randbits(62) or 1
        self.phase = WorkerPhase.STARTING
        self.complaint: str | None = None
        self.ready_at: float | None = None
        self.deadline: float | None = time.monotonic() + settings.worker_start_s
        self._silence_s = settings.worker_silence_s
        self._handed = 0
        self._killed_for: str | None = None
        # The worker's end stays open here as well: what a worker leaves unread when it dies can be read back.
        self.pipe, self._far = Pipe.pair()
        row.set(KEY, self.key)
        self._process = fork_process("openenv-worker", _run, main, self._far, table, metrics, row)
        try:
            with signals_held_back(GROUP_SIGNALS):  # until the worker has handlers of its own
                self._process.start()
        except OSError:
            self.unread_messages()
            row.clear()
            raise
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it lives."""
        if self._exit_code is None and (code := self._process.exitcode) is not None:
            self._exit_code = code
            self._process.close()
        return self._exit_code

    @property
    def load(self) -> int:
        """The number of its sessions, and of connections handed to it that may open one."""
        return self._handed + self.row.get(DRIFT)

    @property
    def undecided(self) -> int:
        """The number of its connections that have neither asked for a session nor shown that they need none."""
        return max(0, self._handed - self.row.get(DECIDED))

    def hand(self, sockets: list[int]) -> bool:
        """Hands connections to it. False: its pipe is full, and no connection was handed over."""
        sent = self.pipe.send(MessageKind.CONNECTIONS, bytes([len(sockets)]), sockets)
        if sent:
            self._handed += len(sockets)
        return sent

    def route(self, message: PipeMessage) -> None:
        """Hands it a connection that another worker has begun to read."""
        self._handed += 1
        self.pipe.post(message.kind, message.payload, message.sockets)

    def became_ready(self, now: float) -> None:
        self.phase = WorkerPhase.READY
        self.ready_at, self.deadline = now, None
        self._watch = SilenceDetector(self._silence_s, now)

    def leave(self, kind: MessageKind, grace_s: float, deadline: float) -> None:
        """Tells it to end: by `MessageKind.DRAIN` or `MessageKind.RETIRE`."""
        if self.phase is WorkerPhase.STARTING:
            self.kill("was no longer needed")
        else:
            self.pipe.post(kind, repr(grace_s).encode())
        self.phase = WorkerPhase.LEAVING
        self.deadline = deadline

    def overdue(self, now: float) -> str | None:
        """Why it must be killed, if it must."""
        if self.deadline is not None and now >= self.deadline:
            late = self.phase is WorkerPhase.STARTING
            return "was not ready in time (worker_start_s)" if late else "did not end in time (grace_s)"
        if self.phase is WorkerPhase.READY and self._watch.silent(self.row.get(BEAT), now):
            return f"was silent for more than {self._silence_s:g} s (worker_silence_s)"
        return None

    def kill(self, reason: str) -> None:
        """Ends it at once.

        Args:
            reason: The words after "worker 17".
        """
        self.deadline = None
        self._killed_for = self._killed_for or reason
        if self.exit_code is None:
            self._process.kill()

    @property
    def killed(self) -> bool:
        """Whether it was ended by an external signal, not by one that its own code caused."""
        code = self.exit_code
        return self._killed_for is None and code is not None and code < 0 and -code not in CRASHES

    @property
    def cause(self) -> str:
        """The cause of its end, as the words after "worker 17"."""
        code = self.exit_code
        how = f"ended with exit code {code}" if code is None or code >= 0 else f"was killed by signal {-code}"
        return self.complaint or self._killed_for or how

    def wait(self) -> None:
        """Waits until the killed process has ended."""
        while self.exit_code is None:
            self._process.join()
        for message in self.unread_messages():
            close_all(message.sockets)

    def unread_messages(self) -> list[PipeMessage]:
        """Call it after its death: the messages that it has not read. Another worker can take their sockets."""
        unread: list[PipeMessage] = []
        while self.pipe.full:
            before = len(unread)
            self.pipe.flush()
            unread += self._unread()
            if len(unread) == before:
                break
        unread += self._unread()
        self.pipe.close()
        self._far.close()
        return unread

    def _unread(self) -> list[PipeMessage]:
        return [message for message in iter(self._far.receive, None) if message.sockets]
