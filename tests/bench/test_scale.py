"""Grids, before and after they are measured. `tests/real/test_bench_scale.py` measures."""

import sys
from collections import Counter
from dataclasses import replace

import pytest

from openenv.bench.batch import Mode
from openenv.bench.scale import Grid, ScaleResult, check_grid
from openenv.errors import MissingExtra, UsageError

from .rows import summary

GRID = Grid(requests=[2, 4], waits=[0.0, 1.0], reps=2, mode=Mode.WS, timeout_s=5.0, processes=1)


def test_every_size_is_measured_with_every_wait_as_often_as_asked():
    batches = GRID.batches("http://localhost:1")
    assert [(batch.wait_seconds, batch.sessions, repetition) for batch, repetition in batches] == [
        (0.0, 2, 1),
        (0.0, 2, 2),
        (0.0, 4, 1),
        (0.0, 4, 2),
        (1.0, 2, 1),
        (1.0, 2, 2),
        (1.0, 4, 1),
        (1.0, 4, 2),
    ]
    assert {(batch.url, batch.mode, batch.timeout_s) for batch, _ in batches} == {
        ("http://localhost:1", Mode.WS, 5.0)
    }


def test_sessions_are_shared_out_among_several_servers():
    (batch, _), *_ = GRID.batches(["http://a:1", "http://b:1"], "the-key")
    assert [batch.url_of(number) for number in range(3)] == ["http://a:1", "http://b:1", "http://a:1"]
    assert batch.headers == {"Authorization": "Bearer the-key"}
    assert "the-key" not in repr(batch)


def test_a_good_grid_is_accepted():
    check_grid(GRID)
    check_grid(replace(GRID, mode=Mode.HTTP))


def test_each_batch_has_as_many_processes_as_it_needs():
    assert replace(GRID, processes=3).processes_for(16_384) == 3
    chosen = replace(GRID, processes=None)
    assert chosen.processes_for(4) == 1
    assert chosen.processes_for(16_384) >= 1
    check_grid(replace(chosen, requests=[16_384]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": []}, "nothing to measure"),
        ({"waits": []}, "nothing to measure"),
        ({"reps": 0}, "nothing to measure"),
        ({"waits": [-1.0]}, "--wait-grid"),
        ({"requests": [0]}, "at least one"),
        ({"requests": [4, 10_000_000]}, "--processes"),
        ({"timeout_s": 1.0}, "--timeout"),
    ],
)
def test_a_grid_that_cannot_be_measured_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        check_grid(replace(GRID, **change))


def test_what_is_not_installed_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match="httpx"):
        check_grid(replace(GRID, mode=Mode.HTTP))


def test_websockets_need_no_httpx(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    check_grid(GRID)


def test_the_verdict_names_the_largest_batch_of_each_wait():
    result = ScaleResult(cores=4)
    result.summaries += [summary(32, wait=0.1), summary(64, wait=0.1), summary(32, wait=1.0)]
    result.summaries += [summary(64, successful=10, wait=1.0), summary(32, successful=0, wait=2.0)]
    result.errors = Counter({("TimeoutError", "late"): 86})
    assert result.max_batches == {0.1: 64, 1.0: 32, 2.0: 0}
    assert result.verdicts() == [
        "Max batch with a step of 0.1 s: 64 (the largest tried), 16 per core.",
        "Max batch with a step of 1 s: 32, 8 per core.",
        "No batch with a step of 2 s had 95 % success in every repetition.",
    ]
