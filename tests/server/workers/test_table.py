from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from openenv.server.workers.table import ASIDE, FIRST, HELD, KEY, LEAVING, WAITING, WorkerTable

LIMIT_S = 20.0

# A process that adds to its row under the lock, or takes the lock and keeps it.
OTHER = """
import sys
from openenv.server.workers.table import HELD, WorkerTable
table, row = WorkerTable(descriptor=int(sys.argv[1])), int(sys.argv[2])
print("there", flush=True)
sys.stdin.readline()
if row < 0:
    with table:
        print("locked", flush=True)
        sys.stdin.readline()
for _ in range(5000):
    with table:
        if table.total(HELD) < 1000:
            table.row(row).add(HELD, 1)
"""


@pytest.fixture
def table():
    table = WorkerTable(3)
    yield table
    table.close()


def other(table, row):
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(table.descriptor), str(row)],
        pass_fds=[table.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n"
    return process


def end(*processes):
    for process in processes:
        process.communicate(timeout=LIMIT_S)


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
    here = WorkerTable(3, holders=11)
    there = WorkerTable(descriptor=os.dup(here.descriptor))
    here.row(0).add_share(1, 2)
    there.row(2).add_share(1, 3)
    there.row(2).add_share(11, 5)
    assert [here.held_by(holder) for holder in (1, 2, 11)] == [5, 0, 5]
    assert (len(there), there.holders) == (3, 11)
    here.row(2).clear()
    assert [there.held_by(holder) for holder in (1, 11)] == [2, 0]
    assert not any(here.cells)
    here.close()
    there.close()


def test_processes_never_count_past_a_limit(table):
    others = [other(table, row) for row in range(3)]
    for process in others:
        process.stdin.write("go\n")
        process.stdin.flush()
    end(*others)
    assert table.total(HELD) == 1000


def test_the_lock_of_a_dead_process_is_free(table):
    holder = other(table, -1)
    holder.stdin.write("go\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "locked\n"
    waiting = other(table, 0)
    waiting.stdin.write("go\n")
    waiting.stdin.flush()
    os.kill(holder.pid, signal.SIGKILL)
    end(holder, waiting)
    assert table.total(HELD) == 1000
