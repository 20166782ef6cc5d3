"""Servers of this suite's environment, ours and the released peer's, as processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from openenv.bench.machine import process_tree, resident_bytes

__all__ = ["HERE", "MARK", "PEER_PYTHON", "Served", "end_marked", "holds", "marked", "own_environ"]

HERE = Path(__file__).resolve().parent
PEER_PYTHON = HERE.parents[1] / ".venv-peer/bin/python"
READY_S = 30.0
STOP_S = 10.0
# What a server has for ending in order, where how it ends is not what is looked at.
END_S = 1.0
LOOK_S = 0.02
# In the environment of every process that a trial starts: what carries it is ours to end, whoever its parent is.
MARK = "OPENENV_CHAOS"


class Served:
    """A server: started on entering, ready then, and gone on leaving, with all that it has started.

    Args:
        system: `ours` or `peer`.
        form: Which of the environment's apps.
        folder: Of this trial: ledger and log are there.
        workers: Worker processes.
        sessions: How many at one time.
        settings: Of our server, by environment variable.
        options: Of the peer's server, which is uvicorn.
    """

    def __init__(
        self,
        system: str,
        form: str,
        folder: Path,
        workers: int = 1,
        sessions: int = 20_000,
        settings: Mapping[str, Any] | None = None,
        options: tuple[str, ...] = (),
    ):
        self.system = system
        self.workers = workers
        self.ledger_path = folder / "ledger"
        self.ledger_path.touch()
        self.port = free_port()
        self._log = folder / "server.log"
        self._mark = f"{os.getpid()}-{folder.name}"
        if system == "ours":
            command = [sys.executable, "-m", "openenv", "serve", f"environment:app_{form}"]
        else:
            command = [str(PEER_PYTHON), "-m", "uvicorn", f"environment:app_{form}", "--log-level", "warning"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", str(workers), *options]
        self._command = command
        self._environ = {
            **own_environ(system),
            "MAX_CONCURRENT_ENVS": str(sessions),
            "CHAOS_LEDGER": str(self.ledger_path),
            MARK: self._mark,
            **{name: str(value) for name, value in (settings or {}).items()},
        }

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            # A group of its own: signals for the suite are not for the server.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=HERE,
                env=self._environ,
                start_new_session=True,
            )
        try:
            wait_until(self._is_up, READY_S, lambda: f"the server is not ready: {self.tail()}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that was started: the parent, where there are workers."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """All its processes; none if it has ended."""
        return [] if self.exit_code is not None else process_tree([self.pid])

    def worker_pids(self) -> list[int]:
        """Its worker processes: those that answer."""
        return self.children() if self.workers > 1 else [self.pid]

    def children(self) -> list[int]:
        """Processes directly below the parent that serve: of uvicorn's, not the one that tracks resources."""
        found = []
        for pid in self.pids():
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if int(stat[1]) == self.pid and b"resource_tracker" not in line and stat[0] != "Z":
                    found.append(pid)
        return found

    def marked(self) -> list[int]:
        """Processes that this server has started, also those that are its children no more."""
        return marked(self._mark)

    def resident_bytes(self) -> int:
        """Memory of the parent and its workers, but not of the processes of sessions."""
        return resident_bytes({self.pid, *self.worker_pids()})

    def descriptors(self) -> int:
        """Open files of the parent and its workers."""
        return sum(_count(f"/proc/{pid}/fd") for pid in {self.pid, *self.worker_pids()})

    def threads(self) -> int:
        """Threads of the parent and its workers."""
        return sum(_count(f"/proc/{pid}/task") for pid in {self.pid, *self.worker_pids()})

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: Any = None) -> Any:
        """What a route answers: its status and its body.

        Raises:
            OSError: Nobody is there.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            encoded = None if body is None else json.dumps(body)
            connection.request(method, path, encoded, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def tell(self, number: signal.Signals, pid: int | None = None) -> None:
        """Sends a signal to the parent or to one of its own processes."""
        if pid is not None and pid not in self.marked():
            raise ValueError(f"{pid} is no process of this server")
        os.kill(self.pid if pid is None else pid, number)

    def wait(self, limit_s: float) -> int:
        """Waits for its end. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(limit_s)

    def tail(self, size: int = 1500) -> str:
        """The end of what it has printed."""
        return self._log.read_bytes()[-size:].decode(errors="replace")

    def close(self) -> None:
        """Ends it and all that it has started, whoever its parent is now."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_marked(self._mark)

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with code {self._process.returncode}: {self.tail()}")
        if self.workers > 1 and len(self.children()) < self.workers:
            return False
        with suppress(OSError, http.client.HTTPException):
            return bool(self.get("/health")[0] == 200)
        return False


def wait_until(condition: Callable[[], Any], limit_s: float, complaint: Callable[[], str]) -> float:
    """Waits for what sets no event here, as what other processes do. Returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise AssertionError(complaint())
        time.sleep(LOOK_S)
    return time.monotonic() - began


def holds(condition: Callable[[], Any], limit_s: float) -> float | None:
    """Seconds until a condition holds; None if it does not within the limit."""
    try:
        return wait_until(condition, limit_s, str)
    except AssertionError:
        return None


def marked(mark: str) -> list[int]:
    """Processes whose environment has a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0") and _lives(entry):
                    found.append(int(entry.name))
    return found


def end_marked(mark: str) -> int:
    """Kills what carries a mark, until nothing does. Returns how many there were."""
    count = 0
    limit = time.monotonic() + STOP_S
    while (pids := marked(mark)) and time.monotonic() < limit:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                count += 1
        time.sleep(LOOK_S)
    return count


def own_environ(system: str) -> dict[str, str]:
    """This process's environment without settings of anybody, and for the peer without paths to our packages."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OPENENV") and (system == "ours" or name != "PYTHONPATH")
    }


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _lives(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _count(folder: str) -> int:
    with suppress(OSError):
        return sum(1 for _ in Path(folder).iterdir())
    return 0
