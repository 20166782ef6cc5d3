"""A server of several workers, an environment that tells where it runs, and callers in numbers."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...cli.projects import write_module

__all__ = ["Caller", "eventually", "open_files", "opened", "whereabouts", "workers_of"]

# Until something that should happen soon has not happened.
PATIENCE_S = 30.0

MODULE = """
import os
import time
from pathlib import Path

from openenv import Action, Environment, Observation, State

VERSION = 1


class Errand(Action):
    gate: str = ""  # a file to wait for, after making the same with `.reached`


class Whereabouts(Observation):
    pid: int
    version: int = VERSION


class Place(Environment[Errand, Whereabouts, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "EXECUTION"

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Whereabouts(pid=os.getpid())

    def step(self, action, timeout_s=None, **kwargs):
        if action.gate:
            Path(action.gate + ".reached").touch()
            limit = time.monotonic() + 30
            while not Path(action.gate).exists() and time.monotonic() < limit:
                time.sleep(0.005)
        return Whereabouts(pid=os.getpid(), reward=1.0)

    @property
    def state(self):
        return State()
"""


def whereabouts(folder: Path, execution: str = "thread") -> str:
    """Writes the environment; returns it as a target."""
    write_module(folder / "whereabouts.py", MODULE.replace("EXECUTION", execution))
    return "whereabouts:Place"


def eventually(condition: Callable[[], Any]) -> Any:
    """What a condition gives as soon as it holds."""
    limit = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.01)
    return found


def workers_of(pid: int) -> list[int]:
    """The worker processes of a server."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def opened(pid: int) -> set[tuple[str, str]]:
    """The same by number and what is behind it: garbage and threads of other tests may close theirs at any time."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            found.add((entry.name, str(entry.readlink())))
    return found


class Caller:
    """A v1 client on a bare socket. It waits for nothing before something is heard, so many can be made at once.

    Args:
        url: Of the server.
        query: What follows the `?` of the URL.
        subprotocol: Offered to the server, if not empty.
        reset: Whether it asks for an episode at once.
    """

    def __init__(self, url: str, query: str = "", subprotocol: str = "", reset: bool = True):
        host, port = re.fullmatch(r"http://(.+):(\d+)", url).groups()
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        nonce = base64.b64encode(os.urandom(16)).decode()
        offer = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
        request = (
            f"GET /ws{'?' * bool(query)}{query} HTTP/1.1\r\nHost: localhost\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n{offer}\r\n"
        )
        try:
            self._socket.sendall(request.encode())
        except OSError:
            self._socket.close()
            raise
        self._reader = self._socket.makefile("rb")
        # To be said as soon as the server has agreed to speak WebSocket.
        self._unsaid: list[Any] | None = [{"type": "reset"}] if reset else []

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def say(self, message: Any) -> None:
        if self._unsaid is not None:
            self._unsaid.append(message)
            return
        payload = json.dumps(message).encode()
        length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
        self._socket.sendall(b"\x81" + length + bytes(4) + payload)

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when the server has hung up, in whatever way."""
        try:
            if self._unsaid is not None and not self._agreed():
                return None
            while True:
                head = self._reader.read(2)
                if len(head) < 2 or head[0] & 15 == 8:
                    return None
                size = head[1]
                if size >= 126:
                    kind, count = (">H", 2) if size == 126 else (">Q", 8)
                    (size,) = struct.unpack(kind, self._reader.read(count))
                payload = self._reader.read(size)
                if head[0] & 15 == 1:
                    return json.loads(payload)
        except ConnectionError:
            return None

    def _agreed(self) -> bool:
        status = self._reader.readline()
        assert not status or b" 101 " in status, status
        while self._reader.readline().strip():
            pass
        unsaid, self._unsaid = self._unsaid, None
        for message in unsaid or ():
            self.say(message)
        return bool(status)

    def pid(self) -> int:
        """The process that its environment runs in, from the reply that comes next."""
        reply = self.hear()
        assert reply is not None, "the server hung up"
        assert reply["type"] == "observation", reply
        return reply["data"]["observation"]["pid"]

    def step(self, **action: Any) -> None:
        self.say({"type": "step", "data": action})

    def hang_up(self) -> None:
        self._reader.close()
        self._socket.close()
