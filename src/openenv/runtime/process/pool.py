"""Session processes of one environment class: starts the fork server, keeps processes ready, hands them out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from ..._backoff import Backoff
from ..._shared_memory import memory_file
from ..._sockets import can_pass_sockets, message_pair, send_with_descriptors
from ...settings import ServerSettings, environ_of_environments
from . import messages, sandbox
from .handle import ProcessExit, ProcessHandle, ProcessListener
from .sandbox import ProcessLimits
from .spawn import ProcessSpawner

# The fork server gets the import path of this process, which includes this package.
_BOOT = (
    "import json, os, sys; plan = os.fdopen(int(sys.argv[2]), 'rb'); sys.path[:] = json.loads(plan.readline()); "
    "from openenv.runtime.process.fork_server import main; main(int(sys.argv[1]), plan)"
)
# The kernel limits the descriptors in flight: seconds before the next ones are sent.
CROWDED_S = 0.01
# Seconds after which a fork server that must end is killed.
LEAVE_S = 10.0

Orders = deque[tuple[bytes, socket.socket | FileIO | None]]
"""A message to send, with its socket or pipe."""


class ForkServerProcess:
    """A fresh process that imports the environment and forks the processes of sessions.

    Args:
        plan: Its plan.
        orders: The messages to send. Call `flush` after adding one.
        pool: Receives its messages.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, plan: messages.ForkServerPlan, orders: Orders, pool: ProcessPool):
        self._loop = asyncio.get_running_loop()
        self._orders = orders
        self._pool = pool
        self.started_at = self._loop.time()
        self._control, theirs = message_pair()
        self._control.setblocking(False)
        plan_file = memory_file("openenv-plan")
        try:
            os.write(plan_file, json.dumps(sys.path).encode() + b"\n" + pickle.dumps((plan, str(Path.cwd()))))
            os.lseek(plan_file, 0, os.SEEK_SET)
            boot = [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(plan_file)]
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                sandbox.command(plan.sandbox, boot),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environ_of_environments() | ({} if plan.sandbox == "none" else sandbox.VARIABLES),
                pass_fds=(theirs.fileno(), plan_file),
                start_new_session=True,  # a Ctrl-C at the terminal is for the server
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
            os.close(plan_file)
        self._loop.add_reader(self._control, self._readable)

    @property
    def pid(self) -> int:
        """Its process id, or that of its sandbox."""
        return self._process.pid

    def flush(self) -> None:
        """Sends the waiting messages."""
        control, orders = self._control, self._orders
        if control.fileno() < 0:
            return
        while orders:
            message, passed = orders[0]
            try:
                send_with_descriptors(control, message, [] if passed is None else [passed.fileno()])
            except BlockingIOError:
                self._loop.add_writer(control, self.flush)
                return
            except OSError as error:  # otherwise it has ended, which `_readable` notices
                if error.errno in {errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}:
                    self._loop.call_later(CROWDED_S, self.flush)
                return
            orders.popleft()
            if passed is not None:
                passed.close()
        self._loop.remove_writer(control)

    def close(self) -> None:
        """Closes its socket, which makes it end."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
        self._control.close()

    async def ended(self) -> None:
        """Waits until it has ended."""
        limit = self._loop.time() + LEAVE_S
        while self._process.poll() is None:
            if self._loop.time() > limit:
                self._process.kill()
            await asyncio.sleep(0.002)

    def wait(self) -> None:
        """Like `ended`, without an event loop."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)

    def is_there(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def _readable(self) -> None:
        try:
            message = self._control.recv(messages.MESSAGE_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return  # the latter: it ended before it had read everything, and its last messages come after this
        if message:
            verb, handle_id, *facts = msgspec.msgpack.decode(message)
            self._pool.on_message(verb, handle_id, facts)
        else:
            self.close()
            self._pool.on_exit()


# Seconds after which a fork server that ended is started again. The pause doubles each time.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
# Seconds after which a process counts as started successfully.
SOUND_S = 10.0
# Seconds between taking a process and refilling the pool, so that the first steps of that process are not delayed.
REFILL_S = 0.02
# Seconds before an unused process that ended is replaced: perhaps no process can run under its limits.
REPLACE_S = 1.0
REAP_S = 0.01


class ProcessPool:
    """Provides processes for sessions. Serves one event loop at a time.

    The fork server is started when a process is first needed, or by `warm`.

    Args:
        factory: Makes one environment.
        settings: The limits of processes, the number that are kept ready, and the sandbox.

    Raises:
        UsageError: The factory cannot be found by another process, or the sandbox does not work here.
    """

    def __init__(self, factory: Callable[[], Any], settings: ServerSettings):
        sandbox.check(settings.sandbox)
        # Folders of modules that the private /tmp of a sandbox would hide.
        kept = [folder for folder in map(os.path.abspath, sys.path) if folder.startswith("/tmp/")]  # noqa: S108
        self._plan = messages.ForkServerPlan(
            messages.pickle_by_reference(factory), ProcessLimits.of(settings), settings.sandbox, kept
        )
        self._pool_size = settings.process_pool
        self._ids = itertools.count(1)
        self._handles: dict[int, ProcessHandle] = {}
        # The processes that wait for a session.
        self._ready: deque[ProcessHandle] = deque()
        self._orders: Orders = deque()
        self._fork_server: ForkServerProcess | ProcessSpawner | None = None
        self._new_fork_server = ForkServerProcess if can_pass_sockets() else ProcessSpawner
        self._former: list[ForkServerProcess | ProcessSpawner] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refill: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._failure = ""

    @property
    def pid(self) -> int | None:
        """The process id of the fork server (or of its sandbox), if it runs."""
        return None if self._fork_server is None else self._fork_server.pid

    def warm(self) -> None:
        """Starts the fork server and the processes that are kept ready.

        Raises:
            OSError: The system can start no more processes or open no more files.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.abandon()
            self._loop = loop
        if self._fork_server is None and self._restart is None:
            self._fork_server = self._new_fork_server(self._plan, self._orders, self)
        if self._refill is None:
            self._fill()

    def take(self, listener: ProcessListener) -> ProcessHandle:
        """Takes a process for a session. Raises `OSError` as `warm` does."""
        self.warm()
        handle = self._ready.popleft() if self._ready else self._order()
        handle.listener = listener
        self._later(REFILL_S)
        return handle

    @property
    def forks(self) -> bool:
        """Whether a session process may fork. In a sandbox it is the first process of a namespace: a fork would end
        with it. Without a fork server none would adopt the new process."""
        return self._plan.sandbox == "none" and self._new_fork_server is ForkServerProcess

    def prepare_fork(self, listener: ProcessListener) -> tuple[ProcessHandle, list[int]]:
        """Prepares for a process that a session process is about to fork.

        Returns:
            Its handle, and the descriptors of its connection and its stderr, which the caller sends and closes.

        Raises:
            OSError: The process can open no more files.
        """
        reading, writing = os.pipe()
        try:
            handle, theirs = self._new_handle()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        handle.listener = listener
        self._tell([messages.EXPECT, handle.id], FileIO(reading))
        return handle, [theirs.detach(), writing]

    def register_fork(self, handle: ProcessHandle, pid: int) -> None:
        """The session process has forked the expected process, which has this process id."""
        if handle.id in self._handles:
            self._tell([messages.ADOPT, handle.id, pid], None)

    def abandon(self) -> None:
        """Drops all resources at once, because their event loop has ended."""
        self._leave("its event loop has ended")
        for former in self._former:
            former.wait()
        self._former = []

    async def aclose(self) -> None:
        """Ends every process, and waits until all have ended."""
        for timer in (self._refill, self._restart):
            if timer is not None:
                timer.cancel()
        self._leave("the server is stopping")
        for former in self._former:
            await former.ended()
        self._former = []

    # Messages of the fork server.

    def on_message(self, verb: str, handle_id: int, facts: list[Any]) -> None:
        if verb == messages.FAILED:
            self._failure = facts[0]
        elif verb == messages.EXITED and (handle := self._handles.pop(handle_id, None)) is not None:
            status, tail, reason = facts
            if reason == messages.TOO_MANY:
                most = self._plan.limits.children
                reason = (
                    f"it started more than {most} processes and threads (process_children, OPENENV_PROCESS_CHILDREN)"
                )
            elif reason == messages.UNFORKED:
                reason = "it could not be forked"
            if handle in self._ready:
                self._ready.remove(handle)
                self._later(REPLACE_S)
            handle.on_exit(ProcessExit(status, tail.decode("utf-8", "replace"), reason))

    def on_exit(self) -> None:
        fork_server, self._fork_server = self._fork_server, None
        assert fork_server is not None
        assert self._loop is not None
        self._former.append(fork_server)
        self._reap()
        if self._loop.time() - fork_server.started_at > SOUND_S:
            self._backoff.reset()
        else:
            self._backoff.grow()
        self._restart = self._loop.call_later(self._backoff.pause_s, self._restart_fork_server, bool(self._failure))
        failure, self._failure = self._failure, ""
        words = f"importing the environment failed: {failure}" if failure else "the fork server ended"
        self._lose(words)

    def _restart_fork_server(self, failed: bool) -> None:
        self._restart = None
        if failed and not self._handles:
            return  # it would probably fail again: the next session retries
        try:
            self._fork_server = self._new_fork_server(self._plan, self._orders, self)
        except OSError as error:
            self._lose(f"the fork server cannot be started: {error}")
            return
        self._fork_server.flush()
        self._fill()

    def _reap(self) -> None:
        """Reaps former fork servers, which end within a moment."""
        self._former = [former for former in self._former if former.is_there()]
        if self._former and self._loop is not None:
            self._loop.call_later(REAP_S, self._reap)

    def _fill(self) -> None:
        """Orders the missing processes of the pool."""
        self._refill = None
        if self._fork_server is None:
            return
        try:
            while len(self._ready) < self._pool_size:
                self._ready.append(self._order())
        except OSError:  # the process can open no more files, and sessions have priority
            return

    def _later(self, seconds: float) -> None:
        if self._refill is None:
            assert self._loop is not None
            self._refill = self._loop.call_later(seconds, self._fill)

    def _order(self) -> ProcessHandle:
        """Orders a process. Its connection works at once, and holds requests until the process reads them."""
        handle, theirs = self._new_handle()
        self._tell([messages.FORK, handle.id], theirs)
        return handle

    def _new_handle(self) -> tuple[ProcessHandle, socket.socket]:
        """A handle, and the process's end of its connection."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        handle = ProcessHandle(next(self._ids), ours, self._plan.limits.output_bytes, self._end)
        self._handles[handle.id] = handle
        return handle, theirs

    def _end(self, handle: ProcessHandle, grace_s: float) -> None:
        if handle.id in self._handles:
            self._tell([messages.END, handle.id, grace_s], None)

    def _tell(self, message: list[Any], passed: socket.socket | FileIO | None) -> None:
        self._orders.append((msgspec.msgpack.encode(message), passed))
        if self._fork_server is not None and len(self._orders) == 1:
            self._fork_server.flush()

    def _leave(self, reason: str) -> None:
        fork_server, self._fork_server = self._fork_server, None
        if fork_server is not None:
            fork_server.close()
            self._former.append(fork_server)
        self._lose(reason)
        self._loop = self._refill = self._restart = None

    def _lose(self, reason: str) -> None:
        """Every process has ended."""
        self._ready.clear()
        while self._orders:
            _, passed = self._orders.popleft()
            if passed is not None:
                passed.close()
        handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            handle.on_exit(ProcessExit(None, "", reason))
