from __future__ import annotations

from random import Random

import pytest

from openenv.evals.statistics import mean_interval, sample_of, share_interval, share_of


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
