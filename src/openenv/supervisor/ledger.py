"""The numbers of all processes of a server, in memory that they share: what `/metrics` shows."""

from __future__ import annotations

import fcntl
import mmap
import os

from ..metrics import CELLS, METER, Reading
from ..metrics.layout import KEY_CELL, LAYOUT, LAYOUT_CELL

__all__ = ["Ledger"]

ROW_BYTES = 8 * CELLS


class Ledger:
    """A row of cells for each worker process, and before them one that stays: the parent's.

    In that one the parent counts, and keeps what workers had counted that are gone: a counter never goes down.
    Each row has one writer at a time. A look at all of them and the parent's moves from one row to another exclude
    each other, by a lock that dies with its holder.

    Args:
        descriptor: Of a ledger that another process made, which this object owns from here on; None makes a new one.
        rows: How many workers a new one has room for.
    """

    def __init__(self, rows: int = 0, descriptor: int | None = None):
        if descriptor is None:
            descriptor = os.memfd_create("openenv-ledger")
            os.ftruncate(descriptor, (1 + rows) * ROW_BYTES)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self._cells = memoryview(self._map).cast("q")

    def host(self) -> None:
        """Has the parent's process count in the row that stays."""
        cells = self._row(0)
        cells[LAYOUT_CELL] = LAYOUT
        METER.move(cells, self.readings)

    def join(self, index: int, key: int) -> None:
        """Has this process count in a worker's row, under the worker's key."""
        cells = self._row(1 + index)
        cells[KEY_CELL] = key
        METER.move(cells, self.readings)

    def fold(self, index: int) -> None:
        """A worker process is gone: its counters are kept, its gauges are forgotten."""
        row, kept = self._row(1 + index), self._row(0)
        with _Lock(self.descriptor):
            last = Reading(row.tolist())
            if last.legible:  # one of another version means other things by its cells
                for cell, value in last.lasting():
                    kept[cell] += value
            row[:] = memoryview(bytes(ROW_BYTES)).cast("q")

    def readings(self) -> list[Reading]:
        """The numbers of every process there is, the parent's first."""
        with _Lock(self.descriptor):
            cells = self._cells.tolist()
        rows = (Reading(cells[first : first + CELLS]) for first in range(0, len(cells), CELLS))
        return [row for row in rows if row.legible]

    def close(self) -> None:
        """Gives the memory back, if this process does not count there."""
        self._cells.release()
        self._map.close()
        os.close(self.descriptor)

    def _row(self, index: int) -> memoryview:
        return self._cells[index * CELLS : (index + 1) * CELLS]


class _Lock:
    """Between processes; a record lock, since the kernel releases it when its holder dies."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
