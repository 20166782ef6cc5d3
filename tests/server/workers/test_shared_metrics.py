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
def metrics():
    before = total(METER.readings())
    metrics = SharedMetrics(2)
    metrics.host()
    metrics.before = before
    yield metrics
    METER.leave()
    metrics.close()


@pytest.fixture
def worker(metrics):
    """Starts a worker process in a row, which has counted when this returns."""
    started = []

    def start(row):
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(metrics.descriptor), str(row)],
            pass_fds=[metrics.descriptor],
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


def steps(metrics):
    def count(reading):
        return sum(reading.histogram(Phase.STEP).counts)

    return count(total(metrics.readings())) - count(metrics.before)


def test_every_process_is_read(metrics, worker):
    pids = {worker(0).pid, worker(1).pid}
    assert {reading.pid for reading in metrics.readings()[1:]} == pids
    assert [reading.worker for reading in metrics.readings()] == ["", "abc", "abc"]
    assert steps(metrics) == 20
    assert total(METER.readings()).value(Gauge.LIVE) == metrics.before.value(Gauge.LIVE) + 6


def test_the_counters_of_the_dead_are_kept_and_their_gauges_are_not(metrics, worker):
    worker(0)
    victim = worker(1)
    victim.kill()
    victim.wait()
    assert steps(metrics) == 20  # also before anybody has noticed
    metrics.fold(1)
    assert steps(metrics) == 20
    assert len(metrics.readings()) == 2
    found = total(metrics.readings())
    assert found.value(Gauge.LIVE) == metrics.before.value(Gauge.LIVE) + 3
    assert sum(found.errors().values()) == sum(metrics.before.errors().values()) + 2


def test_a_row_begins_with_nothing_for_the_next_worker(metrics, worker):
    worker(1).kill()
    metrics.fold(1)
    worker(1)
    assert steps(metrics) == 20
    assert total(metrics.readings()).value(Gauge.LIVE) == metrics.before.value(Gauge.LIVE) + 3


def test_what_the_parent_counts_is_seen_by_all(metrics):
    METER.add(Count.WORKER_RESTARTS, 2)
    other = SharedMetrics(descriptor=os.dup(metrics.descriptor))
    found = total(other.readings()).value(Count.WORKER_RESTARTS)
    other.close()
    assert found == metrics.before.value(Count.WORKER_RESTARTS) + 2


def test_a_row_of_another_version_is_left_out(metrics, worker):
    worker(0)
    metrics._row(1)[LAYOUT_CELL] += 1
    assert steps(metrics) == 0
    metrics.fold(0)
    assert steps(metrics) == 0
