"""The warm parent: a process of one thread that has imported the environment, and forks the processes of sessions.

It ends them, too: the process of a session leads a group and a session of its own, and what leaves that group
becomes, when its ancestor ends, this process's child. When the server ends, however that happens, all of them end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from . import linux, sandbox
from .child import Child
from .plan import ADOPT, END, EXITED, EXPECT, FORK, MESSAGE_BYTES, TOO_MANY, UNFORKED, Plan
from .tail import Tail
from .watch import GLANCE_S, Watch, take_census

__all__ = ["Zygote"]

# Between the request to end and the end, for what a process has to tidy up.
GRACE_S = 0.2
ORPHANS_S = 0.02
# What a session's process takes to fork another one. Meanwhile no orphan is ended: the new one is one for a moment.
EXPECT_S = 10.0
# When the server is gone: what cannot be ended by then is not ours to end.
LEAVE_S = 5.0


class _Session:
    """A process of a session: its number, what it said, when it is killed."""

    __slots__ = ("id", "kill_at", "pid", "reason", "tail")

    def __init__(self, session_id: int, pid: int, tail: Tail):
        self.id = session_id
        self.pid = pid
        self.tail = tail
        self.kill_at: float | None = None
        self.reason = ""


class _Expected:
    """A process that another session's forks: the pipe of its stderr, and when it is given up."""

    __slots__ = ("limit", "reading")

    def __init__(self, reading: int):
        self.reading = reading
        self.limit = time.monotonic() + EXPECT_S


class Zygote:
    """Forks, watches and ends.

    Args:
        control: The road to the server.
        plan: What to fork.
        factory: What makes environments.
    """

    def __init__(self, control: socket.socket, plan: Plan, factory: Callable[[], Any]):
        self._control = control
        self._plan = plan
        self._factory = factory
        self._sessions: dict[int, _Session] = {}
        self._pids: dict[int, _Session] = {}
        self._expected: dict[int, _Expected] = {}
        self._watch = Watch(plan.limits.children)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._hear)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._orphans_at: float | None = None
        # What the environment's module started when it was imported is for all sessions.
        self._helpers = set(_children())
        self._leaving = False

    def run(self) -> None:
        """Serves until the server is gone, then ends everything."""
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._signalled)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        while not self._leaving:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._look()
        self._helpers.clear()
        self._expected.clear()
        limit = time.monotonic() + LEAVE_S
        for session in self._sessions.values():
            _kill_group(session.pid, signal.SIGKILL)
        while time.monotonic() < limit and (self._pids or self._end_orphans()):
            self._selector.select(ORPHANS_S)
            self._reap()

    def _signalled(self, number: int, _: Any) -> None:
        if number == signal.SIGTERM:
            self._leaving = True

    def _patience(self) -> float | None:
        if not self._pids and self._orphans_at is None:
            return None
        return ORPHANS_S if self._orphans_at is not None else GLANCE_S

    def _look(self) -> None:
        """What time brings about."""
        if not self._pids and self._orphans_at is None:
            return
        now = time.monotonic()
        for session in self._pids.values():
            if session.kill_at is not None and session.kill_at <= now:
                _kill_group(session.pid, signal.SIGKILL)
                session.kill_at = now + GRACE_S
        for session_id in [number for number, each in self._expected.items() if each.limit <= now]:
            self._give_up(session_id)
        for pid in self._watch.over(self._pids):
            session = self._pids[pid]
            session.reason = TOO_MANY
            _kill_group(pid, signal.SIGKILL)
        if self._orphans_at is not None and self._orphans_at <= now:
            self._orphans_at = now + ORPHANS_S if self._end_orphans() else None

    def _hear(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except ConnectionError:
            message, descriptors = b"", []
        if not message:
            self._leaving = True
            return
        verb, session_id, *rest = msgspec.msgpack.decode(message)
        if verb == FORK:
            self._fork(session_id, descriptors)
        elif verb == EXPECT:
            self._expect(session_id, descriptors)
        elif verb == ADOPT:
            self._adopt(session_id, *rest)
        elif verb == END and session_id in self._expected:
            self._give_up(session_id)
        elif verb == END and (session := self._sessions.get(session_id)) is not None:
            self._end(session, *rest)

    def _expect(self, session_id: int, descriptors: list[int]) -> None:
        if descriptors:
            self._expected[session_id] = _Expected(descriptors[0])
        else:
            self._tell([EXITED, session_id, None, b"no descriptor is left for its stderr", UNFORKED])

    def _adopt(self, session_id: int, pid: int) -> None:
        """Takes over a process that a session's has forked: of those that nobody else has, it says which one."""
        if session_id not in self._expected:
            return
        if pid in self._pids or pid in self._helpers or pid not in _children():
            self._give_up(session_id)
        else:
            self._keep(session_id, pid, self._expected.pop(session_id).reading)

    def _give_up(self, session_id: int) -> None:
        """A process that was expected does not come, or is gone already; if it comes, it is an orphan like others."""
        tail = Tail(self._expected.pop(session_id).reading)
        tail.close()
        self._orphans_at = time.monotonic()
        self._tell([EXITED, session_id, None, tail.text, UNFORKED])

    def _end(self, session: _Session, grace_s: float) -> None:
        if session.kill_at is None:
            session.kill_at = time.monotonic() + grace_s
            if grace_s:
                _kill_group(session.pid, signal.SIGTERM)
            else:
                _kill_group(session.pid, signal.SIGKILL)

    def _fork(self, session_id: int, descriptors: list[int]) -> None:
        try:
            if not descriptors:
                raise OSError("no descriptor is left for its road")
            descriptors += os.pipe()
            if self._plan.sandbox == "none":
                pid = os.fork()
            else:
                pid = sandbox.fork_inside(self._plan.kept, self._plan.limits.output_bytes)
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._tell([EXITED, session_id, 1 << 8, str(error).encode(), UNFORKED])
            return
        road, reading, writing = descriptors
        if pid == 0:
            self._become(road, reading, writing)
        os.close(writing)
        os.close(road)
        self._keep(session_id, pid, reading)

    def _keep(self, session_id: int, pid: int, reading: int) -> None:
        session = _Session(session_id, pid, Tail(reading))
        self._sessions[session_id] = self._pids[pid] = session
        self._selector.register(reading, selectors.EVENT_READ, lambda: self._listen(session))

    def _become(self, road: int, reading: int, writing: int) -> None:
        """In the new process: leaves everything of the parent behind, and serves one session."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            if self._plan.sandbox == "none":
                linux.adopt_orphans()
                linux.die_with_parent()
                if os.getppid() != _parent:
                    os._exit(1)
            os.dup2(writing, 2)
            for descriptor in (reading, writing, self._woken, self._wake):
                os.close(descriptor)
            for session in self._sessions.values():
                os.close(session.tail.descriptor)
            for each in self._expected.values():
                os.close(each.reading)
            self._selector.close()
            self._control.close()
            connection = socket.socket(fileno=road)
            connection.set_inheritable(False)
            self._sessions.clear()
            self._expected.clear()
            self._pids.clear()
            faulthandler.enable()  # what a crash says of itself
            if (numpy_random := sys.modules.get("numpy.random")) is not None:
                numpy_random.seed()  # older versions would draw the same numbers in all sessions
            self._plan.limits.apply()
            Child(connection, self._factory).run()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as its parent
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(code)

    def _listen(self, session: _Session) -> None:
        # It may have been reaped since this was seen to be readable.
        if session.id in self._sessions and not session.tail.read():
            self._selector.unregister(session.tail.descriptor)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, MESSAGE_BYTES)
        with contextlib.suppress(ChildProcessError):
            while True:
                # Looked at first and reaped after: while it is a zombie, its number names its group and no other.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return
                session = self._pids.pop(ended.si_pid, None)
                if session is not None:
                    _kill_group(session.pid, signal.SIGKILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if session is not None:
                    self._gone(session, status)

    def _gone(self, session: _Session, status: int) -> None:
        del self._sessions[session.id]
        with contextlib.suppress(KeyError):
            self._selector.unregister(session.tail.descriptor)
        session.tail.close()
        if self._plan.sandbox == "none":  # else its namespace has ended, and all with it
            self._orphans_at = time.monotonic() + ORPHANS_S if self._end_orphans() else self._orphans_at
        self._tell([EXITED, session.id, status, session.tail.text, session.reason])

    def _end_orphans(self) -> bool:
        """Kills what the processes of sessions that have ended left behind. Whether there was any, or may be."""
        orphans = [pid for pid in _children() if pid not in self._pids and pid not in self._helpers]
        if not self._leaving and (self._expected or (orphans and self._has_unheard())):
            return True
        for pid in orphans:
            with contextlib.suppress(OSError):
                group = os.getpgid(pid)
                if group != os.getpgrp():
                    _kill_group(group, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        return bool(orphans)

    def _has_unheard(self) -> bool:
        """Whether the server has said more than was heard: perhaps that a process is to be expected."""
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # there is nothing, or nobody
            return False

    def _tell(self, message: list[Any]) -> None:
        # The server may be gone, which the next look at the road will tell.
        with contextlib.suppress(OSError):
            self._control.send(msgspec.msgpack.encode(message))


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:  # noqa: PTH123 - thousands of times
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return [pid for pid, parent in take_census().parents.items() if parent == me]


def _kill_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except PermissionError:
        pass
    except ProcessLookupError:  # it was forked a moment ago, and leads no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(leader, number)


_parent = os.getpid()
