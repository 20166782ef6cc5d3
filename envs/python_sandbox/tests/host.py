"""Targets of the attempts on the host: a secret, a variable, services, a process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "Host", "descendants"]

VARIABLE = "OPENENV_PYTHON_SANDBOX_SECRET"
TASKS = Path(__file__).parent.parent / "server" / "tasks.py"


class Host:
    """Files, memory and echo services of the host. The services record each connection.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path):
        self.token = uuid.uuid4().hex
        self.escaped = f"got-out-{self.token}"
        self.secret = folder / "secret"
        self.secret.write_text(self.escaped)
        self.marked = folder / "marked"
        self.marked.mkdir()
        self.beside = folder / "beside"
        self.shared = Path("/dev/shm", f"{self.token}-host")
        self.shared.write_text(self.escaped)
        self._segment = _shared(self.escaped)
        self.visits: list[str] = []
        self._folder = folder
        self._sockets = {
            "tcp": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "unix")),
            "abstract": _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.token}"),
        }
        for name, listener in self._sockets.items():
            threading.Thread(target=self._echo, args=(name, listener), daemon=True).start()

    @contextlib.contextmanager
    def victim(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process that does nothing, as a target of signals."""
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def facts(self, pid: int) -> dict[str, Any]:
        """Facts that an attempt may know."""
        return {
            "secret_file": str(self.secret),
            "folder": str(self.marked),
            "beside": str(self.beside),
            "variable": VARIABLE,
            "tests_file": str(TASKS),
            "tcp": self._sockets["tcp"].getsockname()[1],
            "udp": self._sockets["udp"].getsockname()[1],
            "unix": str(self._folder / "unix"),
            "abstract": self.token,
            "token": self.token,
            "segment": self._segment,
            "pid": pid,
        }

    def before(self, pid: int) -> str:
        """Code in front of an attempt: the facts, and the text that it prints when it has succeeded."""
        facts = json.dumps(self.facts(pid))
        return f"import json\nHOST = json.loads({facts!r})\nESCAPED = 'got-' + 'out-' + HOST['token']\n"

    def traces(self) -> list[str]:
        """Files and connections since the last call."""
        found = [*self.visits, *(str(path) for path in self.marked.iterdir())]
        if self.beside.exists():
            found.append(str(self.beside))
        self.clean()
        return found

    def clean(self) -> None:
        self.visits.clear()
        for path in (*self.marked.iterdir(), self.beside):
            path.unlink(missing_ok=True)
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            Path(folder, self.token).unlink(missing_ok=True)

    def close(self) -> None:
        self.clean()
        self.shared.unlink()
        ctypes.CDLL(None).shmctl(self._segment, 0, None)
        for listener in self._sockets.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _echo(self, name: str, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                if listener.type == socket.SOCK_DGRAM:
                    data, address = listener.recvfrom(100)
                    if not data:
                        return
                    self.visits.append(name)
                    listener.sendto(data, address)
                else:
                    talk, _ = listener.accept()
                    self.visits.append(name)
                    with talk, contextlib.suppress(OSError):
                        talk.sendall(talk.recv(100))


def descendants(word: str) -> list[int]:
    """Processes that descend from this one and have the word in their command line."""
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _shared(text: str) -> int:
    """The id of a shared memory segment that every user of this machine may read."""
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    number: int = libc.shmget(0, 4096, 0o1666)
    at = ctypes.c_void_p(libc.shmat(number, None, 0))
    ctypes.memmove(at, text.encode(), len(text))
    libc.shmdt(at)
    return number


def _bound(family: int, kind: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener
