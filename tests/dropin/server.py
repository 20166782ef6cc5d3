"""A server of one package, as a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from tests.chaos.served import MARK, end_marked, wait_until
from tests.ports import held_port

from .installation import Installation

__all__ = ["PACKAGE_WAYS", "WAYS", "Server"]

READY_S = 180.0
STOP_S = 15.0
# How people start servers: by our command, by the folder of their project, and by any ASGI server.
WAYS = {
    "serve": ["-m", "openenv", "serve", "{name}.server.app:app", "--workers", "4"],
    "folder": ["-m", "openenv", "serve", "{folder}/{name}"],
    "uvicorn": ["-m", "uvicorn", "{name}.server.app:app", "--log-level", "warning"],
    "app": ["-m", "uvicorn", "{name}", "--log-level", "warning"],
}
# Those in which every package is served.
PACKAGE_WAYS = ("serve", "folder", "uvicorn")


class Server:
    """Ready on entering; gone on leaving, with all that it has started.

    Args:
        installation: Whose Python it runs.
        target: The package, or whatever stands for `{name}`.
        way: One of `WAYS`.
        folder: Where its log goes.
        environ: Settings.
        options: Further words of its command line.
    """

    def __init__(
        self,
        installation: Installation,
        target: str,
        way: str,
        folder: Path,
        environ: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ):
        self._holding = ExitStack()  # of its port, from here to its end
        self.port = self._holding.enter_context(held_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self._installation = installation
        self._log = folder / f"{target}-{way}-{self.port}.log"
        self._mark = f"{os.getpid()}-{self._log.name}"
        words = [word.format(name=target, folder=installation.folder) for word in WAYS[way]]
        self._command = [*words, "--host", "127.0.0.1", "--port", str(self.port), *options]
        self._environ = {**installation.full_environ, **(environ or {}), MARK: self._mark}

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # Nothing is to import in that folder: packages come from where they are installed.
            self._process = self._installation.start(
                *self._command, cwd=self._log.parent, said=log, errors=log, environ=self._environ
            )
        try:
            wait_until(self._is_healthy, READY_S, lambda: f"the server is not ready: {self.log[-2000:]}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        """All it has printed."""
        return self._log.read_text(errors="replace")

    def get(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
        """What a route answers: its status and its JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {
                "content-type": "application/json",
                **{key.replace("_", "-"): value for key, value in headers.items()},
            }
            verb = method or ("GET" if body is None else "POST")
            connection.request(verb, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None
        finally:
            connection.close()

    def close(self) -> None:
        """Ends it in order, and then whatever is left of it."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_marked(self._mark)
        self._holding.close()

    def _is_healthy(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with {self._process.returncode}: {self.log[-3000:]}")
        with suppress(OSError, http.client.HTTPException, ValueError):
            status, answer = self.get("/health")
            return status == 200 and answer["status"] == "healthy"
        return False
