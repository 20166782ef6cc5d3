"""Memory that the processes of a server share: sessions and slots by worker, and the numbers of `/metrics`."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..._files import fcntl
from ..._shared_memory import memory_file
from ...errors import UsageError
from ...runtime.admission import SlotOutcome
from ...telemetry.metrics import CELLS, KEY_CELL, METER, Reading

# A row is two whole lines of the CPU's cache, so that no worker slows another down by writing into its own. Sessions
# by API key, which are rarely read, have separate lines behind all rows.
LINE_BYTES = 128
ROW_CELLS = LINE_BYTES // 8
# The cells of a row. Each has one writer while the worker lives: the worker.
# FIRST: when the first of the waiting newcomers arrived (monotonic nanoseconds).
# HELD: sessions that hold a slot. LEAVING: those of them that are closing.
# WAITING: newcomers that wait for a slot, without those that stand aside.
# ASIDE: number of newcomers that wait until sessions of their key end.
# DECIDED: connections that have asked for a session, or shown that they need none.
# STUCK: slots of sessions that have ended with a call that does not return.
KEY, HELD, LEAVING, WAITING, DRIFT, BEAT, FIRST, ASIDE, DECIDED, STUCK = range(10)
# In a line before all rows: whether the server as a whole accepts sessions.
_SERVING = 0


class SharedCells:
    """Numbers in memory that a process shares with its forks, and a lock between them: `with cells: ...`.

    The kernel releases the lock when its holder dies. It excludes other processes, not other threads.

    Args:
        name: The name of the memory, shown by tools that inspect the process.
        size: Its bytes.
    """

    def __init__(self, name: str, size: int):
        self.descriptor = memory_file(name)
        os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, 0)
        self._all = memoryview(self._map).cast("q")

    def __enter__(self) -> None:
        # A record lock and not flock: a flock belongs to the open file, which the processes share.
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Frees the memory, unless another part of this process holds a view of it."""
        self._all.release()
        self._map.close()
        os.close(self.descriptor)


class WorkerTable(SharedCells):
    """Rows of numbers, one for each worker process.

    Sums over rows may be read at any time. A write that depends on an earlier read needs the lock.

    Args:
        rows: Their number.
        holders: The number of API keys, counted from 1, for which it counts sessions.
    """

    def __init__(self, rows: int, holders: int = 0):
        lines = -(-holders // ROW_CELLS)
        super().__init__("openenv-table", LINE_BYTES * (1 + rows * (1 + lines)))
        self.holders = holders
        end = ROW_CELLS * (1 + rows)
        self.cells = self._all[ROW_CELLS:end]
        self.shares = self._all[end:]
        self.stride = ROW_CELLS * lines

    def __len__(self) -> int:
        return len(self.cells) // ROW_CELLS

    def row(self, index: int) -> WorkerRow:
        return WorkerRow(self, index)

    def total(self, cell: int) -> int:
        """The sum of a cell over all workers."""
        return sum(self.cells[cell::ROW_CELLS])

    @property
    def serving(self) -> bool:
        """Whether all workers have started and the server is not stopping; the parent sets it."""
        return bool(self._all[_SERVING])

    @serving.setter
    def serving(self, serves: bool) -> None:
        self._all[_SERVING] = serves

    def times(self) -> list[int]:
        """When the first waiting newcomer arrived, by row; 0 if no newcomer waits there."""
        return self.cells[FIRST::ROW_CELLS].tolist()

    @property
    def first(self) -> int | None:
        """The row of the newcomer that has waited longest."""
        times = self.times()
        return times.index(min(filter(None, times))) if any(times) else None

    @property
    def aside(self) -> list[int]:
        """Rows in which newcomers wait until sessions of their key end."""
        return [index for index, count in enumerate(self.cells[ASIDE::ROW_CELLS]) if count]

    def held_by(self, holder: int) -> int:
        """The number of sessions of one API key in all workers."""
        return sum(self.shares[holder - 1 :: self.stride])

    def has(self, key: int) -> bool:
        """Whether a worker has that key."""
        return key in self.cells[KEY::ROW_CELLS].tolist()

    def close(self) -> None:
        self.cells.release()
        self.shares.release()
        super().close()


class WorkerRow:
    """The numbers of one worker process."""

    __slots__ = ("_cells", "_first", "_shares", "_stride", "index")

    def __init__(self, table: WorkerTable, index: int):
        self.index = index
        self._cells = table.cells
        self._first = index * ROW_CELLS
        self._shares = table.shares
        self._stride = table.stride

    def get(self, cell: int) -> int:
        return self._cells[self._first + cell]

    def set(self, cell: int, value: int) -> None:
        self._cells[self._first + cell] = value

    def add(self, cell: int, value: int) -> None:
        """Adds to a cell. Only the cell's one writer may call it, so no change can be lost."""
        self._cells[self._first + cell] += value

    def add_share(self, holder: int, value: int) -> None:
        """Adds to the number of its sessions of one API key."""
        self._shares[self.index * self._stride + holder - 1] += value

    def clear(self) -> None:
        """Clears the row of a worker process that has ended."""
        for cell in range(ROW_CELLS):
            self.set(cell, 0)
        for share in range(self.index * self._stride, (self.index + 1) * self._stride):
            self._shares[share] = 0


METRICS_ROW_BYTES = 8 * CELLS


class SharedMetrics(SharedCells):
    """A row of cells for each worker process, and before them the permanent row of the parent.

    The parent counts in its row, and adds the counters of ended workers, so that a counter never decreases. Each row
    has one writer at a time. The lock separates a read of all rows from the parent's moves between rows.

    Args:
        rows: Number of worker rows.
    """

    def __init__(self, rows: int):
        super().__init__("openenv-metrics", METRICS_ROW_BYTES * (1 + rows))

    def host(self) -> None:
        """Makes the parent process count in the permanent row."""
        METER.move(self._row(0), self.readings)

    def join(self, index: int, key: int) -> None:
        """Makes this process count in a worker's row, under the worker's key."""
        cells = self._row(1 + index)
        cells[KEY_CELL] = key
        METER.move(cells, self.readings)

    def fold(self, index: int) -> None:
        """A worker process has ended: keeps its counters and drops its gauges."""
        row, kept = self._row(1 + index), self._row(0)
        with self:
            for cell, value in Reading(row.tolist()).lasting():
                kept[cell] += value
            row[:] = memoryview(bytes(METRICS_ROW_BYTES)).cast("q")

    def readings(self) -> list[Reading]:
        """The metrics of the parent, and of the workers that serve sessions."""
        with self:
            cells = self._all.tolist()
        parent, *workers = (Reading(cells[first : first + CELLS]) for first in range(0, len(cells), CELLS))
        return [parent, *(reading for reading in workers if reading.pid)]

    def _row(self, index: int) -> memoryview:
        return self._all[index * CELLS : (index + 1) * CELLS]


class WorkerLoad:
    """A worker's part in counting its load: its sessions, plus its connections that may open one.

    The parent counts every connection that it hands over as a load of one. The worker counts only later differences:
    a connection that opens a session changes nothing, so it is never counted twice or missed.

    The parent also reads how many connections are decided: they have asked for a session, or shown that they need
    none. Connections of protocol v1 and connections that only use HTTP are decided at once. A connection of
    protocol v2 opens its session a moment later, and keeps its load until then.
    """

    __slots__ = ("_asked", "_begun", "_count", "_promised", "_row", "_undecided", "_weighing")

    def __init__(self, row: WorkerRow):
        self._row = row
        self._promised = self._asked = self._begun = False
        self._undecided: deque[int] = deque()
        # The number of all connections so far, and the number of undecided ones that count as a load.
        self._count = self._weighing = 0

    def begin(self) -> None:
        """A connection requests WebSocket. A session that it opens before `end` takes over its load."""
        self._promised = self._begun = True
        self._asked = False

    def end(self, gone: bool = False) -> int | None:
        """The connection was answered. Its load becomes 0 if it has closed, or if its request for a session failed.

        Args:
            gone: Whether the connection was closed or forwarded.

        Returns:
            The argument for a later `give_up`, if the connection has not asked for a session yet; otherwise None.
        """
        weighs, self._promised = self._promised, False
        self._begun = False
        if self._asked or gone:
            if weighs:
                self._row.add(DRIFT, -1)
            self.note_decision()
            return None
        self._weighing += weighs
        self._count += 1
        self._undecided.append(self._count)
        return self._count

    def give_up(self, number: int) -> None:
        """A connection has not asked for a session for a while: sets its load to 0."""
        if self._undecided and self._undecided[0] <= number:  # the ones before it are older
            self._decide_oldest()

    def note_request(self) -> None:
        """A client requested a session: it has a slot (counted by `opened`), waits for one, or was refused."""
        if self._begun:
            self._asked = True
        elif self._undecided:
            self._decide_oldest()

    def _decide_oldest(self) -> None:
        self._undecided.popleft()
        self.note_decision()
        if self._weighing > len(self._undecided):  # no session has taken over its load
            self._weighing -= 1
            self._row.add(DRIFT, -1)

    def note_decision(self) -> None:
        """A connection is decided."""
        self._row.add(DECIDED, 1)

    def opened(self) -> None:
        """A session was opened: it takes over the load of a connection without a session."""
        if self._promised:
            self._promised = False
        elif self._weighing:
            self._weighing -= 1
        else:
            self._row.add(DRIFT, 1)

    def closed(self) -> None:
        """A session has ended, or a connection that never asked for one has closed."""
        self._row.add(DRIFT, -1)


@dataclass(eq=False)
class SharedSlots:
    """Slots counted in the table that all workers share (see `runtime.admission.Slots`).

    A hanging worker that has the first newcomer blocks the newcomers of all workers until the parent replaces it.

    Attributes:
        table: The shared table.
        row: This worker's row.
        limit: Number of slots, shared by all workers.
        load: Counts the sessions that open and close here.
        freed: Called with the rows of other workers that may admit newcomers now.
        per_key: Most slots that one API key may take; None for no limit.
    """

    table: WorkerTable
    row: WorkerRow
    limit: int
    load: WorkerLoad
    freed: Callable[[list[int]], None]
    per_key: int | None = None
    on_free: Callable[[], None] | None = None

    @property
    def held(self) -> int:
        return self.table.total(HELD)

    @property
    def leaving(self) -> int:
        return self.table.total(LEAVING)

    @property
    def waiting(self) -> int:
        return self.table.total(WAITING)

    @property
    def stuck(self) -> int:
        return self.table.total(STUCK)

    def add_stuck(self, change: int) -> None:
        self.row.add(STUCK, change)

    def note_request(self) -> None:
        self.load.note_request()

    def take(self, since_ns: int, holder: int = 0) -> SlotOutcome:
        counted = self._counted(holder)
        table = self.table
        with table:
            others = table.times()
            others[self.row.index] = 0  # its own row is out of date while it admits newcomers
            if table.total(HELD) >= self.limit or any(0 < time < since_ns for time in others):
                return _NONE
            if counted:
                assert self.per_key is not None
                if table.held_by(holder) >= self.per_key:
                    return _NONE_FOR_KEY
                self.row.add_share(holder, 1)
            self.row.add(HELD, 1)
        self.load.opened()
        return _TAKEN

    def leave(self) -> None:
        self.row.add(LEAVING, 1)

    def give(self, holder: int = 0) -> None:
        counted = self._counted(holder)
        table = self.table
        with table:
            self.row.add(LEAVING, -1)
            self.row.add(HELD, -1)
            if counted:
                self.row.add_share(holder, -1)
            waiting = [table.first, *(table.aside if counted else ())]
        self.load.closed()
        self._wake(waiting)

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        table, row = self.table, self.row
        with table:
            before = table.first
            row.set(WAITING, waiting)
            row.set(FIRST, since_ns if waiting else 0)
            row.set(ASIDE, aside)
            first = table.first
            room = table.total(HELD) < self.limit
        if room and first != before:
            self._wake([first])
        return room and first == row.index

    def _counted(self, holder: int) -> bool:
        """Whether that key has a limit of sessions."""
        if self.per_key is None or not holder:
            return False
        if holder > self.table.holders:
            counts = f"max_sessions_per_key counts sessions of {self.table.holders} API keys; this is key {holder}"
            raise UsageError(f"{counts}: set OPENENV_API_KEYS to all keys in the process that starts the server")
        return True

    def _wake(self, rows: list[int | None]) -> None:
        others = {row for row in rows if row is not None and row != self.row.index}
        if others:
            self.freed(sorted(others))


# Looking a member up on its Enum class costs more than the rest.
_TAKEN, _NONE, _NONE_FOR_KEY = SlotOutcome.TAKEN, SlotOutcome.NONE, SlotOutcome.NONE_FOR_KEY
