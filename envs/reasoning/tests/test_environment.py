"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from reasoning import ReasoningAction, ReasoningEnv, ReasoningObservation, ReasoningState
from reasoning.plot import Counter, episode
from reasoning.server.bank import NAMES, SIZES, SLOW, Question, question, score
from reasoning.server.reasoning_environment import ReasoningEnvironment
from reasoning.server.tasks import MIXED
from reasoning.survey import examine

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, InvalidArgument, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[ReasoningAction, ReasoningObservation, ReasoningState]


class LegCounting(ReasoningEnvironment):
    def __init__(self) -> None:
        super().__init__(task="leg_counting")


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    # Each of the hundred datasets stays in memory after its first question, so one dataset suffices here.
    episodes = 200

    def app(self) -> Any:
        return LegCounting


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of an environment in this process, with the same calls and rules as over a network."""
    with ReasoningEnv(env=ReasoningEnvironment).sync() as client:
        yield client


def answered(env: Env, answer: str) -> tuple[float, bool, bool]:
    result = env.step(ReasoningAction(answer=answer))
    return float(result.reward or 0), result.done, result.observation.correct


def test_there_are_more_than_a_hundred_tasks() -> None:
    assert len(NAMES) > 100
    assert len(MIXED) >= 100


@pytest.mark.parametrize("name", MIXED)
def test_every_dataset_asks_and_scores_answers_of_any_kind(name: str) -> None:
    found = examine(name)
    assert (found.wrong, found.mistaken) == (0, 0)


def test_a_right_answer_is_worth_one_and_ends_the_episode(env: Env) -> None:
    env.reset(task="leg_counting", index=3)
    assert answered(env, str(env.state().answer)) == (1.0, True, True)
    with pytest.raises(ResetRequired):
        env.step(ReasoningAction(answer="1"))


def test_a_wrong_answer_ends_it_too_unless_there_are_more_tries(env: Env) -> None:
    env.reset(task="leg_counting", index=3)
    assert answered(env, "-1") == (0.0, True, False)
    env.reset(task="leg_counting", index=3, tries=3)
    assert answered(env, "-1") == (0.0, False, False)
    assert env.step(ReasoningAction(answer="-2")).observation.tries_left == 1
    assert answered(env, str(env.state().answer)) == (1.0, True, True)


def test_an_episode_is_worth_its_best_answer(env: Env) -> None:
    env.reset(task="countdown", index=0, tries=4)
    wrong_numbers, right = "1 + 1", str(env.state().answer)
    rewards = [answered(env, answer)[0] for answer in (wrong_numbers, wrong_numbers, right)]
    assert rewards == [0.05, 0.0, 0.95]
    assert env.state().best == 1.0


def test_the_same_seed_asks_the_same(env: Env) -> None:
    asked = [env.reset(seed=seed).observation.question for seed in (7, 7, 8, 9)]
    assert asked[0] == asked[1]
    assert len(set(asked)) == 3
    asked = [env.reset(seed=seed, task="acre", split="test").observation.question for seed in (1, 1, 2)]
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix", "knights_knaves", "acre", "rubiks_cube"])
def test_a_question_is_the_same_in_every_thread_and_after_any_other(name: str) -> None:
    expected = [question(name, "train", number).entry for number in range(6)]
    state = random.getstate()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: question(name, "train", number % 6).entry, range(5, 29)))
    assert made == [expected[number % 6] for number in range(5, 29)]
    assert random.getstate() == state, "the random numbers of the process are unchanged"


ASKING = """
import sys
from reasoning.server.bank import question, score

for name in sys.argv[1:]:
    for split in ("train", "test"):
        for number in range(5):
            asked = question(name, split, number)
            print(repr((asked.entry, asked.answer, score(asked, asked.answer or "1"), score(asked, "x**2,1"))))
"""


def asked_by_a_process(hash_seed: int, *names: str) -> list[str]:
    environ = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ASKING, *names]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_a_question_is_the_same_in_every_process() -> None:
    """The order of a set differs between processes, and some datasets draw from sets or search in them."""
    from_sets = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")
    names = (*from_sets, "list_functions", "pool_matrix", "acre", "letter_counting")
    first, second = (asked_by_a_process(hash_seed, *names) for hash_seed in (1, 2))
    assert len(first) == 10 * len(names)
    assert first == second


def test_splits_are_of_different_seeds_and_can_be_narrowed(env: Env) -> None:
    tasks = ReasoningEnvironment
    assert [split["name"] for split in tasks.list_splits()] == ["train", "test"]
    assert tasks.num_tasks("train") == len(MIXED) * SIZES["train"]
    assert tasks.num_tasks("test/leg_counting") == len(tasks.list_tasks("test/leg_counting")) == SIZES["test"]
    asked = {
        split: {env.reset(split=f"{split}/leg_counting", index=index).observation.question for index in range(30)}
        for split in SIZES
    }
    assert not asked["train"] & asked["test"]
    env.reset(split="test", task="leg_counting", index=5)
    assert env.state().id == "test/leg_counting/5"


def test_neighbours_of_the_mixed_split_are_of_different_datasets() -> None:
    tasks = ReasoningEnvironment.get_task_range("train", 0, 2 * len(MIXED))
    assert sorted({task["task"] for task in tasks[: len(MIXED)]}) == sorted(MIXED)
    assert not {task["task"] for task in tasks} & SLOW
    environment = ReasoningEnvironment()
    environment.reset(split="train", index=len(MIXED) + 2)
    assert environment.state.id == tasks[len(MIXED) + 2]["id"]
    with pytest.raises(IndexError):
        ReasoningEnvironment.get_task("train/acre", 500)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"task": "leg_count"}, "no task 'leg_count': did you mean leg_counting"),
        ({"task": "qqqqqq"}, "no task 'qqqqqq': there are 104, from ab to "),
        ({"task": "codeio"}, "'codeio' is left out: it runs programs"),
        ({"split": "train/codeio"}, "'codeio' is left out: it runs programs"),
        ({"task": "composite"}, "'composite' is left out: it is a mixture of others"),
        ({"task": 5}, "no task 5"),
        ({"split": "valid"}, "no split 'valid': there are train, test, and splits of one task, such as train/ab"),
        ({"split": "train/sudoko"}, "did you mean sudoku"),
        ({"split": "train/acre", "task": "sudoku"}, "names one task"),
        ({"split": "test", "index": 10**7}, "no task 10000000: there are"),
        ({"task": "acre", "index": 500}, "there are 500, from 0 to 499"),
        ({"index": "0"}, "no task '0'"),
        ({"tries": 0}, "tries must be 1 to 10"),
        ({"tries": "many"}, "tries must be 1 to 10"),
    ],
)
def test_a_question_that_is_not_there_is_the_callers_mistake(env: Env, arguments: dict[str, Any], said: str) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidArgument, match=said):
        env.reset(**arguments)


def test_an_answer_that_is_much_too_long_is_no_action(env: Env) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidAction, match="answer"):
        env.step(ReasoningAction.model_construct(answer="1" * 20_001))


@pytest.mark.parametrize(
    "name",
    [
        "binary_matrix", "spiral_matrix", "string_insertion", "n_queens",
        "countdown", "puzzle24", "polynomial_multiplication", "simple_integration",
    ],
)  # fmt: skip
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    """The scorers of the bare package would run it: they call `eval`, or a parser that does."""
    mark = tmp_path / "mark"
    asked = question(name, "train", 0)
    for code in (f"open({str(mark)!r}, 'w')", f"__import__('pathlib').Path({str(mark)!r}).touch()"):
        for answer in (code, f"[{code}]", f"({code}) and [[1]]"):
            assert score(asked, answer)[0] < 0.5
    assert not mark.exists()


@pytest.mark.parametrize("answer", ["1e999999999", "1E+999", "-2.5e-0400", "9" * 300, "1e1_000_0", "[1e99999]"])
def test_numbers_that_take_hours_are_not_read(answer: str) -> None:
    asked = question("coin_flip", "train", 0)
    assert score(asked, answer) == (0.0, "it has a number of more than 300 digits")


def test_the_scorers_that_take_anything_for_right_do_not() -> None:
    asked = question("game_of_life_halting", "train", 0)
    told = str(asked.answer)
    other = "False" if told == "True" else "True"
    assert [score(asked, answer)[0] for answer in (told, other, "", "perhaps")] == [1.0, 0.0, 0.0, 0.0]
    assert score(question("complex_arithmetic", "train", 0), "nan")[0] == 0.0


def test_a_scorer_that_raises_makes_a_wrong_answer(env: Env) -> None:
    env.reset(task="prime_factorization", index=0, tries=2)
    seen = env.step(ReasoningAction(answer="no number")).observation
    assert (seen.score, seen.correct) == (0.0, False)
    assert "ValueError" in seen.note
    assert env.step(ReasoningAction(answer=str(env.state().answer))).observation.correct


@pytest.mark.parametrize(("given", "expected"), [(float("nan"), 0.0), (float("inf"), 1.0), (-3.0, 0.0), (7, 1.0)])
def test_a_score_is_always_from_zero_to_one(given: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasoning.server import bank

    asked = question("leg_counting", "train", 0)
    monkeypatch.setattr(
        bank._source("leg_counting", "train").dataset, "score_answer", lambda *_: given, raising=False
    )
    assert score(asked, "1")[0] == expected


def test_a_copy_goes_its_own_way() -> None:
    environment = ReasoningEnvironment()
    environment.reset(task="leg_counting", tries=2)
    fork = copy.deepcopy(environment)
    assert fork.step(ReasoningAction(answer=str(environment.state.answer))).correct
    assert environment.state.step_count == 0
    assert environment.step(ReasoningAction(answer="0")).tries_left == 1
    assert isinstance(fork._asked, Question)
    assert fork.reset().question == environment.reset().question


def test_the_web_page_shows_the_question_as_text() -> None:
    environment = ReasoningEnvironment()
    seen = environment.reset(task="rectangle_count", index=0, tries=2)
    assert "<h3>rectangle_count</h3>" in environment.render_web(seen)
    assert "Worth" in environment.render_web(environment.step(ReasoningAction(answer="<b>")))


def test_least_squares_learn_to_count_legs(env: Env) -> None:
    """The learner of plot.py earns more on test questions after it has learned from training questions."""
    counter = Counter()
    before = [episode(env, counter, False, split="test/leg_counting", index=index) for index in range(30)]
    for index in range(150):
        episode(env, counter, True, split="train/leg_counting", index=index)
    after = [episode(env, counter, False, split="test/leg_counting", index=index) for index in range(30)]
    assert sum(before) < 3
    assert sum(after) > 20
