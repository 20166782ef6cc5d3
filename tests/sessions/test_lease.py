from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.sessions.lease import expired, period


class Lease(NamedTuple):
    idle_since: float | None


@pytest.mark.parametrize(
    ("idle_since", "now", "gone"),
    [(100.0, 109.0, False), (100.0, 110.0, True), (100.0, 500.0, True), (100.0, 100.0, False)],
)
def test_an_idle_session(idle_since, now, gone):
    lease = Lease(idle_since)
    assert expired([lease], 10.0, now) == ([lease] if gone else [])


def test_a_session_with_a_call_in_flight_never_expires():
    assert expired([Lease(None)], 0.001, 1e12) == []


def test_none_of_none():
    assert expired([], 10.0, 0.0) == []


# Whole seconds: their differences are exact.
leases = st.lists(st.builds(Lease, st.none() | st.integers(0, 1000).map(float)))


@given(leases, st.integers(1, 100), st.integers(0, 2000))
def test_exactly_those_whose_time_is_over(leases, timeout, now):
    over = [lease for lease in leases if lease.idle_since is not None and now - lease.idle_since >= timeout]
    assert expired(leases, float(timeout), float(now)) == over


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_the_look_comes_soon_enough(timeout):
    assert 0 < period(timeout) <= timeout / 4
