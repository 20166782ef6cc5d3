"""Batches summed up."""

import csv
import io

import pytest

from openenv.bench.batch import BatchSummary, error_counts, max_batch, summarize, write_summaries

from .rows import failed, good, summary

COLUMNS = [
    "mode",
    "num_requests",
    "wait_seconds",
    "repetition",
    "successful",
    "failed",
    "error_rate",
    "total_wall_time",
    "connect_p50",
    "connect_p95",
    "connect_p99",
    "reset_p50",
    "reset_p95",
    "reset_p99",
    "step_p50",
    "step_p95",
    "step_p99",
    "total_p50",
    "total_p90",
    "total_p95",
    "total_p99",
    "requests_per_second",
    "effective_concurrency",
    "unique_pids",
    "unique_sessions",
    "unique_hosts",
]


def test_the_columns_are_these():
    assert BatchSummary.columns() == COLUMNS


def test_a_batch_that_went_well():
    rows = [good(number, total=(number + 1) * 0.06) for number in range(100)]
    found = summarize(rows, wall_s=8.0, repetition=2)
    assert (found.mode, found.num_requests, found.wait_seconds, found.repetition) == ("ws", 100, 0.5, 2)
    assert (found.successful, found.failed, found.error_rate) == (100, 0, 0.0)
    assert found.total_wall_time == 8.0
    assert (found.connect_p50, found.connect_p95, found.connect_p99) == pytest.approx((0.50, 0.95, 0.99))
    assert (found.reset_p50, found.reset_p95, found.reset_p99) == pytest.approx((0.50, 0.95, 0.99))
    assert (found.step_p50, found.step_p95, found.step_p99) == pytest.approx((2.0, 3.8, 3.96))
    assert (found.total_p50, found.total_p90) == pytest.approx((3.0, 5.4))
    assert (found.total_p95, found.total_p99) == pytest.approx((5.7, 5.94))
    assert found.requests_per_second == 12.5
    assert found.effective_concurrency == pytest.approx(sum(row.total_latency for row in rows) / 8)
    assert (found.unique_pids, found.unique_sessions, found.unique_hosts) == (2, 100, 1)


def test_failures_are_counted_and_lend_no_latency():
    rows = [good(0, total=0.6), failed(1), failed(2), failed(3)]
    found = summarize(rows, wall_s=1.0, repetition=1)
    assert (found.num_requests, found.successful, found.failed, found.error_rate) == (4, 1, 3, 0.75)
    assert found.connect_p99 == pytest.approx(0.1)
    assert found.requests_per_second == 1.0
    assert found.effective_concurrency == pytest.approx(0.6)


def test_a_batch_without_success_has_no_latencies():
    found = summarize([failed(0), failed(1)], wall_s=1.0, repetition=1)
    assert (found.successful, found.error_rate, found.total_p99, found.connect_p50) == (0, 1.0, None, None)
    assert (found.unique_pids, found.unique_sessions, found.unique_hosts) == (0, 0, 0)


def test_an_environment_that_names_nothing_has_no_identities():
    row = good()
    row.pid = row.session_hash = row.host_url = None
    found = summarize([row], wall_s=1.0, repetition=1)
    assert (found.unique_pids, found.unique_sessions, found.unique_hosts) == (0, 0, 0)


def test_a_table_has_a_header_and_empty_cells_for_what_was_not_measured():
    file = io.StringIO()
    write_summaries(file, [summary(4), summary(8, successful=0)])
    assert file.getvalue().splitlines()[0] == ",".join(COLUMNS)
    first, second = csv.DictReader(io.StringIO(file.getvalue()))
    assert (first["num_requests"], first["total_p99"], first["error_rate"]) == ("4", "1.5", "0.0")
    assert (second["num_requests"], second["total_p99"], second["error_rate"]) == ("8", "", "1.0")


class TestMaxBatch:
    def test_it_is_the_largest_that_was_carried(self):
        assert max_batch([summary(32), summary(128), summary(512, successful=100)]) == 128

    def test_exactly_95_percent_is_enough(self):
        assert max_batch([summary(100, successful=95)]) == 100
        assert max_batch([summary(100, successful=94)]) == 0

    @pytest.mark.parametrize("size", [20, 40, 60, 140, 280, 560])
    def test_no_size_loses_to_rounding(self, size):
        assert max_batch([summary(size, successful=size * 95 // 100)]) == size

    def test_every_repetition_must_carry_it(self):
        repetitions = [summary(64, repetition=1), summary(64, successful=32, repetition=2), summary(64, repetition=3)]
        assert max_batch([summary(32), *repetitions]) == 32

    def test_a_failure_below_does_not_count(self):
        assert max_batch([summary(32, successful=1), summary(128)]) == 128

    def test_the_order_does_not_matter(self):
        assert max_batch([summary(128), summary(32), summary(64)]) == 128

    def test_of_nothing_it_is_zero(self):
        assert max_batch([]) == 0


def test_errors_are_counted_by_type_and_message():
    rows = [good(), failed(1), failed(2), failed(3, TimeoutError("late"))]
    assert error_counts(rows).most_common() == [
        (("ConnectionError", "the line went dead"), 2),
        (("TimeoutError", "late"), 1),
    ]
