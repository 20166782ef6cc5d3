"""Session processes without a fork server, off Linux: each is a new Python that imports the environment."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ..._asyncio import on_thread
from ..._processes import KILL, signal_group
from ..._sockets import from_ticket, inheritable, ticket_of
from ...settings import environ_of_environments
from . import messages
from .child import SessionProcess

if TYPE_CHECKING:
    from .pool import Orders, ProcessPool

_BOOT = (
    "import json, sys; plan = sys.stdin.buffer; sys.path[:] = json.loads(plan.readline()); "
    "from openenv.runtime.process.spawn import main; main(plan)"
)
TAIL_BYTES = 4096
# The exit code of a process that could not import its environment.
NOT_IMPORTED = 70
# Seconds that the last lines of stderr may take after the end of the process: another process may hold it open.
LAST_WORDS_S = 1.0
LEAVE_S = 10.0


class ProcessSpawner:
    """Starts and ends session processes, in the place of a `ForkServerProcess`. Each takes as long as its imports.

    Args:
        plan: The environment and the limits.
        orders: Messages to it. Call `flush` after adding one.
        pool: Receives its messages.
    """

    def __init__(self, plan: messages.ForkServerPlan, orders: Orders, pool: ProcessPool):
        self._loop = asyncio.get_running_loop()
        self._plan = plan
        self._orders = orders
        self._pool = pool
        self.started_at = self._loop.time()
        self.pid = os.getpid()
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def flush(self) -> None:
        """Follows the waiting messages."""
        while self._orders:
            message, passed = self._orders.popleft()
            verb, session_id, *rest = msgspec.msgpack.decode(message)
            if verb == messages.FORK and isinstance(passed, socket.socket):
                self._start(session_id, passed)
            elif verb == messages.END and session_id in self._children:
                (grace_s,) = rest
                self._end(session_id, signal.SIGTERM if grace_s else KILL)
                if grace_s:
                    self._loop.call_later(grace_s, self._end, session_id, KILL)
            if isinstance(passed, socket.socket | FileIO):
                passed.close()

    def close(self) -> None:
        """Ends every process."""
        for session_id in self._children:
            self._end(session_id, KILL)

    async def ended(self) -> None:
        """Waits until they have ended."""
        await on_thread(self.wait)

    def wait(self) -> None:
        """Like `ended`, without an event loop."""
        for child in list(self._children.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LEAVE_S)

    def is_there(self) -> bool:
        """Whether a process runs."""
        return any(child.poll() is None for child in self._children.values())

    def _start(self, session_id: int, connection: socket.socket) -> None:
        try:
            child = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environ_of_environments(),
                pass_fds=inheritable(connection),
                start_new_session=True,  # a Ctrl-C at the terminal is for the server
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            )
            plan = pickle.dumps((self._plan, str(Path.cwd()), ticket_of(connection, child.pid)))
            assert child.stdin is not None
            child.stdin.write(json.dumps(sys.path).encode() + b"\n" + plan)
            child.stdin.flush()  # it stays open: its end tells the process that the server has ended
        except OSError as error:
            report = [messages.EXITED, session_id, 1 << 8, str(error).encode(), messages.UNFORKED]
            self._loop.call_soon(self._report, report)
            return
        self._children[session_id] = child
        threading.Thread(target=self._watch, args=(session_id, child), name="openenv-session", daemon=True).start()

    def _end(self, session_id: int, number: int) -> None:
        child = self._children.get(session_id)
        if child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal_group(child.pid, number)

    def _watch(self, session_id: int, child: subprocess.Popen[bytes]) -> None:
        """On a thread: reads what the process prints, and reports its end."""
        tail = b""

        def read() -> None:
            nonlocal tail
            assert child.stderr is not None
            with child.stderr as stderr:
                while data := os.read(stderr.fileno(), messages.CHUNK_BYTES):
                    tail = (tail + data)[-TAIL_BYTES:]

        reading = threading.Thread(target=read, name="openenv-session-stderr", daemon=True)
        reading.start()
        code = child.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal_group(child.pid, KILL)  # processes that it has started
        reading.join(LAST_WORDS_S)
        assert child.stdin is not None
        child.stdin.close()
        reason = ""
        if code == NOT_IMPORTED:
            reason, tail = f"importing the environment failed: {tail.decode(errors='replace')}", b""
        status = code << 8 if code >= 0 else -code
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._report, [messages.EXITED, session_id, status, tail, reason])

    def _report(self, message: list[Any]) -> None:
        verb, session_id, *facts = message
        self._children.pop(session_id, None)
        self._pool.on_message(verb, session_id, facts)


def main(plan: BinaryIO) -> None:
    """Runs a session process, which ends with its server.

    Args:
        plan: The `ForkServerPlan`, the working directory and the ticket of the connection, pickled. Its end is the
            end of the server.
    """
    described, cwd, ticket = pickle.load(plan)  # noqa: S301 - the server's own
    connection = from_ticket(ticket)
    held = os.dup(0)

    def exit_with_server() -> None:
        while os.read(held, messages.CHUNK_BYTES):
            pass
        os._exit(1)

    threading.Thread(target=exit_with_server, name="openenv-orphan", daemon=True).start()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    faulthandler.enable()  # prints a traceback if the process crashes
    try:
        os.chdir(cwd)
        factory = pickle.loads(described.factory)  # noqa: S301
    except BaseException:  # noqa: BLE001 - the environment's module is foreign code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(NOT_IMPORTED)
    described.limits.apply()
    SessionProcess(connection, factory).run()
    os._exit(0)
