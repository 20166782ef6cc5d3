from __future__ import annotations

import pytest

from openenv.cli.top import Interval, Scrape, Timing
from openenv.errors import FactoryFailed, ProtocolViolation, StepFailed
from openenv.server.prometheus import exposition
from openenv.telemetry.metrics import Count, Gauge, Meter, Phase


@pytest.fixture
def meter():
    meter = Meter()
    meter.start()
    return meter


def scrape(meter, at=0.0):
    return Scrape.parse(exposition([meter.reading()], 3, 8).decode(), at)


def test_it_reads_what_the_server_says(meter):
    meter.add(Gauge.LIVE, 2)
    meter.add(Gauge.QUEUED, 5)
    meter.add(Count.WORKER_RESTARTS, 4)
    meter.failed(StepFailed("it raised"))
    found = scrape(meter)
    assert [found.value(name) for name in ("slots_held", "slots_limit", "queue_length", "workers")] == [3, 8, 5, 1]
    assert found.value("worker_restarts_total") == 4
    assert found.by("sessions", "state") == {"starting": 0, "live": 2, "executing": 0, "detached": 0, "closing": 0}
    assert found.errors() == {("StepFailed", "environment"): 1}
    assert found.value("what_a_later_server_tells") == 0


def test_an_interval_tells_what_happened_in_it_and_nothing_else(meter):
    for _ in range(50):
        meter.observe(Phase.STEP, 9.0)
    meter.failed(StepFailed("it raised"))
    before = scrape(meter)
    for _ in range(99):
        meter.observe(Phase.STEP, 0.003)
    meter.observe(Phase.STEP, 0.7)
    meter.failed(StepFailed("it raised"))
    meter.failed(StepFailed("it raised"))
    meter.failed(FactoryFailed("Env"))
    interval = Interval(before, scrape(meter, at=4.0))
    timing = interval.timing("step")
    assert timing.per_second == pytest.approx(25)
    assert timing.mean == pytest.approx((99 * 0.003 + 0.7) / 100)
    assert 0.002 <= timing.p50 <= 0.0042
    assert 0.002 <= timing.p99 <= 0.0042
    assert interval.errors() == {("StepFailed", "environment"): 2, ("FactoryFailed", "environment"): 1}


def test_where_nothing_happened_there_is_nothing_to_tell(meter):
    meter.observe(Phase.STEP, 1.0)
    interval = Interval(scrape(meter), scrape(meter, at=1.0))
    assert interval.timing("step") == Timing(0.0, None, None, None)
    assert interval.timing("reset") == Timing(0.0, None, None, None)


def test_a_server_that_was_started_anew_counts_from_nothing(meter):
    for _ in range(50):
        meter.observe(Phase.STEP, 0.5)
        meter.failed(StepFailed("it raised"))
    fresh = Meter()
    fresh.start()
    fresh.observe(Phase.STEP, 0.25)
    fresh.failed(StepFailed("it raised"))
    interval = Interval(scrape(meter), scrape(fresh, at=1.0))
    assert interval.timing("step")[:2] == (1.0, 0.25)
    assert interval.errors() == {("StepFailed", "environment"): 1}


@pytest.mark.parametrize("text", ["<html>no</html>", "python_info 1\n", ""])
def test_what_is_no_answer_of_a_server_of_ours(text):
    with pytest.raises(ProtocolViolation, match="GET /metrics"):
        Scrape.parse(text, 0.0)
