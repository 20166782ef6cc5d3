"""The fork server: imports the environment once, forks session processes, watches them and ends them."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ..._files import set_nonblocking
from ..._processes import KILL, adopt_orphans, die_with_parent, fork, signal_group, signals
from ..._sockets import receive_with_descriptors
from . import messages, sandbox
from .child import SessionProcess

TAIL_BYTES = 4096
# Most bytes that are read from one stream at a time, because other streams wait too.
_CHUNKS_AT_ONCE = 4


class PipeTail:
    """Reads a pipe and keeps its last bytes.

    Args:
        descriptor: The reading end of the pipe, owned by this object.
    """

    def __init__(self, descriptor: int):
        set_nonblocking(descriptor)
        self.descriptor = descriptor
        self.text = b""

    def read(self) -> bool:
        """Reads available data, up to a limit. False at the end of the stream."""
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                data = os.read(self.descriptor, messages.CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.text = (self.text + data)[-TAIL_BYTES:]
        return True

    def close(self) -> None:
        """Reads the rest, and closes the pipe."""
        self.read()
        os.close(self.descriptor)


# Reading the number of all threads of the machine is cheap; counting the threads of each session is not.
GLANCE_S = 0.05
COUNT_S = 5.0
# The largest share of this process's time that counting may take.
SHARE = 0.05


class ProcessTree(NamedTuple):
    """Parents and thread counts of all processes."""

    parents: dict[int, int]
    threads: dict[int, int]

    def descendants(self, ancestors: Collection[int]) -> dict[int, list[int]]:
        """For each ancestor: itself and its descendants, without those of another given ancestor below it."""
        children: dict[int, list[int]] = {}
        for pid, parent in self.parents.items():
            if pid not in ancestors:
                children.setdefault(parent, []).append(pid)
        families = {ancestor: [ancestor] if ancestor in self.parents else [] for ancestor in ancestors}
        for family in families.values():
            for pid in family:  # the list grows in the loop
                family.extend(children.get(pid, ()))
        return families


def read_process_tree() -> ProcessTree:
    """Reads /proc."""
    tree = ProcessTree({}, {})
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted, thousands of them
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:  # the process has ended
                continue
            fields = text[text.rfind(b")") + 2 :].split()
            if len(fields) < 18:  # it ended while it was read
                continue
            pid = int(name)
            tree.parents[pid] = int(fields[1])
            tree.threads[pid] = int(fields[17])
    return tree


class ProcessCounter:
    """Finds the sessions that have started too many processes.

    Args:
        most: Most processes and threads of a session.
    """

    def __init__(self, most: int):
        self._most = most
        self._enough = 0  # threads of the machine with which no session can be over its limit
        self._count_at = 0.0
        self._not_before = 0.0

    def over(self, sessions: Collection[int]) -> list[int]:
        """The given processes that have more descendants and threads than the limit."""
        try:
            total = int(Path("/proc/loadavg").read_bytes().split()[3].partition(b"/")[2])
        except (OSError, IndexError, ValueError):  # some containers hide this file: count each session
            total = 0
        now = time.monotonic()
        if now < self._not_before or (total < self._enough and now < self._count_at):
            return []
        tree = read_process_tree()
        found, most = [], 0
        for leader, family in tree.descendants(sessions).items():
            size = sum(tree.threads.get(pid, 1) for pid in family)
            most = max(most, size)
            if size - 1 > self._most:  # without the process itself
                found.append(leader)
        self._not_before = now + (time.monotonic() - now) / SHARE
        self._count_at = max(self._not_before, now + COUNT_S)
        self._enough = total + max(self._most - most, 1) if total else 0
        return found


ORPHANS_S = 0.02
# Seconds that a session's process may take to fork. Until then no orphan is killed: the new process is briefly one.
EXPECT_S = 10.0
# Seconds to wait for the end of all processes after the server has ended. This process cannot kill the rest.
LEAVE_S = 5.0


@dataclass(slots=True)
class _Session:
    """A session process: its process id, its stderr, and the time at which it is killed."""

    id: int
    pid: int
    tail: PipeTail
    kill_at: float | None = None
    reason: str = ""


class _PendingSession(NamedTuple):
    """A process that another session process is forking: the pipe of its stderr, and the deadline for the fork."""

    reading: int
    limit: float


class ForkServer:
    """Forks the processes of sessions, watches and ends them.

    Args:
        control: The socket to the server.
        plan: Describes the processes to fork.
        factory: Makes environments.
    """

    def __init__(self, control: socket.socket, plan: messages.ForkServerPlan, factory: Callable[[], Any]):
        self._control = control
        self._plan = plan
        self._factory = factory
        self._sessions: dict[int, _Session] = {}
        self._pids: dict[int, _Session] = {}
        self._pending: dict[int, _PendingSession] = {}
        self._counter = ProcessCounter(plan.limits.children)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._receive)
        self._woken, self._wake = os.pipe()
        set_nonblocking(self._woken, self._wake)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._orphans_at: float | None = None
        # Processes that the environment's module started on import are shared by all sessions.
        self._helpers = set(_children())
        self._leaving = False

    def run(self) -> None:
        """Serves until the server has ended, then ends all processes."""

        def hear(number: int, _: Any) -> None:
            if number == signal.SIGTERM:
                self._leaving = True

        for number in signals("SIGCHLD", "SIGTERM"):
            signal.signal(number, hear)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        while not self._leaving:
            until_look_s = GLANCE_S if self._pids else None
            for key, _ in self._selector.select(until_look_s if self._orphans_at is None else ORPHANS_S):
                key.data()
            self._act_on_time()
        self._helpers.clear()
        self._pending.clear()
        limit = time.monotonic() + LEAVE_S
        for session in self._sessions.values():
            _kill_group(session.pid, KILL)
        while time.monotonic() < limit and (self._pids or self._end_orphans()):
            self._selector.select(ORPHANS_S)
            self._reap()

    def _act_on_time(self) -> None:
        """Kills the processes whose deadline has passed or that exceed the limit, and looks for orphans."""
        if not self._pids and self._orphans_at is None:
            return
        now = time.monotonic()
        for session in self._pids.values():
            if session.kill_at is not None and session.kill_at <= now:
                _kill_group(session.pid, KILL)
                session.kill_at = now + messages.GRACE_S
        for session_id in [number for number, each in self._pending.items() if each.limit <= now]:
            self._give_up(session_id)
        for pid in self._counter.over(self._pids):
            session = self._pids[pid]
            session.reason = messages.TOO_MANY
            _kill_group(pid, KILL)
        if self._orphans_at is not None and self._orphans_at <= now:
            self._orphans_at = now + ORPHANS_S if self._end_orphans() else None

    def _receive(self) -> None:
        try:
            message, descriptors = receive_with_descriptors(self._control, messages.MESSAGE_BYTES, 1)
        except ConnectionError:
            message, descriptors = b"", []
        if not message:
            self._leaving = True
            return
        verb, session_id, *rest = msgspec.msgpack.decode(message)
        if verb == messages.FORK:
            self._fork(session_id, descriptors)
        elif verb == messages.EXPECT:
            if descriptors:
                self._pending[session_id] = _PendingSession(descriptors[0], time.monotonic() + EXPECT_S)
            else:
                self._send(
                    [messages.EXITED, session_id, None, b"the fork server can open no more files", messages.UNFORKED]
                )
        elif verb == messages.ADOPT:
            self._adopt(session_id, *rest)
        elif verb == messages.END and session_id in self._pending:
            self._give_up(session_id)
        elif verb == messages.END and (session := self._sessions.get(session_id)) and session.kill_at is None:
            (grace_s,) = rest
            session.kill_at = time.monotonic() + grace_s
            _kill_group(session.pid, signal.SIGTERM if grace_s else KILL)

    def _adopt(self, session_id: int, pid: int) -> None:
        """Adopts a process that a session's process has forked, if it is our child and belongs to no session yet."""
        if session_id not in self._pending:
            return
        if pid in self._pids or pid in self._helpers or pid not in _children():
            self._give_up(session_id)
        else:
            self._add(session_id, pid, self._pending.pop(session_id).reading)

    def _give_up(self, session_id: int) -> None:
        """Gives up waiting for a pending process. If it appears later, it is treated as an orphan."""
        tail = PipeTail(self._pending.pop(session_id).reading)
        tail.close()
        self._orphans_at = time.monotonic()
        self._send([messages.EXITED, session_id, None, tail.text, messages.UNFORKED])

    def _fork(self, session_id: int, descriptors: list[int]) -> None:
        try:
            if not descriptors:
                raise OSError("the fork server can open no more files")
            descriptors += os.pipe()
            if self._plan.sandbox == "none":
                pid = fork()
            else:
                pid = sandbox.fork_inside(self._plan.kept, self._plan.limits.output_bytes)
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._send([messages.EXITED, session_id, 1 << 8, str(error).encode(), messages.UNFORKED])
            return
        connection, reading, writing = descriptors
        if pid == 0:
            self._run_session(connection, reading, writing)
        os.close(writing)
        os.close(connection)
        self._add(session_id, pid, reading)

    def _add(self, session_id: int, pid: int, reading: int) -> None:
        session = _Session(session_id, pid, PipeTail(reading))
        self._sessions[session_id] = self._pids[pid] = session

        def read_stderr() -> None:
            # The process may have been reaped after the selector reported its stderr.
            if session_id in self._sessions and not session.tail.read():
                self._selector.unregister(reading)

        self._selector.register(reading, selectors.EVENT_READ, read_stderr)

    def _run_session(self, descriptor: int, reading: int, writing: int) -> None:
        """In the new process: drops the resources of the parent, and serves one session."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in signals("SIGCHLD", "SIGTERM"):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if sys.platform != "win32":
                os.setsid()
            if self._plan.sandbox == "none":
                adopt_orphans()
                die_with_parent()
                if os.getppid() != _parent:
                    os._exit(1)
            os.dup2(writing, 2)
            for inherited in (reading, writing, self._woken, self._wake):
                os.close(inherited)
            for session in self._sessions.values():
                os.close(session.tail.descriptor)
            for each in self._pending.values():
                os.close(each.reading)
            self._selector.close()
            self._control.close()
            connection = socket.socket(fileno=descriptor)
            connection.set_inheritable(False)
            self._sessions.clear()
            self._pending.clear()
            self._pids.clear()
            faulthandler.enable()  # prints a traceback if the process crashes
            if (numpy_random := sys.modules.get("numpy.random")) is not None:
                numpy_random.seed()  # older versions would draw the same numbers in all sessions
            self._plan.limits.apply()
            SessionProcess(connection, self._factory).run()
            code = 0
        except BaseException:  # noqa: BLE001 - after any error: the forked process must not run its parent's code
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(code)

    def _reap(self) -> None:
        if sys.platform != "linux":  # `sandbox.check` has refused
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, messages.MESSAGE_BYTES)
        with contextlib.suppress(ChildProcessError):
            while True:
                # Kill its group before reaping: while it is a zombie, the kernel does not reuse its number.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return
                while ended.si_pid not in self._pids and not self._leaving and self._has_pending_message():
                    self._receive()  # a message may ask to adopt it
                session = self._pids.pop(ended.si_pid, None)
                if session is not None:
                    _kill_group(session.pid, KILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if session is not None:
                    del self._sessions[session.id]
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(session.tail.descriptor)
                    session.tail.close()
                    if self._plan.sandbox == "none":  # otherwise all processes of its namespace have ended
                        self._orphans_at = time.monotonic() + ORPHANS_S if self._end_orphans() else self._orphans_at
                    self._send([messages.EXITED, session.id, status, session.tail.text, session.reason])

    def _end_orphans(self) -> bool:
        """Kills orphans of ended sessions. Returns whether there were any, or may be more."""
        orphans = [pid for pid in _children() if pid not in self._pids and pid not in self._helpers]
        if not self._leaving and (self._pending or (orphans and self._has_pending_message())):
            return True
        if sys.platform == "win32":
            return False
        for pid in orphans:
            with contextlib.suppress(OSError):
                group = os.getpgid(pid)
                if group != os.getpgrp():
                    _kill_group(group, KILL)
                os.kill(pid, KILL)
        return bool(orphans)

    def _has_pending_message(self) -> bool:
        """Whether a message waits: it may announce a forked process."""
        if sys.platform == "win32":
            return False
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # no message waits, or the server has ended
            return False

    def _send(self, message: list[Any]) -> None:
        # The server may have ended, which the next read of the socket will show.
        with contextlib.suppress(OSError):
            self._control.send(msgspec.msgpack.encode(message))


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:  # noqa: PTH123 - thousands of times
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return [pid for pid, parent in read_process_tree().parents.items() if parent == me]


def _kill_group(leader: int, number: int) -> None:
    try:
        signal_group(leader, number)
    except PermissionError:
        pass
    except ProcessLookupError:  # it was just forked, and does not lead a group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(leader, number)


_parent = os.getpid()


def main(descriptor: int, file: BinaryIO) -> None:
    """Runs a fork server.

    Args:
        descriptor: The socket to the server.
        file: Its `ForkServerPlan` and working directory, pickled.
    """
    control = socket.socket(fileno=descriptor)
    with file:
        plan, cwd = pickle.load(file)  # noqa: S301 - the server's own
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()  # during the import below, this process cannot notice the end of the server
    adopt_orphans()
    try:
        os.chdir(cwd)
        factory = pickle.loads(plan.factory)  # noqa: S301
    except BaseException:  # noqa: BLE001 - the environment's module is foreign code
        with contextlib.suppress(OSError):
            control.send(
                msgspec.msgpack.encode([messages.FAILED, 0, traceback.format_exc()[-messages.MESSAGE_BYTES // 4 :]])
            )
        sys.exit(1)
    die_with_parent(signal.SIGTERM)
    # Imported objects are never freed. Excluded from garbage collection, their pages stay shared between processes.
    gc.collect()
    gc.freeze()
    ForkServer(control, plan, factory).run()
