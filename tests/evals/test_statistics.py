from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from openenv._statistics import clustered_variance, welch_interval
from openenv.evals.statistics import clustered_share, mean_interval, pass_at, sample_of, share_interval, share_of


def test_a_mean_has_students_interval() -> None:
    """The example of R's t.test(c(1, 2, 3, 4, 5))."""
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((1.036757, 4.963243), abs=1e-6)
    assert mean_interval([3.0]) is None
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)


def test_a_share_has_wilsons_interval() -> None:
    """As R's prop.test(8, 10, correct = FALSE) has it."""
    share = share_of(8, 10)
    assert share is not None
    assert (share.low, share.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    for hits in (0, 10):
        extreme = share_of(hits, 10)
        assert extreme is not None
        assert extreme.low <= extreme.share <= extreme.high
        assert 0 <= extreme.low < extreme.high <= 1
    assert share_of(0, 0) is None


def test_a_difference_of_shares_has_newcombes_interval() -> None:
    """The examples of Newcombe (1998): 56 of 70 against 48 of 80, and 50 pairs of which 36 are both and 0 neither."""
    ours, theirs = [True] * 48 + [False] * 32, [True] * 56 + [False] * 14
    assert share_interval(ours, theirs) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    both, ours, theirs = [True] * 36, [False] * 12 + [True] * 2, [True] * 12 + [False] * 2
    assert share_interval(both + ours, both + theirs, paired=True) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert share_interval([], [True]) is None


@pytest.mark.parametrize("paired", [True, False])
def test_shares_without_any_spread_are_not_sure_of_anything(paired: bool) -> None:
    low, high = share_interval([False] * 3, [True] * 3, paired) or (0, 0)
    assert 0 < low < 0.25
    assert high == 1
    low, high = share_interval([False] * 3, [False] * 3, paired) or (0, 0)
    assert low == -high < -0.5


def test_intervals_hold_what_they_promise() -> None:
    random = Random(1)
    means = shares = 0
    for _ in range(1000):
        low, high = mean_interval([random.gauss(3, 2) for _ in range(12)]) or (0, 0)
        means += low <= 3 <= high
        share = share_of(sum(random.random() < 0.3 for _ in range(40)), 40)
        assert share is not None
        shares += share.low <= 0.3 <= share.high
    assert 930 <= means <= 970
    assert 930 <= shares <= 975


def test_a_sample_in_short() -> None:
    sample = sample_of([1.0, 2.0, 6.0])
    assert sample is not None
    assert (sample.count, sample.mean, sample.least, sample.median, sample.most) == (3, 3.0, 1.0, 2.0, 6.0)
    assert sample_of([]) is None
    one = sample_of([4.0])
    assert one is not None
    assert (one.mean, one.std, one.low, one.high) == (4.0, None, None, None)


def test_the_error_of_a_mean_is_clustered() -> None:
    """Equation 4 of Miller (2024), with the correction G / (G - 1)."""
    values, clusters = [1.0, 0.0, 1.0, 1.0, 0.0], ["a", "a", "b", "b", "b"]
    mean = sum(values) / 5
    pairs = sum(
        (first - mean) * (second - mean)
        for first, one in zip(values, clusters, strict=True)
        for second, other in zip(values, clusters, strict=True)
        if one == other
    )
    square, groups = clustered_variance(values, clusters)
    assert groups == 2
    assert square == pytest.approx(2 / 1 * pairs / 25)


def test_clusters_of_one_value_are_independent_values() -> None:
    values, hits = [1.0, 2.0, 3.0, 4.0, 5.0], [True] * 8 + [False] * 2
    assert mean_interval(values, range(5)) == mean_interval(values)
    assert mean_interval(values, ["one"] * 5) == mean_interval(values)
    assert clustered_share(hits, range(10)) == share_of(8, 10)
    assert share_interval(hits[:5], hits[5:], True, (range(5), range(5))) == share_interval(hits[:5], hits[5:], True)


def test_repeats_that_are_alike_say_nothing_new() -> None:
    """Ten tasks, each of which always ends alike: a hundred episodes of them are ten values."""
    tasks = [float(task % 3) for task in range(10)]
    values, clusters = [task for task in tasks for _ in range(10)], [task for task in range(10) for _ in range(10)]
    assert mean_interval(values, clusters) == pytest.approx(mean_interval(tasks))
    assert welch_interval(values, values, clusters=(clusters, clusters)) == pytest.approx(
        welch_interval(tasks, tasks)
    )
    hits = [value > 0 for value in values]
    few, many = clustered_share(hits, clusters), share_of(60, 100)
    assert few is not None
    assert many is not None
    assert few.share == many.share
    assert few.high - few.low > 2.5 * (many.high - many.low)
    sure = clustered_share([True] * 100, clusters)
    assert sure is not None
    assert sure.low < 0.75
    low, high = share_interval(hits, [not hit for hit in hits], True, (clusters, clusters)) or (0, 0)
    assert high - low > 2 * (many.high - many.low)


def test_clustered_intervals_hold_what_they_promise() -> None:
    random = Random(1)
    clusters = [task for task in range(20) for _ in range(5)]
    means = shares = naive = 0
    for _ in range(500):
        tasks = [random.random() for _ in range(20)]
        hits = [random.random() < tasks[cluster] for cluster in clusters]
        low, high = mean_interval([float(hit) for hit in hits], clusters) or (0, 0)
        means += low <= 0.5 <= high
        share = clustered_share(hits, clusters)
        assert share is not None
        shares += share.low <= 0.5 <= share.high
        low, high = mean_interval([float(hit) for hit in hits]) or (0, 0)
        naive += low <= 0.5 <= high
    assert 465 <= means <= 490
    assert 465 <= shares <= 490
    assert naive < 430


def test_pass_at_k_is_the_share_of_draws_with_a_success() -> None:
    """Against all draws of k of the n episodes (Chen et al., 2021)."""
    for hits, count, k in [(0, 4, 2), (1, 4, 2), (3, 4, 2), (2, 6, 4), (6, 6, 1)]:
        draws = list(combinations([True] * hits + [False] * (count - hits), k))
        found = pass_at(k, [(hits, count)])
        assert found is not None
        assert found.share == pytest.approx(sum(map(any, draws)) / len(draws))
        assert (found.tasks, found.low, found.high) == (1, None, None)
    found = pass_at(2, [(0, 2), (1, 2), (1, 1)])
    assert found is not None
    assert (found.tasks, found.share) == (2, 0.5)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low < 0.5 < found.high <= 1
    assert pass_at(3, [(1, 2)]) is None
