"""Several trials as one."""

from dataclasses import replace

import pytest

from openenv.bench.steps import mean_cost

from .rows import cost


def test_counts_are_added_and_figures_are_means():
    found = mean_cost(
        [
            cost(steps_per_second=100.0, p99=0.2, steps=1000, seconds=2.0, errors={"ServerFull: no": 1}, failed=1),
            cost(steps_per_second=300.0, p99=0.4, steps=3000, seconds=4.0, errors={"ServerFull: no": 2}, failed=2),
        ]
    )
    assert (found.steps, found.seconds, found.failed, found.errors) == (4000, 6.0, 3, {"ServerFull: no": 3})
    assert (found.steps_per_second, found.p99) == (200.0, pytest.approx(0.3))


def test_a_figure_that_some_trials_lack_is_the_mean_of_the_others():
    found = mean_cost([cost(kib_per_session=14.0), cost(kib_per_session=None), cost(kib_per_session=None)])
    assert found.kib_per_session == 14.0
    assert mean_cost([cost(kib_per_session=None)]).kib_per_session is None


def test_one_trial_is_itself():
    assert mean_cost([cost()]) == cost()


def test_both_sides_together_are_known_if_each_is():
    assert cost(server_us_per_step=4.0, client_us_per_step=6.0).us_per_step == 10.0
    assert replace(cost(), server_us_per_step=None).us_per_step is None
    assert replace(cost(), client_us_per_step=None).us_per_step is None
