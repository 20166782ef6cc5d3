from __future__ import annotations

from openenv.server.workers.pool import LONGEST_PAUSE_S, WELL_S, WINDOW_S, RestartPolicy


def test_the_first_is_replaced_at_once_and_each_further_one_later():
    policy = RestartPolicy(most=5)
    pauses = [policy.died(now, 0.0) for now in range(5)]
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8]


def test_the_budget():
    policy = RestartPolicy(most=2)
    assert policy.died(0.0, 0.0) is not None
    assert policy.died(1.0, 0.0) is not None
    assert policy.died(2.0, 0.0) is None


def test_no_budget_at_all():
    assert RestartPolicy(most=0).died(0.0, 1000.0) is None


def test_deaths_of_long_ago_are_forgiven():
    policy = RestartPolicy(most=1)
    assert policy.died(0.0, 0.0) is not None
    assert policy.died(WINDOW_S, 0.0) is not None
    assert policy.died(WINDOW_S + 1, 0.0) is None


def test_after_one_that_lived_well_the_next_comes_at_once():
    policy = RestartPolicy(most=9)
    for _ in range(4):
        policy.died(0.0, 1.0)
    assert policy.died(40.0, WELL_S) == 0.0
    assert policy.died(41.0, WELL_S / 2) == 0.1


def test_no_pause_is_longer_than_the_longest():
    policy = RestartPolicy(most=1000)
    assert [policy.died(0.0, 0.0) for _ in range(100)][-1] == LONGEST_PAUSE_S
