from __future__ import annotations

import pytest

from openenv.errors import InvalidArgument
from openenv.evals.runner import Case, cases_of_seeds, cases_of_tasks, derived_seeds, parse_seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("7", [7]),
        ("5,1,2", [5, 1, 2]),
        ("0-2, 9,20-21", [0, 1, 2, 9, 20, 21]),
        ("2147483647", [2147483647]),
    ],
)
def test_seeds_are_ranges_and_lists(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1-", "3-1", "1,,2", "1.5", "2147483648", "0-99999999999", "9" * 5000]
)
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="seeds"):
        parse_seeds(text)


def test_a_seed_comes_once() -> None:
    with pytest.raises(InvalidArgument, match="seed 3 is listed twice"):
        parse_seeds("0-5,3")
    with pytest.raises(InvalidArgument, match="seed 0 is listed twice"):
        parse_seeds("0-199999,0")


def test_seeds_that_are_derived_are_different_and_always_the_same() -> None:
    seeds = derived_seeds(0, 1000)
    assert len(set(seeds)) == 1000
    assert derived_seeds(0, 10) == seeds[:10]
    assert derived_seeds(1, 10) != seeds[:10]


def test_fewer_episodes_take_the_first_seeds_and_more_are_refused() -> None:
    assert cases_of_seeds([4, 5, 6], 2) == [Case(4), Case(5)]
    with pytest.raises(InvalidArgument, match="4 episodes.*3 seeds"):
        cases_of_seeds([4, 5, 6], 4)


def test_tasks_come_once_each_in_the_order_of_their_index() -> None:
    cases = cases_of_tasks(5, "test", 0)
    assert [case.index for case in cases] == [0, 1, 2, 3, 4]
    assert all(case.arguments() == {"seed": case.seed, "split": "test", "index": case.index} for case in cases)
    some = cases_of_tasks(100, "test", 0, episodes=10)
    assert len({case.index for case in some}) == 10
    assert {case.index for case in some} != set(range(10))
    assert some == cases_of_tasks(100, "test", 0, episodes=10)
    assert {case.key for case in some} <= {case.key for case in cases_of_tasks(100, "test", 0)}


def test_more_episodes_than_tasks_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--repeats 3"):
        cases_of_tasks(4, "test", 0, episodes=9)
    with pytest.raises(InvalidArgument, match="no tasks"):
        cases_of_tasks(0, "test", 0)


def test_cases_are_the_same_by_task_or_by_seed() -> None:
    assert Case(1, "test", 2).key == Case(9, "test", 2).key
    assert Case(1).key != Case(9).key
    assert str(Case(1)) == "seed 1"
    assert str(Case(1, "test", 2)) == "task 2 of 'test'"
