from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openenv.server.workers.supervisor import least_loaded


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(-1, 20))
def test_the_least_load_is_chosen(loads, after):
    assert loads[least_loaded(loads, after)] == min(loads)


def test_equals_take_turns():
    last, chosen = -1, []
    for _ in range(6):
        last = least_loaded([0, 0, 0], last)
        chosen.append(last)
    assert chosen == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.integers(0, 200))
def test_after_enough_connections_loads_differ_by_at_most_one(loads, more):
    last = -1
    for _ in range(sum(max(loads) - load for load in loads) + more):
        last = least_loaded(loads, last)
        loads[last] += 1
    assert max(loads) - min(loads) <= 1


def test_a_place_that_is_gone_since_confuses_nobody():
    assert least_loaded([1, 0], 17) == 1
