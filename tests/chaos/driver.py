"""The suite's hold on a crowd of clients in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from .served import HERE, MARK, PEER_PYTHON, own_environ

__all__ = ["Driver", "Report", "told"]

READY_S = 60.0
END_S = 40.0


class Report:
    """What a crowd has seen.

    Attributes:
        raw: As it was printed; see `crowd.Book`.
    """

    def __init__(self, raw: dict[str, Any]):
        self.raw = raw

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What clients were told instead of an answer."""
        found: list[dict[str, Any]] = self.raw["errors"]
        return found

    @property
    def completed(self) -> int:
        """Episodes that were played to their end."""
        return len(self.raw["completed"])

    @property
    def steps(self) -> int:
        """Steps that were answered."""
        return sum(self.raw["answered"].values())

    @property
    def mixed(self) -> list[str]:
        """Replies that were to another request, or of another environment."""
        found: list[str] = self.raw["mixed"]
        return found

    @property
    def pids(self) -> dict[int, int]:
        """By session: the process that answered it last."""
        return {int(number): pid for number, pid in self.raw["pids"].items()}

    def p99_ms(self, phase: str) -> float:
        """Of the steps in a phase; 0 without any."""
        found = self.raw["latencies"].get(phase)
        return 1000 * found["p99"] if found else 0.0

    def names(self) -> dict[str, int]:
        """How often each error was told, by its class."""
        found: dict[str, int] = {}
        for error in self.errors:
            found[error["error"]] = found.get(error["error"], 0) + 1
        return found


def told(names: Mapping[str, int]) -> str:
    """How often each error was told, to be read."""
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items())) or "nothing"


class Driver:
    """A crowd: started on entering, ready when `ready` returns, and gone on leaving.

    Args:
        system: `ours` or `peer`: whose client it uses.
        url: Of the server, or of the proxy before it.
        folder: For its log.
        plan: Fields of `crowd.Plan`.
    """

    def __init__(self, system: str, url: str, folder: Path, **plan: Any):
        self.plan = plan
        self._log = folder / "crowd.log"
        python = sys.executable if system == "ours" else str(PEER_PYTHON)
        self._command = [python, str(HERE / "crowd.py"), url, json.dumps(plan)]
        self._environ = own_environ(system)
        self._environ[MARK] = f"{os.getpid()}-{folder.name}"
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=HERE,
                env=self._environ,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def ready(self, limit_s: float = READY_S) -> Self:
        """Waits until every session has its first episode."""
        self._next("ready", limit_s)
        return self

    def say(self, command: str) -> None:
        """Gives it a command; see `crowd`."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def dared(self, count: int, limit_s: float) -> bool:
        """Waits until so many dares have ended in an error; whether they have within the limit."""
        end = time.monotonic() + limit_s
        for _ in range(count):
            try:
                self._next("dared", max(0.01, end - time.monotonic()))
            except AssertionError:
                return False
        return True

    def report(self, command: str = "finish", limit_s: float = END_S) -> Report:
        """Tells it to end, and returns what it has seen."""
        if command:
            self.say(command)
        return Report(self._next("report", limit_s))

    def signal(self, number: signal.Signals) -> None:
        """Stops it or lets it go on."""
        os.kill(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):
                self._said.put(json.loads(line))
        self._said.put(None)

    def _next(self, key: str, limit_s: float) -> Any:
        try:
            while (message := self._said.get(timeout=limit_s)) is not None:
                if key in message:
                    return message[key]
        except queue.Empty:
            raise AssertionError(f"the crowd has not said {key!r} within {limit_s:g} s: {self._tail()}") from None
        raise AssertionError(f"the crowd has ended without {key!r}: {self._tail()}")

    def _tail(self) -> str:
        return self._log.read_bytes()[-1500:].decode(errors="replace")
