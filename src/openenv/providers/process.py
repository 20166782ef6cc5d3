"""A server as a process of this machine: start it on a free port, watch it, end it with its children."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .._asyncio import on_thread, shielded, start_task
from .._processes import KILL, signal_group
from ..errors import LaunchFailed
from .redaction import TAIL_LINES, redact, secrets_of

# Requests the parent-death signal (PR_SET_PDEATHSIG), then executes the command. It is a separate program because a
# process with threads must not run Python between fork and exec.
_PARENT_DEATH_SIGNAL = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit("the process that started this one is gone")
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def kill_on_parent_death(command: Sequence[str]) -> list[str]:
    """Wraps a command so that it gets SIGTERM when the thread that started it ends. Unchanged outside Linux."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _PARENT_DEATH_SIGNAL, str(os.getpid()), *command]


# Recently returned ports: their callers may not listen on them yet.
_given: deque[int] = deque(maxlen=256)


def free_port(host: str = "127.0.0.1") -> int:
    """A free TCP port. Another process may take it before it is used, so prefer port 0 where possible."""
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as finder:
            finder.bind((host, 0))
            port: int = finder.getsockname()[1]
            # While the port is bound, no other thread can get it.
            if port not in _given:
                _given.append(port)
                return port


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a TCP port is free now: no process listens on it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as finder:
        finder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            finder.bind((host, port))
        except OSError:
            return False
        return True


KEPT_LINES = 1000
LONGEST_LINE = 2000
# Seconds between SIGTERM and SIGKILL.
GRACE_S = 5.0
# Seconds between two checks of the process during a wait for a log line; and to read the last lines after its end.
GLANCE_S, LAST_WORDS_S = 0.25, 1.0


class Process:
    """One command in its own process group: Ctrl-C at the terminal signals only the program that started it.

    Args:
        command: The command line. No secrets: all users of the machine can read it.
        variables: All of its environment variables; None: those of this process.
        folder: Its working folder; None: the current one.

    Raises:
        LaunchFailed: It could not be started.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None, folder: Path | None = None):
        self._command = list(command)
        self._variables = None if variables is None else dict(variables)
        self._folder = folder
        self._secrets = secrets_of(variables or {})
        self._owner = os.getpid()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._said = threading.Condition()
        self._over = False
        self._ending = threading.Lock()
        self._fault: OSError | ValueError | None = None
        self._child: subprocess.Popen[str] | None = None
        started = threading.Event()
        # The thread that starts it lives as long as it does: the kernel sends the parent-death signal at the end of
        # that thread, not at the end of this process.
        self._keeper = threading.Thread(target=self._keep, args=(started,), name="openenv-process", daemon=True)
        self._keeper.start()
        started.wait()
        if self._fault is not None:
            raise LaunchFailed(f"{self._command[0]} could not be started: {self._fault}") from self._fault
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def end(self) -> str | None:
        """How it ended, phrased to follow "the server". None while it runs."""
        code = None if self._child is None else self._child.poll()
        if code is None:
            return None
        self._keeper.join(LAST_WORDS_S)
        return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    @property
    def tail(self) -> str:
        """The last lines of its log; secrets are masked."""
        return self.log(TAIL_LINES)

    def log(self, lines: int) -> str:
        """The last lines of its log, of the last 1,000 that are kept; secrets are masked."""
        with self._said:
            return redact("\n".join(list(self._lines)[-lines:]), self._secrets)

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str] | None:
        """Waits for a line of its log; None if it did not come in time, or the process has ended."""
        found: re.Match[str] | None = None
        limit = time.monotonic() + timeout_s

        def matches() -> bool:
            nonlocal found
            found = next(filter(None, (re.search(pattern, line) for line in self._lines)), None)
            return found is not None or self._over

        with self._said:
            while not self._said.wait_for(matches, min(GLANCE_S, limit - time.monotonic())):
                if self._child is not None and self._child.poll() is not None:
                    # Processes that it has started may keep its log open.
                    self._said.wait_for(matches, LAST_WORDS_S)
                    break
                if time.monotonic() >= limit:
                    break
        return found

    def wait(self) -> None:
        """Waits until it has ended; its children may still run."""
        assert self._child is not None
        self._child.wait()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ends its process group: SIGTERM, and SIGKILL after `grace_s`. May be called repeatedly."""
        if os.getpid() != self._owner or self._child is None:
            return  # a fork: the process belongs to the parent
        with self._ending:
            self._signal(signal.SIGTERM)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(grace_s)
            finally:
                self._signal(KILL)
                self._child.wait()
        self._keeper.join(1.0)
        atexit.unregister(self.stop)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal_group(self.pid, number)

    def _keep(self, started: threading.Event) -> None:
        try:
            self._child = child = subprocess.Popen(  # noqa: S603 - what the provider was made for
                kill_on_parent_death(self._command),
                env=self._variables,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError for invalid variables
            self._fault = error
            return
        finally:
            started.set()
        assert child.stdout is not None
        with child.stdout as log:
            while line := log.readline(LONGEST_LINE):
                with self._said:
                    self._lines.append(line.rstrip())
                    self._said.notify_all()
        child.wait()
        with self._said:
            self._over = True
            self._said.notify_all()


class ProcessStart:
    """A process, from before its start until after its end."""

    def __init__(self) -> None:
        self._starting: asyncio.Future[Process] | None = None

    @property
    def process(self) -> Process | None:
        """The process, once there is one."""
        starting = self._starting
        return starting.result() if starting is not None and starting.done() and not starting.exception() else None

    async def start(self, make: Callable[[], Process]) -> Process:
        """Starts it on a thread. A cancelled caller does not cancel the start: `stop` waits for it."""
        self._starting = start_task(on_thread(make))
        return await shielded(self._starting)

    async def stop(self) -> None:
        """Ends it, also during its start. May be called repeatedly."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self.process is not None:
            await on_thread(self.process.stop)
