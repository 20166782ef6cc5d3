"""Programs that a cluster consists of: started, frozen, ended, each with a log of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Program", "tail", "until"]

END_S = 10.0
PAUSE_S = 0.1
TAIL = 4000


class Program:
    """One program. Ends with the thread that starts it, even if that is killed: start it on the main thread.

    Args:
        command: What to run.
        log: The file for what it says; added to when it is started again.
        variables: Its environment variables; None: those of this process.
    """

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None):
        self._command = ["setpriv", "--pdeathsig", "KILL", *command]
        self._log = log
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def tail(self) -> str:
        """The end of its log."""
        return tail(self._log)

    def start(self) -> None:
        """Starts it, and does not wait for anything."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._variables
            )

    def end(self, with_signal: int = signal.SIGTERM) -> None:
        """Has it end, by force if it does not in time. May be called repeatedly."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raises `AssertionError` if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self._log.stem} ended with {self._process.returncode}: {self.tail}")


def tail(log: Path) -> str:
    """The end of a log; empty where there is none."""
    return log.read_text(errors="replace")[-TAIL:] if log.exists() else ""


def until(holds: Callable[[], object], limit_s: float, what: str) -> None:
    """Waits for something to hold.

    Raises:
        AssertionError: It does not within `limit_s` seconds; with `what`.
    """
    limit = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < limit, f"{what} within {limit_s:g} s"
        time.sleep(PAUSE_S)
