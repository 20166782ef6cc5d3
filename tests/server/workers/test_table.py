from __future__ import annotations

from multiprocessing import Pipe

import pytest

from openenv._processes import fork_process
from openenv.server.workers.table import ASIDE, DECIDED, FIRST, HELD, KEY, LEAVING, STUCK, WAITING, WorkerTable

LIMIT_S = 20.0
TIMES = 5000


def count(table, row, end):
    """Counts how often it has the lock, and how often another has it too; without a row, keeps the lock."""
    end.recv()
    if row is None:
        with table:
            end.send("locked")
            end.recv()
    mine = table.row(row)
    for _ in range(TIMES):
        with table:
            mine.add(HELD, 1)
            mine.add(DECIDED, 1)
            mine.add(STUCK, table.total(HELD) > 1)
            mine.add(HELD, -1)


@pytest.fixture
def table():
    table = WorkerTable(3)
    yield table
    table.close()


def other(table, row):
    """A process that counts when it is told to, and the pipe to it."""
    here, there = Pipe()
    process = fork_process("counts", count, table, row, there)
    process.start()
    there.close()
    return process, here


def end(process, pipe):
    process.join(LIMIT_S)
    pipe.close()
    assert process.exitcode is not None
    process.close()


def test_rows_are_counted_together(table):
    table.row(0).set(HELD, 3)
    table.row(2).add(HELD, 4)
    table.row(1).set(LEAVING, 2)
    table.row(2).set(WAITING, 1)
    table.row(1).set(KEY, 77)
    assert (table.total(HELD), table.total(LEAVING), table.total(WAITING)) == (7, 2, 1)
    assert table.has(77)
    assert not table.has(78)


def test_a_cleared_row_counts_nothing(table):
    row = table.row(1)
    for cell in (KEY, HELD, LEAVING, WAITING):
        row.set(cell, 5)
    table.row(0).set(HELD, 1)
    row.clear()
    assert (table.total(HELD), table.total(LEAVING), table.total(WAITING), table.has(5)) == (1, 0, 0, False)


def test_who_waits_longest(table):
    assert table.first is None
    table.row(2).set(FIRST, 10)
    table.row(0).set(FIRST, 30)
    table.row(1).set(ASIDE, 2)
    assert (table.first, table.aside) == (2, [1])
    table.row(2).clear()
    table.row(1).clear()
    assert (table.first, table.aside) == (0, [])


def test_shares_of_keys_are_counted_beside_the_rows():
    table = WorkerTable(3, holders=11)
    table.row(0).add_share(1, 2)
    table.row(2).add_share(1, 3)
    table.row(2).add_share(11, 5)
    assert [table.held_by(holder) for holder in (1, 2, 11)] == [5, 0, 5]
    assert len(table) == 3
    table.row(2).clear()
    assert [table.held_by(holder) for holder in (1, 11)] == [2, 0]
    assert not any(table.cells)
    table.close()


def test_one_process_at_a_time_has_the_lock(table):
    others = [other(table, row) for row in range(3)]
    for _, pipe in others:
        pipe.send("go")
    for each in others:
        end(*each)
    assert (table.total(DECIDED), table.total(STUCK)) == (3 * TIMES, 0)


def test_the_lock_of_a_dead_process_is_free(table):
    holder, pipe = other(table, None)
    pipe.send("go")
    assert pipe.recv() == "locked"
    waiting = other(table, 0)
    waiting[1].send("go")
    holder.kill()
    end(holder, pipe)
    end(*waiting)
    assert table.total(DECIDED) == TIMES
