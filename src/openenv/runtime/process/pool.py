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
from typing import Any, Protocol

import msgspec

from ...errors import UsageError
from ...settings import ServerSettings, environ_of_environments
from . import sandbox
from .handle import ProcessExit, ProcessHandle, ProcessListener
from .messages import (
    ADOPT,
    END,
    EXITED,
    EXPECT,
    FAILED,
    FORK,
    MESSAGE_BYTES,
    TOO_MANY,
    UNFORKED,
    ForkServerPlan,
    pickle_by_reference,
)
from .sandbox import ProcessLimits

# What it imports is found where this process finds it, this package too.
_BOOT = (
    "import json, os, sys; plan = os.fdopen(int(sys.argv[2]), 'rb'); sys.path[:] = json.loads(plan.readline()); "
    "from openenv.runtime.process.fork_server import main; main(int(sys.argv[1]), plan)"
)
# The system lets only so many descriptors be under way at a time: the next ones are sent after so long.
CROWDED_S = 0.01
# After that, one that is to end is killed.
LEAVE_S = 10.0

Orders = deque[tuple[bytes, socket.socket | FileIO | None]]
"""What is to be sent, with the road or the pipe that goes along with it."""


class _ForkServerListener(Protocol):
    """Who hears what a warm parent says."""

    def told(self, verb: str, ward_id: int, facts: list[Any]) -> None:
        """A message."""

    def died(self) -> None:
        """It has ended, and with it all that it forked."""


class ForkServerProcess:
    """A fresh process that imports the environment and forks the processes of sessions.

    Args:
        plan: What it is to make.
        orders: What is to be sent to it; whoever adds something calls `flush`.
        listener: Hears what it says.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, plan: ForkServerPlan, orders: Orders, listener: _ForkServerListener):
        self._loop = asyncio.get_running_loop()
        self._orders = orders
        self._listener = listener
        self.started_at = self._loop.time()
        self._road, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._road.setblocking(False)
        told = os.memfd_create("openenv-plan")
        try:
            os.write(told, json.dumps(sys.path).encode() + b"\n" + pickle.dumps((plan, str(Path.cwd()))))
            os.lseek(told, 0, os.SEEK_SET)
            boot = [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(told)]
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                sandbox.command(plan.sandbox, boot),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environ_of_environments() | ({} if plan.sandbox == "none" else sandbox.VARIABLES),
                pass_fds=(theirs.fileno(), told),
                start_new_session=True,  # a Ctrl-C at the terminal is for the server
            )
        except OSError:
            self._road.close()
            raise
        finally:
            theirs.close()
            os.close(told)
        self._loop.add_reader(self._road, self._readable)

    @property
    def pid(self) -> int:
        """Its process, or that of its sandbox."""
        return self._process.pid

    def flush(self) -> None:
        """Sends what there is to send."""
        road, orders = self._road, self._orders
        if road.fileno() < 0:
            return
        while orders:
            message, passed = orders[0]
            try:
                socket.send_fds(road, [message], [] if passed is None else [passed.fileno()])
            except BlockingIOError:
                self._loop.add_writer(road, self.flush)
                return
            except OSError as error:  # else it has ended, of which `_readable` hears
                if error.errno in {errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}:
                    self._loop.call_later(CROWDED_S, self.flush)
                return
            orders.popleft()
            if passed is not None:
                passed.close()
        self._loop.remove_writer(road)

    def close(self) -> None:
        """Lets it end, by closing the road."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._road)
            self._loop.remove_writer(self._road)
        self._road.close()

    async def ended(self) -> None:
        """Waits until it has ended."""
        limit = self._loop.time() + LEAVE_S
        while self._process.poll() is None:
            if self._loop.time() > limit:
                self._process.kill()
            await asyncio.sleep(0.002)

    def wait(self) -> None:
        """The same where no event loop runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)

    def is_there(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def _readable(self) -> None:
        try:
            message = self._road.recv(MESSAGE_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return  # the latter: it ended before it had read everything, and its last words come after this
        if message:
            verb, ward_id, *facts = msgspec.msgpack.decode(message)
            self._listener.told(verb, ward_id, facts)
        else:
            self.close()
            self._listener.died()


# A warm parent that ends is started again after so long, twice that the next time, and so on.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
# One that has lived this long was no failure from the start.
SOUND_S = 10.0
# The pool is filled up so long after a process was taken from it, whose own first steps come first.
REFILL_S = 0.02
# A process that nobody used and that ended is replaced after so long: perhaps none can live under its limits.
REPLACE_S = 1.0
REAP_S = 0.01


class ProcessPool:
    """Gives out processes for sessions. Serves one event loop at a time.

    The warm parent is started when a process is first needed, or by `warm`.

    Args:
        factory: Makes one environment.
        settings: The limits of processes, how many are kept ready, the sandbox.

    Raises:
        UsageError: The factory cannot be found by another process, or the sandbox does not work here.
    """

    def __init__(self, factory: Callable[[], Any], settings: ServerSettings):
        if not sys.platform.startswith("linux"):
            raise UsageError("process isolation needs Linux: serve without --isolation process")
        self._plan = ForkServerPlan(
            pickle_by_reference(factory), ProcessLimits.of(settings), settings.sandbox, _below_tmp()
        )
        sandbox.check(settings.sandbox)
        self._pool_size = settings.process_pool
        self._ids = itertools.count(1)
        self._wards: dict[int, ProcessHandle] = {}
        self._ready: deque[ProcessHandle] = deque()
        self._orders: Orders = deque()
        self._parent: ForkServerProcess | None = None
        self._former: list[ForkServerProcess] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refill: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._pause_s = 0.0
        self._failure = ""

    @property
    def ready(self) -> int:
        """Processes that wait for a session."""
        return len(self._ready)

    @property
    def pid(self) -> int | None:
        """The warm parent's process (or that of its sandbox), if there is one."""
        return None if self._parent is None else self._parent.pid

    def warm(self) -> None:
        """Starts the warm parent and the processes that are kept ready.

        Raises:
            OSError: The machine has no process or descriptor left to give.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.abandon()
            self._loop = loop
        if self._parent is None and self._restart is None:
            self._parent = ForkServerProcess(self._plan, self._orders, self)
        if self._refill is None:
            self._fill()

    def take(self, owner: ProcessListener) -> ProcessHandle:
        """A process for a session. Raises `OSError` as `warm` does."""
        self.warm()
        ward = self._ready.popleft() if self._ready else self._order()
        ward.owner = owner
        self._later(REFILL_S)
        return ward

    @property
    def forks(self) -> bool:
        """Whether a session's process may fork another one: not one that has a namespace to itself, and its first
        process, with which all in it end."""
        return self._plan.sandbox == "none"

    def expect(self, owner: ProcessListener) -> tuple[ProcessHandle, list[int]]:
        """Makes ready for a process that a session's is about to fork.

        Returns:
            The ward it will be, and descriptors of its road and its stderr, which the caller passes on and closes.

        Raises:
            OSError: There is no descriptor left.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            ward, theirs = self._ward()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        ward.owner = owner
        self._tell([EXPECT, ward.id], FileIO(reading))
        return ward, [theirs.detach(), writing]

    def adopt(self, ward: ProcessHandle, pid: int) -> None:
        """The process that was expected has been forked, and this is its number."""
        if ward.id in self._wards:
            self._tell([ADOPT, ward.id, pid], None)

    def abandon(self) -> None:
        """Leaves everything behind at once: the event loop that it belonged to is gone."""
        self._leave("the event loop that it belonged to is gone")
        for parent in self._former:
            parent.wait()
        self._former = []

    async def aclose(self) -> None:
        """Ends every process, and waits until they are gone."""
        for timer in (self._refill, self._restart):
            if timer is not None:
                timer.cancel()
        self._leave("the server is stopping")
        for parent in self._former:
            await parent.ended()
        self._former = []

    # What the warm parent says.

    def told(self, verb: str, ward_id: int, facts: list[Any]) -> None:
        if verb == FAILED:
            self._failure = facts[0]
        elif verb == EXITED and (ward := self._wards.pop(ward_id, None)) is not None:
            status, tail, reason = facts
            if ward in self._ready:
                self._ready.remove(ward)
                self._later(REPLACE_S)
            ward.gone(ProcessExit(status, tail.decode("utf-8", "replace"), self._in_words(reason)))

    def died(self) -> None:
        parent, self._parent = self._parent, None
        assert parent is not None
        assert self._loop is not None
        self._former.append(parent)
        self._reap()
        sound = self._loop.time() - parent.started_at > SOUND_S
        self._pause_s = 0.0 if sound else min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._restart = self._loop.call_later(self._pause_s, self._restart_fork_server, bool(self._failure))
        failure, self._failure = self._failure, ""
        words = f"the process that imports environments failed: {failure}" if failure else "its parent process ended"
        self._lose(words)

    def _restart_fork_server(self, failed: bool) -> None:
        self._restart = None
        if failed and not self._wards:
            return  # it would most likely fail again: whoever needs it tries
        try:
            self._parent = ForkServerProcess(self._plan, self._orders, self)
        except OSError as error:
            self._lose(f"its parent process cannot be started: {error}")
            return
        self._parent.flush()
        self._fill()

    def _reap(self) -> None:
        """Takes notice of the end of former parents, which is a moment away."""
        self._former = [parent for parent in self._former if parent.is_there()]
        if self._former and self._loop is not None:
            self._loop.call_later(REAP_S, self._reap)

    def _in_words(self, reason: str) -> str:
        if reason == TOO_MANY:
            most = self._plan.limits.children
            return f"it started more than {most} processes and threads (process_children, OPENENV_PROCESS_CHILDREN)"
        return "it could not be forked" if reason == UNFORKED else reason

    def _fill(self) -> None:
        """Orders what is missing in the pool."""
        self._refill = None
        if self._parent is None:
            return
        try:
            while len(self._ready) < self._pool_size:
                self._ready.append(self._order())
        except OSError:  # no descriptor left: sessions come first
            return

    def _later(self, seconds: float) -> None:
        if self._refill is None:
            assert self._loop is not None
            self._refill = self._loop.call_later(seconds, self._fill)

    def _order(self) -> ProcessHandle:
        """Has a process forked. Its road is there at once, and takes what is to be done when it is."""
        ward, theirs = self._ward()
        self._tell([FORK, ward.id], theirs)
        return ward

    def _ward(self) -> tuple[ProcessHandle, socket.socket]:
        """A ward, and the other end of its road."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ward = ProcessHandle(next(self._ids), ours, self._plan.limits.output_bytes, self._end)
        self._wards[ward.id] = ward
        return ward, theirs

    def _end(self, ward: ProcessHandle, grace_s: float) -> None:
        if ward.id in self._wards:
            self._tell([END, ward.id, grace_s], None)

    def _tell(self, message: list[Any], road: socket.socket | FileIO | None) -> None:
        self._orders.append((msgspec.msgpack.encode(message), road))
        if self._parent is not None and len(self._orders) == 1:
            self._parent.flush()

    def _leave(self, reason: str) -> None:
        parent, self._parent = self._parent, None
        if parent is not None:
            parent.close()
            self._former.append(parent)
        self._lose(reason)
        self._loop = self._refill = self._restart = None

    def _lose(self, reason: str) -> None:
        """Every process is gone."""
        self._ready.clear()
        while self._orders:
            _, road = self._orders.popleft()
            if road is not None:
                road.close()
        wards, self._wards = list(self._wards.values()), {}
        for ward in wards:
            ward.gone(ProcessExit(None, "", reason))


def _below_tmp() -> list[str]:
    """Where modules come from that the private /tmp of a sandbox would hide."""
    return [folder for folder in map(os.path.abspath, sys.path) if folder.startswith("/tmp/")]  # noqa: S108
