from __future__ import annotations

import os
import subprocess
import sys

import pytest

from openenv.server.workers.table import SharedMetrics
from openenv.telemetry.metrics import LAYOUT_CELL, METER, Count, Gauge, Phase, total

pytestmark = pytest.mark.real

# A worker process: counts, and ends when it is told to.
WORKER = """
import sys
from openenv.errors import StepFailed
from openenv.telemetry.metrics import METER, Gauge, Phase
from openenv.server.workers.table import SharedMetrics

SharedMetrics(descriptor=int(sys.argv[1])).join(int(sys.argv[2]), 0xabc)
METER.start()
METER.observe_many(Phase.STEP, 0.5, 10)
METER.failed(StepFailed("it raised"))
METER.add(Gauge.LIVE, 3)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ledger():
    before = total(METER.readings())
    ledger = SharedMetrics(2)
    ledger.host()
    ledger.before = before
    yield ledger
    METER.leave()
    ledger.close()


@pytest.fixture
def worker(ledger):
    """Starts a worker process in a row, which has counted when this returns."""
    started = []

    def start(row):
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(ledger.descriptor), str(row)],
            pass_fds=[ledger.descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def steps(ledger):
    def count(reading):
        return sum(reading.histogram(Phase.STEP).counts)

    return count(total(ledger.readings())) - count(ledger.before)


def test_every_process_is_read(ledger, worker):
    pids = {worker(0).pid, worker(1).pid}
    assert {reading.pid for reading in ledger.readings()[1:]} == pids
    assert [reading.worker for reading in ledger.readings()] == ["", "abc", "abc"]
    assert steps(ledger) == 20
    assert total(METER.readings()).value(Gauge.LIVE) == ledger.before.value(Gauge.LIVE) + 6


def test_the_counters_of_the_dead_are_kept_and_their_gauges_are_not(ledger, worker):
    worker(0)
    victim = worker(1)
    victim.kill()
    victim.wait()
    assert steps(ledger) == 20  # also before anybody has noticed
    ledger.fold(1)
    assert steps(ledger) == 20
    assert len(ledger.readings()) == 2
    found = total(ledger.readings())
    assert found.value(Gauge.LIVE) == ledger.before.value(Gauge.LIVE) + 3
    assert sum(found.errors().values()) == sum(ledger.before.errors().values()) + 2


def test_a_row_begins_with_nothing_for_the_next_worker(ledger, worker):
    worker(1).kill()
    ledger.fold(1)
    worker(1)
    assert steps(ledger) == 20
    assert total(ledger.readings()).value(Gauge.LIVE) == ledger.before.value(Gauge.LIVE) + 3


def test_what_the_parent_counts_is_seen_by_all(ledger):
    METER.add(Count.WORKER_RESTARTS, 2)
    other = SharedMetrics(descriptor=os.dup(ledger.descriptor))
    found = total(other.readings()).value(Count.WORKER_RESTARTS)
    other.close()
    assert found == ledger.before.value(Count.WORKER_RESTARTS) + 2


def test_a_row_of_another_version_is_left_out(ledger, worker):
    worker(0)
    ledger._row(1)[LAYOUT_CELL] += 1
    assert steps(ledger) == 0
    ledger.fold(0)
    assert steps(ledger) == 0
