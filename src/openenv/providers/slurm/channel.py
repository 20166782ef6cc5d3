"""How a deployment and its tasks exchange variables, notices and logs: a shared folder, or TCP connections."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from ..._asyncio import on_thread, run_to_completion
from ...errors import LaunchFailed
from ..redaction import last_lines, secrets_of
from .job import TaskNotice, newest
from .task import SECRETS, TOKEN, VARIABLES, proof

# Minimum of seconds between two reads of a folder.
GLANCE_S = 0.1
# Bytes of the end of a log that are read.
TAIL_BYTES = 256 * 1024
# Limits of a connection: seconds until its report is read, and bytes of a line.
PATIENCE_S, LONGEST = 10.0, 1 << 20
# Tasks that start together connect together.
BACKLOG = 1024
_LABELS = "labels.json"


class FolderChannel:
    """A folder on a file system that this machine and all nodes share. Only its owner has access.

    Args:
        parent: The folder in which it is created.
        name: Its name.

    Attributes:
        folder: The folder.
        plan: The channel's part of the plan that tasks get.
        output: Where Slurm writes their logs, as a filename pattern of `sbatch`.
        environ: Environment variables of the jobs themselves.
        used: Whether a submitted job may use it.
    """

    environ: Mapping[str, str] = {}
    used = False

    def __init__(self, parent: Path, name: str):
        self.folder = parent / name
        self.plan = {"folder": str(self.folder)}
        self.output = str(self.folder / "log" / "%A_%a.log")
        self._notices: Mapping[str, TaskNotice] = {}
        self._next = float("-inf")

    async def open(self, variables: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Creates it, with the variables of the servers. Raises `LaunchFailed` if that fails."""
        try:
            # Run to completion, so that `close` removes all that was created.
            await run_to_completion(on_thread(lambda: self._make(variables, labels)))
        except OSError as error:
            raise LaunchFailed(
                f"{self.folder} cannot be created: {error.strerror}; set shared_folder to a writable folder that all "
                'nodes share, or announce="connect"'
            ) from error

    async def notices(self) -> Mapping[str, TaskNotice]:
        """The newest notice of each task."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next:
            began = loop.time()
            self._next = float("inf")
            try:
                self._notices = await on_thread(self._look)
            finally:
                # Spend at most a fifth of the time on reading: the file server may be slow.
                self._next = loop.time() + max(GLANCE_S, 4 * (loop.time() - began))
        return self._notices

    async def log(self, task: str, lines: int) -> str:
        """The last lines of a task's log."""

        def tail() -> str:
            try:
                with (self.folder / "log" / f"{task}.log").open("rb") as log:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                    return last_lines(log.read().decode(errors="replace"), lines)
            except OSError:
                return ""

        return await on_thread(tail)

    async def close(self) -> None:
        """Removes it. May be called repeatedly."""
        await on_thread(lambda: shutil.rmtree(self.folder, ignore_errors=True))

    def _make(self, variables: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        for part in ("log", "notices"):
            (self.folder / part).mkdir(mode=0o700)
        # The labels come first, so that an incomplete folder can be found and removed.
        for name, content in ((_LABELS, labels), ("variables.json", variables)):
            target = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(target, "w", encoding="utf-8") as file:
                json.dump(dict(content), file)

    def _look(self) -> dict[str, TaskNotice]:
        found = []
        with suppress(FileNotFoundError):
            for path in (self.folder / "notices").iterdir():
                if not path.name.startswith("."):
                    with suppress(OSError, UnicodeDecodeError):  # a notice that is being replaced
                        found.append(TaskNotice.read(path.read_text(encoding="utf-8")))
        return newest(notice for notice in found if notice is not None)


def labels_of(folder: Path) -> dict[str, str] | None:
    """The labels of the deployment that a folder belongs to; None for any other folder."""
    try:
        labels = json.loads((folder / _LABELS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return labels if isinstance(labels, dict) else None


class ListenerChannel:
    """Receives reports of tasks over TCP. Each report proves knowledge of a token, which is not sent.

    Args:
        port: Port to listen on, at all addresses of this machine; 0 takes a free one.

    Attributes:
        folder: None: it has no folder.
        plan, environ: As those of `FolderChannel`, once it is open.
        output, used: As those of `FolderChannel`.
    """

    plan: Mapping[str, int]
    environ: Mapping[str, str]
    folder = None
    used = False

    def __init__(self, port: int):
        self._port = port
        self._token = secrets.token_urlsafe(24)
        self._notices: dict[str, TaskNotice] = {}
        self._server: asyncio.Server | None = None
        self.output = "/dev/null"

    async def open(self, variables: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Starts to listen. Raises `LaunchFailed` if that fails."""
        try:
            # One port for both address families: nodes get one number.
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            listener = socket.create_server(("", self._port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
            self._server = await asyncio.start_server(self._hear, sock=listener, limit=LONGEST)
        except OSError as error:
            raise LaunchFailed(f"cannot listen on port {self._port} (listen_port): {error.strerror}") from error
        self.plan = {"listener": self._server.sockets[0].getsockname()[1]}
        given = {VARIABLES: dict(variables), SECRETS: secrets_of(variables)}
        self.environ = {name: json.dumps(value) for name, value in given.items()} | {TOKEN: self._token}

    async def notices(self) -> Mapping[str, TaskNotice]:
        """The newest notice of each task."""
        return self._notices

    async def log(self, task: str, lines: int) -> str:
        """The last lines of a task's log."""
        notice = self._notices.get(task)
        return "" if notice is None else "\n".join(notice.log[-lines:])

    async def close(self) -> None:
        """Closes it. May be called repeatedly."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_hex(16)
        with closing(writer), suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                writer.write(f"{challenge}\n".encode())
                mac, _, said = (await reader.readline()).decode().rstrip("\n").partition(" ")
                notice, expected = TaskNotice.read(said), proof(self._token, challenge, said)
                if notice is not None and hmac.compare_digest(mac.encode(), expected.encode()):
                    known = self._notices.get(notice.task, notice)
                    self._notices |= newest((known, notice))
                    writer.write(b"heard\n")
                    await writer.drain()


TaskChannel = FolderChannel | ListenerChannel
"""Hands variables to tasks, and takes their notices and logs."""
