"""The session slots of a whole server, as one of its workers sees them."""

from __future__ import annotations

from collections.abc import Callable

from .load import Load
from .table import HELD, LEAVING, WAITING, Table

__all__ = ["SharedSlots"]


class SharedSlots:
    """Slots counted in the table that all workers share (see `sessions.slots.Slots`).

    Args:
        table: The shared table.
        index: This worker's row.
        limit: Most slots taken by all workers together.
        load: Hears of sessions that open and close here.
        freed: Called with the rows of other workers, in which newcomers wait for the slot that was just given back.
    """

    def __init__(self, table: Table, index: int, limit: int, load: Load, freed: Callable[[list[int]], None]):
        self.limit = limit
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

    def take(self) -> bool:
        with self._table:
            if self._table.held >= self.limit:
                return False
            self._row.add(HELD, 1)
        self._load.opened()
        return True

    def leave(self) -> None:
        self._row.add(LEAVING, 1)

    def give(self) -> None:
        with self._table:
            self._row.add(LEAVING, -1)
            self._row.add(HELD, -1)
            waiting = self._table.waiting()
        self._load.closed()
        others = [index for index in waiting if index != self._row.index]
        if others:
            self._freed(others)

    def expect(self, waiting: int) -> None:
        with self._table:
            self._row.set(WAITING, waiting)
            room = waiting > 0 and self._table.held < self.limit
        if room:  # it was given back after this process had looked, and before it said that it waits
            self._freed([self._row.index])
