from __future__ import annotations

import os
import signal
from multiprocessing import Pipe

import pytest

from openenv._processes import fork_process
from openenv.errors import StepFailed
from openenv.server.workers.table import SharedMetrics
from openenv.telemetry.metrics import METER, Count, Gauge, Phase, total

pytestmark = pytest.mark.real


def count(metrics, row, ready):
    """A worker process: counts, until it is killed."""
    METER.reset()
    metrics.join(row, 0xABC)
    METER.start()
    METER.observe_many(Phase.STEP, 0.5, 10)
    METER.failed(StepFailed("it raised"))
    METER.add(Gauge.LIVE, 3)
    os.write(ready, b"ready")
    signal.pause()


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
        reading, writing = os.pipe()
        process = fork_process("counts", count, metrics, row, writing)
        process.start()
        started.append(process)
        assert os.read(reading, 5) == b"ready"
        os.close(reading)
        os.close(writing)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()
        process.close()


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
    victim.join()
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
    here, there = Pipe()

    def look():
        there.recv()
        there.send(total(metrics.readings()).value(Count.WORKER_RESTARTS))

    process = fork_process("looks", look)
    process.start()
    METER.add(Count.WORKER_RESTARTS, 2)
    with here, there:
        here.send("now")
        assert here.recv() == metrics.before.value(Count.WORKER_RESTARTS) + 2
    process.join()
    process.close()
