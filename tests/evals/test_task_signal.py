"""Tasks chosen by the signal of their groups per cost."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from openenv.errors import InvalidArgument, JournalMismatch, UsageError
from openenv.evals.sampler import TaskSampler

from ..envs.own_tests import ENVS

REPEATS = 8


def groups(sampler: TaskSampler, number: int) -> list[int]:
    """The tasks of so many groups, each finished."""
    found = []
    for _ in range(number):
        for _ in range(REPEATS):
            task = sampler.take()
            assert task is not None
            task.finish()
        found.append(task.index)
    return found


def sampler_of(tasks: int, **options: Any) -> TaskSampler:
    return TaskSampler(tasks, **{"seed": 2, "epochs": None, "repeats": REPEATS, "by_signal": True, **options})


def test_a_task_with_signal_comes_more_often_and_the_others_now_and_then() -> None:
    sampler = sampler_of(10)
    counts: Counter[int] = Counter()
    for _ in range(600):
        (index,) = groups(sampler, 1)
        counts[index] += 1
        sampler.update({index: [0, 1] * 4 if index == 7 else [1] * 8})
    assert counts.most_common(1)[0][0] == 7
    assert counts[7] > 300
    assert len(counts) == 10


def test_of_two_tasks_with_the_same_signal_the_cheaper_one_comes_more_often() -> None:
    sampler = sampler_of(2)
    counts: Counter[int] = Counter()
    for _ in range(200):
        (index,) = groups(sampler, 1)
        counts[index] += 1
        sampler.update({index: [0.0, 1.0] * 4}, {index: 1 if index == 0 else 50})
    assert counts[0] > 150


@pytest.mark.parametrize(("low", "high"), [(-1000.0, 1000.0), (0.99, 1.0)])
def test_rewards_may_have_any_range(low: float, high: float) -> None:
    sampler = sampler_of(4)
    counts: Counter[int] = Counter()
    for _ in range(200):
        (index,) = groups(sampler, 1)
        counts[index] += 1
        sampler.update({index: [low, high] * 4 if index == 2 else [low] * 8})
    assert counts[2] > 100


def test_a_task_that_was_too_hard_comes_again_once_it_is_learnt() -> None:
    sampler = sampler_of(20)
    late: Counter[int] = Counter()
    for number in range(1200):
        (index,) = groups(sampler, 1)
        learnable = index == (3 if number < 400 else 11)
        late[index] += number >= 900
        sampler.update({index: [0, 1] * 4 if learnable else [0] * 8})
    assert late.most_common(1)[0][0] == 11


def test_a_seed_gives_the_same_tasks_and_a_group_the_same_seed() -> None:
    def played(seed: int) -> list[tuple[int, int, int]]:
        sampler, found = sampler_of(5, seed=seed), []
        for _ in range(40):
            taken = [sampler.take() for _ in range(REPEATS)]
            assert len({(task.epoch, task.index, task.seed) for task in taken}) == 1
            assert [task.repeat for task in taken] == list(range(REPEATS))
            for task in taken:
                task.finish()
            found.append((task.epoch, task.index, task.seed))
            sampler.update({task.index: [float(task.index == 1), 1.0]})
        return found

    assert played(1) == played(1)
    assert played(1) != played(2)
    assert len(set(played(1))) == 40  # a task that comes again has another seed


def test_groups_in_play_have_different_tasks_as_long_as_there_are_some() -> None:
    sampler = sampler_of(6, repeats=1)
    assert sorted(sampler.take().index for _ in range(6)) == [0, 1, 2, 3, 4, 5]
    assert sampler.take() is not None


def test_epochs_limit_the_number_of_groups() -> None:
    sampler = sampler_of(3, epochs=2, repeats=2)
    assert sampler.left == 12
    first = sampler.take()
    first.give_back()
    assert sampler.left == 12
    taken = list(sampler)
    assert len(taken) == 12
    assert len({(task.index, task.epoch, task.repeat) for task in taken}) == 12
    for task in taken:
        task.finish()
    assert sampler.left == 0
    assert sampler.take() is None


def test_shards_have_tasks_of_their_own() -> None:
    shards = [set(groups(sampler_of(9, shard=shard, shards=3), 60)) for shard in range(3)]
    assert sorted(index for shard in shards for index in shard) == list(range(9))


@pytest.mark.parametrize("cut", [0, 1, 13, 50])
def test_a_journal_continues_as_if_nothing_had_happened(tmp_path: Path, cut: int) -> None:
    def plays(sampler: TaskSampler, number: int) -> Iterator[tuple[int, int]]:
        for _ in range(number):
            task = sampler.take()
            sampler.update({task.index: [0.0, float(task.index % 2)]}, {task.index: 1 + task.index})
            task.finish()
            yield task.epoch, task.index

    whole = list(plays(sampler_of(8, repeats=1), 100))
    with sampler_of(8, repeats=1, journal=tmp_path / "a") as sampler:
        before = list(plays(sampler, cut))
    with sampler_of(8, repeats=1, journal=tmp_path / "a") as sampler:
        held = sampler.take()
    with sampler_of(8, repeats=1, journal=tmp_path / "a") as sampler:
        after = list(plays(sampler, 100 - cut))
    assert (held.epoch, held.index) == after[0]
    assert before + after == whole


def test_a_journal_by_signal_is_not_continued_without_it(tmp_path: Path) -> None:
    with sampler_of(3, journal=tmp_path / "a"):
        pass
    with pytest.raises(JournalMismatch, match="by_signal True, not False"):
        sampler_of(3, journal=tmp_path / "a", by_signal=False)
    with sampler_of(3, journal=tmp_path / "b") as sampler:
        sampler.update({1: [0, 1]})
    text = (tmp_path / "b").read_text()
    (tmp_path / "b").write_text(text.replace('"index": 1', '"index": 5'))
    with pytest.raises(JournalMismatch, match=r"line 2, has a group of task 5"):
        sampler_of(3, journal=tmp_path / "b")


def test_a_bad_update_names_what_is_wrong_and_changes_nothing(tmp_path: Path) -> None:
    with sampler_of(4, journal=tmp_path / "a") as sampler:
        before = (tmp_path / "a").read_text()
        for rewards, costs, message in (
            ({4: [0, 1]}, None, "task 4 is not in shard 0 of split 'train'"),
            ({0: [0, math.nan]}, None, "rewards of task 0 must be finite numbers, got nan"),
            ({0: [0, None]}, None, "rewards of task 0 must be finite numbers, got None"),
            ({0: [0, 1]}, {0: 0}, "cost of task 0 must be a number above 0, got 0"),
            ({0: [0, 1], 1: [0, 1]}, {0: 1}, "costs must have the tasks that rewards has"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                sampler.update(rewards, costs)
        assert (tmp_path / "a").read_text() == before
    with pytest.raises(UsageError, match="closed"):
        sampler.update({0: [0, 1]})
    with pytest.raises(UsageError, match="by_signal=True"):
        TaskSampler(4).update({0: [0, 1]})


# A policy on the questions of envs/reasoning, which knows more kinds of them the longer it trains.

TASKS, GROUPS = 300, 1500


@pytest.fixture
def reasoning(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("reasoning_gym")
    monkeypatch.syspath_prepend(str(ENVS))
    from reasoning.models import ReasoningAction
    from reasoning.server.reasoning_environment import ReasoningEnvironment

    yield ReasoningEnvironment(), ReasoningAction
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_half_as_many_groups_again_have_a_gradient_on_reasoning(reasoning: Any) -> None:
    environment, answer = reasoning
    known: dict[tuple[int, bool], float] = {}

    def reward(index: int, right: bool) -> float:
        """What the environment gives for the right answer, or a wrong one, to a question."""
        if (index, right) not in known:
            environment.reset(split="train", index=index)
            text = environment.state.answer if right else None  # some questions have no answer of their own
            known[index, right] = environment.step(answer(answer=text or "none of these")).reward
        return known[index, right]

    def difficulty(index: int) -> float:
        """Kinds of questions differ far more than questions of a kind do: neighbours are of different kinds."""
        environment.reset(split="train", index=index)
        return Random(environment.state.task).gauss(0, 6) + Random(index).gauss(0, 1)

    difficulties = [difficulty(index) for index in range(TASKS)]

    def with_gradient(by_signal: bool) -> int:
        sampler = TaskSampler(TASKS, seed=5, epochs=None, repeats=REPEATS, by_signal=by_signal)
        random, found = Random(1), 0
        for number in range(GROUPS):
            (index,) = groups(sampler, 1)
            skill = 4 * number / GROUPS - 2
            chance = 1 / (1 + math.exp(difficulties[index] - skill))
            rewards = [reward(index, random.random() < chance) for _ in range(REPEATS)]
            if by_signal:
                sampler.update({index: rewards})
            found += len(set(rewards)) > 1
        return found

    uniform, by_signal = with_gradient(False), with_gradient(True)
    assert by_signal >= 1.5 * uniform, (uniform, by_signal)
