"""What the workers of a server count, in memory that they share."""

from __future__ import annotations

import fcntl
import mmap
import os

__all__ = ["Row", "Table"]

# A row is a line of the CPU's cache, so that no worker slows another down by writing into its own.
ROW_BYTES = 64
CELLS = ROW_BYTES // 8
# The cells of a row. Each has one writer while the worker lives: the worker.
KEY, HELD, LEAVING, WAITING, DRIFT, BEAT = range(6)


class Table:
    """Rows of numbers, one for each worker process, and a lock that dies with its holder.

    Sums over rows may be read at any time. What must not change between a look and a write goes under the lock:
    `with table: ...`. The lock is the process's: it excludes other processes, not other threads.

    Args:
        descriptor: Of a table that another process made, which this object owns from here on; None makes a new one.
        rows: How many rows a new one has.
    """

    def __init__(self, rows: int = 0, descriptor: int | None = None):
        if descriptor is None:
            descriptor = os.memfd_create("openenv-table")
            os.ftruncate(descriptor, rows * ROW_BYTES)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self.cells = memoryview(self._map).cast("q")

    def __len__(self) -> int:
        return len(self.cells) // CELLS

    def __enter__(self) -> None:
        # A record lock and not flock: that one belongs to the open file, which the processes share.
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def row(self, index: int) -> Row:
        return Row(self, index)

    @property
    def held(self) -> int:
        """Sessions that hold a slot, of all workers."""
        return sum(self.cells[HELD::CELLS])

    @property
    def leaving(self) -> int:
        """Those of them that are closing."""
        return sum(self.cells[LEAVING::CELLS])

    def waiting(self) -> list[int]:
        """Rows of the workers in which newcomers wait for a slot."""
        return [index for index, count in enumerate(self.cells[WAITING::CELLS]) if count]

    def has(self, key: int) -> bool:
        """Whether there is a worker of that key."""
        return key in self.cells[KEY::CELLS].tolist()

    def close(self) -> None:
        """Gives the memory back."""
        self.cells.release()
        self._map.close()
        os.close(self.descriptor)


class Row:
    """The numbers of one worker process."""

    __slots__ = ("_cells", "_first", "index")

    def __init__(self, table: Table, index: int):
        self.index = index
        self._cells = table.cells
        self._first = index * CELLS

    def get(self, cell: int) -> int:
        return self._cells[self._first + cell]

    def set(self, cell: int, value: int) -> None:
        self._cells[self._first + cell] = value

    def add(self, cell: int, value: int) -> None:
        """For the cell's one writer: nobody else's change can be lost."""
        self._cells[self._first + cell] += value

    def clear(self) -> None:
        """Forgets a worker process that is gone."""
        for cell in range(CELLS):
            self.set(cell, 0)
