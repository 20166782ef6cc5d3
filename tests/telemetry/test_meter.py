from __future__ import annotations

import os
from array import array

import pytest

from openenv.errors import ConnectTimeout, FactoryFailed, OpenEnvError, StepFailed, UnknownSession
from openenv.telemetry.metrics import (
    BUCKET_BOUNDS,
    CELLS,
    KEY_CELL,
    PID_CELL,
    Count,
    Gauge,
    Meter,
    Phase,
    Reading,
    total,
)


@pytest.fixture
def meter():
    meter = Meter()
    meter.start()
    return meter


def counted(meter, phase):
    """The bounds of the buckets that something fell into, and how much."""
    counts = meter.reading().histogram(phase).counts
    bounds = [*BUCKET_BOUNDS, float("inf")]
    return {bound: count for bound, count in zip(bounds, counts, strict=True) if count}


def test_every_number_has_a_cell_of_its_own():
    cells = [gauge.cell for gauge in Gauge] + [count.cell for count in Count]
    cells += [cell for phase in Phase for cell in range(phase.cell, phase.cell + 65)]
    assert len(set(cells)) == len(cells)
    assert max(cells) < CELLS
    assert not {PID_CELL, KEY_CELL} & set(cells)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-7, 3e-6, 0.0007, 0.5, 1.0, 59.0, 137.0])
def test_a_duration_falls_into_the_first_bucket_that_bounds_it(meter, seconds):
    meter.observe(Phase.STEP, seconds)
    assert counted(meter, Phase.STEP) == {next(bound for bound in BUCKET_BOUNDS if seconds <= bound): 1}
    assert counted(meter, Phase.RESET) == {}


@pytest.mark.parametrize("seconds", [138.0, 86_400.0, 1e9])
def test_what_takes_longer_than_all_bounds_is_counted_as_that(meter, seconds):
    meter.observe(Phase.SEND, seconds)
    assert counted(meter, Phase.SEND) == {float("inf"): 1}
    assert meter.reading().histogram(Phase.SEND).seconds == pytest.approx(seconds)


def test_durations_add_up(meter):
    meter.observe(Phase.STEP, 0.25)
    meter.observe_many(Phase.STEP, 0.5, 4)
    found = meter.reading().histogram(Phase.STEP)
    assert (sum(found.counts), found.seconds) == (5, pytest.approx(2.25))


def test_errors_are_counted_by_class(meter):
    class Own(StepFailed):
        pass

    for error in (FactoryFailed("Env"), StepFailed("a"), Own("b"), ConnectTimeout("c"), KeyError("d")):
        meter.failed(error)
    assert meter.reading().errors() == {
        (FactoryFailed, "environment"): 1,
        (StepFailed, "environment"): 2,
        (ConnectTimeout, "infrastructure"): 1,
        (OpenEnvError, "infrastructure"): 1,
    }


def test_an_error_is_counted_with_the_blame_that_it_has_itself(meter):
    meter.failed(UnknownSession("s"))
    meter.failed(UnknownSession.of_ended_worker("s"))
    assert meter.reading().errors() == {(UnknownSession, "client"): 1, (UnknownSession, "infrastructure"): 1}


def test_nothing_is_counted_before_it_starts():
    meter = Meter()
    meter.failed(StepFailed("a"))
    assert (meter.on, meter.reading().errors(), meter.reading().pid) == (False, {}, 0)


def test_gauges_go_up_and_down(meter):
    meter.add(Gauge.CONNECTIONS, 3)
    meter.add(Gauge.CONNECTIONS, -1)
    meter.set(Gauge.QUEUED, 7)
    meter.add(Count.WORKER_RESTARTS)
    values = [meter.reading().value(what) for what in (Gauge.CONNECTIONS, Gauge.QUEUED, Count.WORKER_RESTARTS)]
    assert values == [2, 7, 1]


def test_it_moves_with_all_that_it_has_counted(meter):
    meter.observe(Phase.STEP, 0.1)
    cells = memoryview(array("q", bytes(8 * CELLS)))
    cells[Count.WORKER_RESTARTS.cell] = 5  # what others had left there
    meter.add(Count.WORKER_RESTARTS)
    meter.move(cells, lambda: [Reading(cells.tolist())] * 2)
    meter.observe(Phase.STEP, 0.1)
    assert cells[Count.WORKER_RESTARTS.cell] == 6
    assert cells[PID_CELL] == os.getpid()
    assert sum(total(meter.readings()).histogram(Phase.STEP).counts) == 4
    meter.leave()
    meter.observe(Phase.STEP, 0.1)
    assert sum(Reading(cells.tolist()).histogram(Phase.STEP).counts) == 2
    assert sum(total(meter.readings()).histogram(Phase.STEP).counts) == 3
