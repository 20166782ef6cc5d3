from __future__ import annotations

import random

import pytest

from openenv.errors import StepFailed
from openenv.telemetry.metrics import BUCKET_BOUNDS, Gauge, Meter, Phase, Reading, quantile, total

BOUNDS = [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.5),
        ([0, 0, 10, 0], 0.5, 3.0),
        ([5, 5, 0, 0], 0.5, 1.0),
        ([5, 5, 0, 0], 0.75, 1.5),
        ([1, 0, 0, 99], 0.99, 4.0),
        ([0, 4, 0, 0], 0.0, None),
        ([4, 0, 4, 0], 1.0, 4.0),
    ],
)
def test_a_quantile_lies_in_its_bucket(counts, share, value):
    assert quantile(BOUNDS, counts, share) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_are_true_to_a_factor_of_two(share):
    chance = random.Random(7)
    meter = Meter()
    seconds = sorted(chance.lognormvariate(-7, 1.5) for _ in range(5000))
    for value in seconds:
        meter.observe(Phase.STEP, value)
    found = quantile(BUCKET_BOUNDS, meter.reading().histogram(Phase.STEP).counts, share)
    assert 0.5 <= found / seconds[int(share * 5000)] <= 2


def test_several_processes_are_one():
    meters = [Meter(), Meter()]
    for meter in meters:
        meter.start()
        meter.observe(Phase.RESET, 1.0)
        meter.add(Gauge.LIVE, 2)
    meters[1].failed(StepFailed("it raised"))
    found = total(meter.reading() for meter in meters)
    assert (sum(found.histogram(Phase.RESET).counts), found.value(Gauge.LIVE), found.pid) == (2, 4, 0)
    assert found.errors() == {(StepFailed, "environment"): 1}
    assert total([]).histogram(Phase.RESET).seconds == 0


def test_what_lasts_of_a_process_is_what_only_grows():
    meter = Meter()
    meter.start()
    meter.add(Gauge.LIVE, 2)
    meter.add(Gauge.STUCK_THREADS, 1)
    meter.observe(Phase.RESET, 1.0)
    meter.failed(StepFailed("it raised"))
    kept = Reading([0] * len(meter.reading().cells))
    for cell, value in meter.reading().lasting():
        kept.cells[cell] = value
    assert kept.errors() == {(StepFailed, "environment"): 1}
    assert kept.histogram(Phase.RESET) == meter.reading().histogram(Phase.RESET)
    assert [kept.value(gauge) for gauge in Gauge] == [0] * len(Gauge)
    assert kept.pid == 0
