"""Nearest rank, by its definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv._statistics import Quantiles, nearest_rank, quantiles_of

values = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.01, 1), (0.07, 7), (0.5, 50), (0.501, 51), (0.95, 95), (0.99, 99), (0.991, 100), (1.0, 100)],
)
def test_of_a_hundred_values_it_is_the_value_of_that_rank(share, expected):
    assert nearest_rank(range(1, 101), share) == expected


def test_of_one_value_every_quantile_is_that_value():
    assert [nearest_rank([3.0], share) for share in (0.001, 0.5, 1.0)] == [3.0, 3.0, 3.0]


def test_of_few_values_the_p99_is_the_largest():
    assert nearest_rank([1.0, 2.0, 3.0], 0.99) == 3.0


def test_of_no_values_there_is_none():
    assert nearest_rank([], 0.5) is None


@pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="share"):
        nearest_rank([1.0], share)


@given(values, st.floats(min_value=0.001, max_value=1.0))
def test_it_is_the_smallest_value_that_the_share_does_not_exceed(found, share):
    ordered = sorted(found)
    chosen = nearest_rank(ordered, share)
    needed = round(share * len(ordered), 9)
    assert sum(value <= chosen for value in ordered) >= needed
    assert sum(value < chosen for value in ordered) < needed


def test_a_spread_leaves_out_what_was_not_measured_and_needs_no_order():
    numbers = [float(number) for number in range(100, 0, -1)]
    assert quantiles_of([*numbers, None, None]) == Quantiles(50.0, 90.0, 95.0, 99.0)


def test_a_spread_of_nothing_is_empty():
    assert quantiles_of([None]) == Quantiles(None, None, None, None)
