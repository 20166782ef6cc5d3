"""Closed loops and whole episodes."""

from pathlib import Path

import pytest

from benchmarks.games import Games, play_games
from openenv.bench.served import ServedTarget
from openenv.bench.steps import ClosedLoop, measure_steps, measure_trials
from openenv.errors import LaunchFailed

from .bench_environments import CRASH, RAISE

pytestmark = [pytest.mark.real, pytest.mark.slow]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def moody():
    with ServedTarget("bench_environments:Moody", max_sessions=32, cwd=HERE) as server:
        yield server


@pytest.fixture(scope="module")
def cards():
    with ServedTarget("gymnasium:Blackjack-v1", max_sessions=8) as server:
        yield server


def test_a_closed_loop_counts_steps_and_cpu_of_both_sides(moody):
    cost = measure_steps(ClosedLoop(moody.url, 6, 0.5, {"wait_seconds": 0.0}), 2, server=moody)
    assert (cost.sessions, cost.failed, cost.errors, cost.resets) == (6, 0, {}, 0)
    assert 0.5 <= cost.seconds < 20
    assert cost.steps_per_second == pytest.approx(cost.steps / cost.seconds)
    assert cost.steps >= 6
    assert 0 < cost.p50 <= cost.p99 <= cost.seconds
    assert 1 < cost.server_us_per_step < 5000
    assert 1 < cost.client_us_per_step < 5000


def test_a_vector_client_steps_all_sessions_at_once(moody):
    loop = ClosedLoop(moody.url, 6, 0.5, {"wait_seconds": 0.0}, vector=True)
    cost = measure_steps(loop, server=moody)
    assert (cost.sessions, cost.failed, cost.errors, cost.resets) == (6, 0, {}, 0)
    assert cost.steps % 6 == 0
    assert 0 < cost.p50 <= cost.p99 <= cost.seconds
    assert cost.server_us_per_step > 0


def test_a_reset_of_a_vector_client_is_no_step(moody):
    cost = measure_steps(ClosedLoop(moody.url, 3, 0.3, {"end": True}, vector=True))
    assert (cost.failed, cost.errors) == (0, {})
    assert cost.steps >= 3
    assert cost.resets == pytest.approx(cost.steps, abs=3)


def test_sessions_of_a_vector_client_fail_one_by_one():
    with ServedTarget("bench_environments:Moody", max_sessions=2, cwd=HERE) as server:
        cost = measure_steps(ClosedLoop(server.url, 5, 0.2, {}, vector=True))
    assert (cost.sessions, cost.failed) == (2, 3)
    assert sum(cost.errors.values()) == 3
    assert all(error.startswith("ServerFull: ") for error in cost.errors)
    assert cost.steps >= 2


def test_a_vector_client_that_gets_nowhere_says_why(moody):
    with pytest.raises(LaunchFailed, match=r"no step was answered: StepFailed: .*not in the mood"):
        measure_steps(ClosedLoop(moody.url, 2, 0.2, {"wait_seconds": RAISE}, vector=True))
    with ServedTarget("bench_environments:Moody", cwd=HERE) as server:
        url = server.url
    with pytest.raises(LaunchFailed, match="no step was answered: ConnectionFailed"):
        measure_steps(ClosedLoop(url, 2, 0.2, {}, vector=True))


def test_memory_is_told_for_many_sessions(monkeypatch):
    monkeypatch.setattr("openenv.bench.steps.MEMORY_SESSIONS", 100)
    with ServedTarget("benchmark", max_sessions=200) as server:
        many = measure_steps(ClosedLoop(server.url, 100, 0.1, {}), server=server)
        few = measure_steps(ClosedLoop(server.url, 99, 0.1, {}), server=server)
    assert 1 < many.kib_per_session < 1000
    assert few.kib_per_session is None


def test_trials_and_floor_take_turns(moody):
    stages = []
    found = measure_trials(ClosedLoop(moody.url, 2, 0.1, {}), 2, 1, moody, floor=True, stage=stages.append)
    assert [stage.partition(":")[0] == "the floor" for stage in stages] == [False, True] * 2
    assert stages[2].endswith("trial 2 of 2")
    for cost in (*found.server, *found.floor):
        assert (cost.sessions, cost.failed) == (2, 0)
        assert cost.steps >= 2
        assert cost.server_us_per_step >= 0
    assert measure_trials(ClosedLoop(moody.url, 2, 0.1, {}), 1, 1, None).floor == []


def test_an_episode_that_ends_is_followed_by_another(moody):
    cost = measure_steps(ClosedLoop(moody.url, 2, 0.2, {"end": True}))
    assert cost.failed == 0
    assert cost.resets == pytest.approx(cost.steps, abs=2)
    assert cost.server_us_per_step is None


def test_a_loop_that_gets_nowhere_says_why(moody):
    with pytest.raises(LaunchFailed, match=r"no step was answered: StepFailed: .*not in the mood"):
        measure_steps(ClosedLoop(moody.url, 2, 0.2, {"wait_seconds": RAISE}))


def test_sessions_that_cannot_be_opened_are_counted():
    with ServedTarget("bench_environments:Moody", max_sessions=2, cwd=HERE) as server:
        cost = measure_steps(ClosedLoop(server.url, 5, 0.2, {}))
    assert (cost.sessions, cost.failed) == (2, 3)
    assert sum(cost.errors.values()) == 3
    assert all(error.startswith("ServerFull: ") for error in cost.errors)


def test_a_server_that_dies_ends_the_loop(monkeypatch):
    monkeypatch.setenv("OPENENV_RESUME_WINDOW_S", "1")  # for so long, a client waits for the server's return
    with (
        ServedTarget("bench_environments:Moody", cwd=HERE) as server,
        pytest.raises(LaunchFailed, match="no step was answered"),
    ):
        measure_steps(ClosedLoop(server.url, 1, 0.2, {"wait_seconds": CRASH}))


def test_episodes_are_played_to_their_end_over_sessions_that_stay(cards):
    meetings, seen = [], []
    games = Games(cards.url, episodes=12, sessions=3, actions=2)
    plays = play_games(games, "cards", at_meeting=meetings.append, progress=seen.append)
    assert meetings == [0, 1]
    assert sorted(row.request_id for row in plays.rows) == list(range(12))
    assert all(row.success for row in plays.rows)
    assert {row.session for row in plays.rows} == {0, 1, 2}
    assert sum(row.connect_latency is not None for row in plays.rows) == 3
    for row in plays.rows:
        assert row.workload == "cards"
        assert row.steps == len(row.step_latencies) >= 1
        assert row.episode_return in {-1.0, 0.0, 1.0, 1.5}
        assert row.total_latency >= row.reset_latency + sum(row.step_latencies)
    assert len(plays.spans) == 3
    assert all(begin < end for begin, end in plays.spans)
    last = seen[-1]
    assert (last.connected, last.reset, last.closed, last.failed, last.finished) == (3, 12, 3, 0, 12)
    assert last.steps == sum(row.steps for row in plays.rows)


def test_the_same_seed_is_the_same_episode(cards):
    def outcomes():
        rows = play_games(Games(cards.url, 10, 2, 2, seed=5), "cards").rows
        return {row.request_id: (row.seed, row.steps, row.episode_return) for row in rows}

    first = outcomes()
    assert first == outcomes()
    assert [first[number][0] for number in range(10)] == list(range(5, 15))


def test_episodes_that_fail_are_told_and_the_others_go_on(cards):
    plays = play_games(Games(cards.url, 6, 2, actions=40), "cards")
    kinds = {row.error_type for row in plays.rows if not row.success}
    assert len(plays.rows) == 6
    assert kinds == {"InvalidAction"}
    assert all(row.episode_return is None for row in plays.rows if not row.success)


def test_where_nobody_listens_every_episode_fails():
    with ServedTarget("echo") as server:
        url = server.url
    plays = play_games(Games(url, 3, 2, 2), "cards")
    assert [row.error_type for row in plays.rows] == ["ConnectionFailed"] * 3
    assert plays.spans == []
