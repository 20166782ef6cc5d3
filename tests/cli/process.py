"""`openenv serve`, and other commands with a server, as a process of its own: a fork of one that has imported it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..warm import WarmProcess, WarmPython

__all__ = ["END_S", "LIMIT_S", "Serving", "running", "serving"]

# Starting an interpreter on a busy machine.
LIMIT_S = 30.0
# Ending one: a server gives its connections five seconds. A step that never ends takes longer.
END_S = 25.0


class Command:
    """An `openenv` command that runs, with the methods of `subprocess.Popen` that are needed here.

    Attributes:
        stderr: What it prints there.
    """

    def __init__(self, *arguments: str, folder: Path | None, variables: dict[str, str]):
        reading, writing = os.pipe()
        silence = os.open(os.devnull, os.O_WRONLY)
        try:
            self._process: WarmProcess = _warm().run(
                "openenv.cli:main",
                *arguments,
                descriptors={1: silence, 2: writing},
                environment={**os.environ, **variables},
                folder=folder,
            )
        finally:
            os.close(silence)
            os.close(writing)
        self.stderr: IO[str] = os.fdopen(reading, encoding="utf-8", errors="replace")
        self.pid = self._process.pid
        self.kill = self._process.kill
        self.wait = self._process.wait

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Waits for its end. Returns what else it printed. Raises TimeoutExpired."""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append("" if self.stderr.closed else self.stderr.read()))
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired("openenv", timeout or 0.0)
        self.stderr.close()
        self._process.wait(timeout)
        return None, said[0]


@functools.cache
def _warm() -> WarmPython:
    warm = WarmPython("openenv.cli.serve", "openenv.server.app", "openenv.server.workers.supervisor")
    atexit.register(warm.__exit__)
    return warm


class Serving:
    """A server that runs.

    Attributes:
        announcement: The first line that it printed.
        url: Its address, as it says itself.
    """

    def __init__(self, process: Any):
        self._process = process
        guard = threading.Timer(LIMIT_S, process.kill)
        guard.start()
        self.announcement = process.stderr.readline()
        guard.cancel()
        found = re.search(r"https?://\S+", self.announcement)
        if found is None:
            process.kill()
            raise AssertionError(self.announcement + process.communicate()[1])
        self.url = found[0]

    def line(self) -> str:
        """The next line that it printed."""
        guard = threading.Timer(LIMIT_S, self._process.kill)
        guard.start()
        line = self._process.stderr.readline()
        guard.cancel()
        return line

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> Any:
        """What a route answers."""
        with urllib.request.urlopen(self.url + path, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def end(self, number: int, group: bool = False) -> tuple[int, str]:
        """Sends a signal, to the whole process group as a terminal does if asked to.

        Returns:
            The exit code, and what else was printed.
        """
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)
        _, complaints = self._process.communicate(timeout=END_S)
        return self._process.returncode, complaints

    def group(self) -> list[int]:
        """Processes of its group that live; what was told to end has a moment to do so."""
        limit = time.monotonic() + LIMIT_S / 3
        while self._process.returncode is not None and time.monotonic() < limit and _members(self.pid):
            time.sleep(0.02)
        return _members(self.pid)


def _members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, leader = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z" and int(leader) == group:
                found.append(int(entry.name))
    return found


@contextmanager
def serving(*arguments: str, cwd: Path | None = None, **variables: str) -> Iterator[Serving]:
    """Runs `openenv serve ARGUMENTS --port 0`, and kills what is left of it in the end."""
    port = [] if "PORT" in variables or "--port" in arguments else ["--port", "0"]
    with running("serve", *arguments, *port, cwd=cwd, **variables) as server:
        yield server


@contextmanager
def running(*arguments: str, cwd: Path | None = None, **variables: str) -> Iterator[Serving]:
    """Runs an `openenv` command that prints the address of its server, and kills what is left of it in the end."""
    process: Any
    if any(name.startswith("PYTHON") for name in variables):  # the interpreter reads these when it starts
        process = subprocess.Popen(
            [sys.executable, "-m", "openenv", *arguments],
            cwd=cwd,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    else:
        process = Command(*arguments, folder=cwd, variables=variables)
    try:
        yield Serving(process)
    finally:
        for pid in _members(process.pid):
            with suppress(ProcessLookupError):  # it ended with one that was killed before
                os.kill(pid, signal.SIGKILL)
        process.communicate()
