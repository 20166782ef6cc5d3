"""Intervals, against printed tables and against chance itself."""

import random
from statistics import fmean

import pytest

from openenv._statistics import t_quantile, welch_interval


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (5, 2.5706),
        (10, 2.2281),
        (30, 2.0423),
        (120, 1.9799),
        (10_000, 1.9602),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=6e-5)


def test_other_quantiles_and_freedoms_between_whole_numbers():
    assert t_quantile(0.5, 4) == pytest.approx(0.0, abs=1e-9)
    assert t_quantile(0.95, 4) == pytest.approx(2.1318, abs=6e-5)
    assert t_quantile(0.995, 4) == pytest.approx(4.6041, abs=6e-5)
    assert t_quantile(0.975, 2) > t_quantile(0.975, 2.5) > t_quantile(0.975, 3)


@pytest.mark.parametrize(("share", "freedom"), [(0.4, 5), (1.0, 5), (0.9, 0.5)])
def test_what_is_no_quantile_is_refused(share, freedom):
    with pytest.raises(ValueError, match="must be"):
        t_quantile(share, freedom)


def test_an_example_of_the_literature():
    # Two samples whose variances differ: t = -2.46, 25.0 degrees of freedom, P = 0.021.
    first = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    second = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    low, high = welch_interval(first, second)
    assert fmean(second) - fmean(first) == pytest.approx((low + high) / 2)
    assert (high - low) / 2 == pytest.approx(2.0595 * (fmean(second) - fmean(first)) / 2.46, rel=0.003)
    # An interval of 1 - P touches zero.
    assert welch_interval(first, second, level=1 - 0.021)[0] == pytest.approx(0.0, abs=0.01)


def test_one_value_says_nothing():
    assert welch_interval([1.0], [2.0, 3.0]) is None
    assert welch_interval([1.0, 2.0], [3.0]) is None


def test_values_without_spread_leave_no_doubt():
    assert welch_interval([1.0, 1.0], [3.0, 3.0]) == (2.0, 2.0)


@pytest.mark.slow
def test_nineteen_of_twenty_intervals_hold_the_truth():
    chance = random.Random(7)

    def holds():
        first = [chance.gauss(10, 1) for _ in range(5)]
        second = [chance.gauss(12, 3) for _ in range(4)]
        low, high = welch_interval(first, second)
        return low <= 2 <= high

    assert 0.90 < fmean(holds() for _ in range(200)) < 0.99
