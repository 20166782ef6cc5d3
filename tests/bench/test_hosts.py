"""Which hosts a load has reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.report import hosts_tables
from openenv.bench.batch import BatchSummary, summarize
from openenv.bench.scale import host_sentences, scale_document, too_few_hosts

from .rows import failed, good
from .rows import summary as batch


def summary(size: int, **hosts: int) -> BatchSummary:
    """A batch of `size` requests, of which so many were on each host."""
    return replace(batch(size, successful=sum(hosts.values())), hosts=hosts)


def test_a_host_is_the_server_where_that_is_known_and_else_what_the_environment_says() -> None:
    rows = [good(number) for number in range(4)]
    rows[0].server = rows[1].server = "one"
    rows[2].server = "two"
    assert summarize([*rows, failed(4)], 1.0, 1).hosts == {"here": 1, "one": 2, "two": 1}


def test_requests_that_say_nothing_of_a_host_are_on_none() -> None:
    row = good()
    row.host_url = None
    assert summarize([row], 1.0, 1).hosts == {}
    assert summarize([row], 1.0, 1).host_spread is None


@pytest.mark.parametrize(
    ("hosts", "spread"), [({"a": 5}, 0.0), ({"a": 5, "b": 5}, 0.0), ({"a": 9, "b": 11}, 0.2), ({"a": 1, "b": 3}, 1.0)]
)
def test_the_spread_is_that_of_the_extremes(hosts: dict[str, int], spread: float) -> None:
    assert summary(20, **hosts).host_spread == pytest.approx(spread)


def test_the_result_has_the_hosts_of_each_batch_and_the_table_has_not() -> None:
    (told,) = scale_document([summary(20, a=9, b=11)], "", None, "")["batches"]
    assert told["hosts"] == {"a": 9, "b": 11}
    assert told["host_spread"] == pytest.approx(0.2)
    assert "hosts" not in BatchSummary.columns()


def test_the_report_has_a_column_for_each_host() -> None:
    (table,) = hosts_tables([summary(20, a=9, b=11), summary(10, a=10)])
    assert table.header == ["sessions", "wait s", "rep.", "spread %", "a", "b"]
    assert table.rows == [["20", "1", "1", "20.0", "9", "11"], ["10", "1", "1", "0.0", "10", "0"]]
    assert hosts_tables([summary(3)]) == []


def test_the_sentence_is_about_the_least_even_of_the_largest_batches() -> None:
    found = host_sentences([summary(10, a=1, b=9), summary(2000, a=1000, b=1000), summary(2000, a=990, b=1010)])
    assert found == ["2,000 sessions were on 2 hosts, 990 to 1,010 on each: 2.0 % apart."]
    assert host_sentences([summary(10, a=10)]) == []


def test_as_many_hosts_as_expected_are_enough() -> None:
    assert too_few_hosts([summary(20, a=10, b=10)], 2) is None
    assert too_few_hosts([summary(20, a=10, b=5, c=5)], 2) is None


def test_a_host_that_was_not_reached_is_missed() -> None:
    found = too_few_hosts([summary(20, a=20)], 2)
    assert found == "2 hosts were expected, but 20 sessions (repetition 1) reached 1: a (20)"


def test_one_that_went_away_during_the_run_is_missed() -> None:
    found = too_few_hosts([summary(20, a=10, b=10), summary(20, a=20)], 2)
    assert found is not None
    assert "reached 1: a (20)" in found


def test_few_sessions_prove_nothing_alone_but_all_of_them_together_must_have_reached_all() -> None:
    assert too_few_hosts([summary(4, a=4), summary(4, a=2, b=2)], 2) is None
    found = too_few_hosts([summary(4, a=4), summary(4, a=4)], 2)
    assert found == "2 hosts were expected, but the load reached 1: a (8)"


def test_where_no_host_is_known_that_is_said() -> None:
    found = too_few_hosts([summary(4)], 2)
    assert found is not None
    assert "none is known" in found
