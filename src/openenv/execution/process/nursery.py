"""Processes for the sessions of one environment class: those in use, and those kept ready."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from io import FileIO
from typing import Any

import msgspec

from ...errors import UsageError
from ...settings import ServerSettings
from . import sandbox
from .limits import ProcessLimits
from .parent import Orders, WarmParent
from .plan import ADOPT, END, EXITED, EXPECT, FAILED, FORK, TOO_MANY, UNFORKED, Plan
from .reference import refer
from .ward import Ending, Owner, Ward

__all__ = ["Nursery"]

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


class Nursery:
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
        self._plan = Plan(refer(factory), ProcessLimits.of(settings), settings.sandbox, _below_tmp())
        sandbox.check(settings.sandbox)
        self._pool_size = settings.process_pool
        self._ids = itertools.count(1)
        self._wards: dict[int, Ward] = {}
        self._ready: deque[Ward] = deque()
        self._orders: Orders = deque()
        self._parent: WarmParent | None = None
        self._former: list[WarmParent] = []
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
            self._parent = WarmParent(self._plan, self._orders, self)
        if self._refill is None:
            self._fill()

    def take(self, owner: Owner) -> Ward:
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

    def expect(self, owner: Owner) -> tuple[Ward, list[int]]:
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

    def adopt(self, ward: Ward, pid: int) -> None:
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
            ward.gone(Ending(status, tail.decode("utf-8", "replace"), self._in_words(reason)))

    def died(self) -> None:
        parent, self._parent = self._parent, None
        assert parent is not None
        assert self._loop is not None
        self._former.append(parent)
        self._reap()
        sound = self._loop.time() - parent.started_at > SOUND_S
        self._pause_s = 0.0 if sound else min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._restart = self._loop.call_later(self._pause_s, self._start_again, bool(self._failure))
        failure, self._failure = self._failure, ""
        words = f"the process that imports environments failed: {failure}" if failure else "its parent process ended"
        self._lose(words)

    def _start_again(self, failed: bool) -> None:
        self._restart = None
        if failed and not self._wards:
            return  # it would most likely fail again: whoever needs it tries
        try:
            self._parent = WarmParent(self._plan, self._orders, self)
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

    def _order(self) -> Ward:
        """Has a process forked. Its road is there at once, and takes what is to be done when it is."""
        ward, theirs = self._ward()
        self._tell([FORK, ward.id], theirs)
        return ward

    def _ward(self) -> tuple[Ward, socket.socket]:
        """A ward, and the other end of its road."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ward = Ward(next(self._ids), ours, self._plan.limits.output_bytes, self._end)
        self._wards[ward.id] = ward
        return ward, theirs

    def _end(self, ward: Ward, grace_s: float) -> None:
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
            ward.gone(Ending(None, "", reason))


def _below_tmp() -> list[str]:
    """Where modules come from that the private /tmp of a sandbox would hide."""
    return [folder for folder in map(os.path.abspath, sys.path) if folder.startswith("/tmp/")]  # noqa: S108
