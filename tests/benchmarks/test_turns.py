"""Systems in turns, and what is computed from them."""

from benchmarks.turns import OPENENV, WARM_UP, TurnPlan, TurnRate, VectorSystem, measure_turns, median_of, ratios


class Counter:
    """Environments whose observations are the number of steps so far."""

    def __init__(self):
        self.actions = []

    def reset(self, *, seed=None):
        return 0, {}

    def step(self, actions):
        self.actions.append(actions)
        return len(self.actions), None

    def close(self):
        pass


def rate(steps, server=None):
    return TurnRate(steps, server, 1.0)


def test_systems_take_turns_and_each_policy_sees_the_observations_of_its_own():
    first, second, turns = Counter(), Counter(), []
    systems = {OPENENV: VectorSystem(first, lambda seen: seen * 2), "other": VectorSystem(second, lambda seen: seen)}
    rates = measure_turns(systems, TurnPlan(num_envs=3, rounds=2, duration_s=0.001), turns.append)
    assert [turn.partition(":")[0] for turn in turns] == [OPENENV, "other"] * 2
    assert first.actions == [2 * number for number in range(len(first.actions))]
    assert second.actions == list(range(len(second.actions)))
    assert len(first.actions) > 2 * WARM_UP
    for name in systems:
        assert [found.server_us_per_step for found in rates[name]] == [None, None]
        assert all(found.steps_per_second > 0 for found in rates[name])


def test_the_cpu_of_a_server_is_that_of_the_measured_steps():
    class Server:
        cpu = 0.0

        def cpu_seconds(self):
            Server.cpu += 1.0
            return Server.cpu

    systems = {OPENENV: VectorSystem(Counter(), lambda seen: seen, Server())}
    (found,) = measure_turns(systems, TurnPlan(1, 1, 0.001))[OPENENV]
    assert found.server_us_per_step > 0


def test_a_ratio_is_the_median_of_the_rounds_so_that_a_busy_round_does_not_count():
    rates = {OPENENV: [rate(10), rate(20), rate(5)], "other": [rate(20), rate(40), rate(1)]}
    assert ratios(rates) == {OPENENV: 1.0, "other": 0.5}


def test_a_figure_that_is_unknown_has_no_median():
    assert median_of([rate(1), rate(3), rate(2)], "steps_per_second") == 2
    assert median_of([rate(1, 4.0), rate(1)], "server_us_per_step") == 4.0
    assert median_of([rate(1)], "server_us_per_step") is None
