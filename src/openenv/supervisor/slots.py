"""The session slots of a whole server, as one of its workers sees them."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UsageError
from ..sessions.slots import Room
from .load import Load
from .table import ASIDE, FIRST, HELD, LEAVING, STUCK, WAITING, Table

__all__ = ["SharedSlots"]


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
        table: Table,
        index: int,
        limit: int,
        load: Load,
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

    def take(self, since_ns: int, holder: int = 0) -> Room:
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
        # Without this worker's own: while it lets some in, what it has told of them is not true any more.
        times[self._row.index] = 0
        return any(0 < time < since_ns for time in times)

    def _wake(self, rows: list[int | None]) -> None:
        others = {row for row in rows if row is not None and row != self._row.index}
        if others:
            self._freed(sorted(others))


# Looking a member up on its Enum class costs more than the rest.
_TAKEN, _NONE, _NONE_FOR_KEY = Room.TAKEN, Room.NONE, Room.NONE_FOR_KEY
