"""A worker's side of the shared table: its load, and the session slots of the whole server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...errors import UsageError
from ...runtime.admission import SlotOutcome
from .table import ASIDE, DECIDED, DRIFT, FIRST, HELD, LEAVING, STUCK, WAITING, WorkerRow, WorkerTable


class WorkerLoad:
    """A worker's side of its load: the sessions it has, and the connections that may become one.

    The parent counts every connection that it hands over as a load of one. Here is counted only what differs
    from that later on, so a connection that becomes a session changes nothing, and at no moment is it counted
    twice or not at all.

    The parent also reads how many connections are decided: it is known whether they want a session now. A
    connection of protocol v1 and one that only speaks HTTP are decided at once. One of protocol v2 opens its session
    a moment later.
    """

    __slots__ = ("_asked", "_begun", "_count", "_promised", "_row", "_undecided")

    def __init__(self, row: WorkerRow):
        self._row = row
        self._promised = self._asked = self._begun = False
        self._count = 0
        self._undecided: deque[int] = deque()

    def begin(self) -> None:
        """A connection asks to speak WebSocket; what it opens before `end` takes over its load."""
        self._promised = self._begun = True
        self._asked = False

    def end(self, gone: bool = False) -> int | None:
        """It was answered. If it opened nothing, it weighs nothing from here on.

        Args:
            gone: The connection was closed or handed on.

        Returns:
            A number to call `give_up` with, if the connection has not asked for a session yet; else None.
        """
        if self._promised:
            self._promised = False
            self._row.add(DRIFT, -1)
        self._begun = False
        if self._asked or gone:
            self.note_decision()
            return None
        self._count += 1
        self._undecided.append(self._count)
        return self._count

    def give_up(self, number: int) -> None:
        """No session was asked for over a connection for a while."""
        if self._undecided and self._undecided[0] <= number:  # those in front of it are older
            self._undecided.popleft()
            self.note_decision()

    def note_request(self) -> None:
        """A session was asked for, and has a slot, waits for one, or was refused."""
        if self._begun:
            self._asked = True
        elif self._undecided:
            self._undecided.popleft()
            self.note_decision()

    def note_decision(self) -> None:
        """It is known what a connection wants."""
        self._row.add(DECIDED, 1)

    def opened(self) -> None:
        """A session was opened."""
        if self._promised:
            self._promised = False
        else:
            self._row.add(DRIFT, 1)

    def closed(self) -> None:
        """A session is gone, or a connection that never asked for one."""
        self._row.add(DRIFT, -1)


class SharedSlots:
    """Slots counted in the table that all workers share (see `sessions.slots.Slots`).

    A worker that holds the first place and hangs keeps newcomers of all others waiting, until its parent replaces it.

    Args:
        table: The shared table.
        index: This worker's row.
        limit: Most slots taken by all workers together.
        load: Hears of sessions that open and close here.
        freed: Called with the rows of other workers, whose newcomers may have a slot now.
        per_key: Most slots taken with one API key; None: no such limit.
    """

    def __init__(
        self,
        table: WorkerTable,
        index: int,
        limit: int,
        load: WorkerLoad,
        freed: Callable[[list[int]], None],
        per_key: int | None = None,
    ):
        self.limit = limit
        self.per_key = per_key
        self.on_free: Callable[[], None] | None = None
        self._table = table
        self._row = table.row(index)
        self._load = load
        self._freed = freed

    @property
    def held(self) -> int:
        return self._table.held

    @property
    def leaving(self) -> int:
        return self._table.leaving

    @property
    def waiting(self) -> int:
        return self._table.waiting

    @property
    def stuck(self) -> int:
        return self._table.stuck

    def add_stuck(self, change: int) -> None:
        self._row.add(STUCK, change)

    def note_request(self) -> None:
        self._load.note_request()

    def take(self, since_ns: int, holder: int = 0) -> SlotOutcome:
        counted = self._counted(holder)
        table = self._table
        with table:
            if table.held >= self.limit or self._others_came_before(since_ns):
                return _NONE
            if counted:
                assert self.per_key is not None
                if table.held_by(holder) >= self.per_key:
                    return _NONE_FOR_KEY
                self._row.add_share(holder, 1)
            self._row.add(HELD, 1)
        self._load.opened()
        return _TAKEN

    def leave(self) -> None:
        self._row.add(LEAVING, 1)

    def give(self, holder: int = 0) -> None:
        counted = self._counted(holder)
        table = self._table
        with table:
            self._row.add(LEAVING, -1)
            self._row.add(HELD, -1)
            if counted:
                self._row.add_share(holder, -1)
            waiting = [table.first, *(table.aside if counted else ())]
        self._load.closed()
        self._wake(waiting)

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        table, row = self._table, self._row
        with table:
            before = table.first
            row.set(WAITING, waiting)
            row.set(FIRST, since_ns if waiting else 0)
            row.set(ASIDE, aside)
            first = table.first
            room = table.held < self.limit
        if room and first != before:
            self._wake([first])
        return room and first == row.index

    def _counted(self, holder: int) -> bool:
        """Whether the sessions of that key are limited."""
        if self.per_key is None or not holder:
            return False
        if holder > self._table.holders:
            counts = f"max_sessions_per_key counts sessions of {self._table.holders} API keys; this is key {holder}"
            raise UsageError(f"{counts}: name all keys in OPENENV_API_KEYS where the server is started")
        return True

    def _others_came_before(self, since_ns: int) -> bool:
        times = self._table.times()
        if not any(times):
            return False
        # Without this worker's own: while it lets some in, its row is out of date.
        times[self._row.index] = 0
        return any(0 < time < since_ns for time in times)

    def _wake(self, rows: list[int | None]) -> None:
        others = {row for row in rows if row is not None and row != self._row.index}
        if others:
            self._freed(sorted(others))


# Looking a member up on its Enum class costs more than the rest.
_TAKEN, _NONE, _NONE_FOR_KEY = SlotOutcome.TAKEN, SlotOutcome.NONE, SlotOutcome.NONE_FOR_KEY
