from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import InvalidArgument, TaskTaken, UsageError
from openenv.evals.sampler import TaskSampler

from .environments import Tasked


def indices(sampler: TaskSampler) -> list[int]:
    """Takes and finishes everything."""
    found = []
    for task in sampler:
        with task:
            found.append(task.index)
    return found


def test_every_task_comes_once_in_an_order_that_the_seed_gives() -> None:
    order = indices(TaskSampler(100, seed=3))
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    assert indices(TaskSampler(100, seed=3)) == order
    assert indices(TaskSampler(100, seed=4)) != order
    assert indices(TaskSampler(range(5), shuffle=False)) == [0, 1, 2, 3, 4]


def test_the_order_is_the_same_in_every_release() -> None:
    """A journal that was begun with another one goes on."""
    assert indices(TaskSampler(8, seed=1, epochs=2)) == [1, 5, 4, 2, 7, 0, 3, 6, 1, 5, 2, 3, 6, 4, 0, 7]


def test_every_epoch_has_every_task_in_another_order() -> None:
    order = indices(TaskSampler(50, epochs=3))
    epochs = [order[:50], order[50:100], order[100:]]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_without_a_number_of_epochs_there_is_no_end() -> None:
    sampler = TaskSampler(2, epochs=None)
    assert sampler.left is None
    for number in range(100):
        task = sampler.take()
        assert task is not None
        assert task.epoch == number // 2
        task.finish()


@pytest.mark.parametrize(("size", "shards"), [(10, 1), (10, 3), (7, 7), (1000, 8)])
def test_shards_have_every_task_once_together(size: int, shards: int) -> None:
    found = [indices(TaskSampler(size, seed=1, epochs=2, shard=shard, shards=shards)) for shard in range(shards)]
    assert Counter(index for part in found for index in part) == dict.fromkeys(range(size), 2)
    assert max(map(len, found)) - min(map(len, found)) <= 2  # one an epoch


def test_repeats_of_a_task_follow_one_another_with_one_seed() -> None:
    tasks = list(TaskSampler(5, repeats=4, shard=1, shards=2, epochs=2))
    assert len(tasks) == 2 * 4 * 2
    for first in range(0, len(tasks), 4):
        group = tasks[first : first + 4]
        assert len({(task.epoch, task.index, task.seed) for task in group}) == 1
        assert [task.repeat for task in group] == [0, 1, 2, 3]
    assert len({task.seed for task in tasks}) == 4
    assert all(0 <= task.seed < 2**31 for task in tasks)


def test_what_is_given_back_comes_next_and_no_task_comes_to_two() -> None:
    sampler = TaskSampler(3, shuffle=False)
    first, second = sampler.take(), sampler.take()
    assert first is not None
    assert second is not None
    first.give_back()
    again = sampler.take()
    assert again is not None
    assert again.index == first.index == 0
    assert [task.index for task in sampler] == [2]
    assert sampler.take() is None
    assert sampler.left == 3
    with pytest.raises(TaskTaken, match="given back before"):
        first.finish()  # another one has it now
    again.finish()
    with pytest.raises(TaskTaken, match="finished"):
        again.give_back()
    assert sampler.left == 2


def test_an_index_is_taken_once_in_an_epoch() -> None:
    sampler = TaskSampler(5, split="test", shuffle=False)
    task = sampler.take(3)
    assert task is not None
    with pytest.raises(TaskTaken, match="task 3 is taken or done in epoch 0") as caught:
        sampler.take(3)
    assert caught.value.data == {"split": "test", "index": 3, "epoch": 0}
    assert caught.value.blame == "client"
    task.finish()
    with pytest.raises(TaskTaken):
        sampler.take(3)
    assert [task.index for task in sampler] == [0, 1, 2, 4]
    with pytest.raises(TaskTaken, match="all tasks"):
        sampler.take(3)


def test_an_index_that_is_not_to_be_had_says_why() -> None:
    for wrong in (5, -1, True, "1"):
        with pytest.raises(InvalidArgument, match="no task"):
            TaskSampler(5).take(wrong)
    mine = set(indices(TaskSampler(4, shard=0, shards=2)))
    with pytest.raises(InvalidArgument, match="another shard's"):
        TaskSampler(4, shard=0, shards=2).take(min({0, 1, 2, 3} - mine))


def test_repeats_may_be_taken_by_their_index() -> None:
    sampler = TaskSampler(2, repeats=2, shuffle=False)
    taken = [sampler.take(1), sampler.take(1)]
    assert [task.repeat for task in taken if task is not None] == [0, 1]
    with pytest.raises(TaskTaken):
        sampler.take(1)
    assert [task.index for task in sampler] == [0, 0]


def test_a_block_finishes_its_task_or_gives_it_back() -> None:
    sampler = TaskSampler(1)
    task = sampler.take()
    assert task is not None
    with pytest.raises(KeyError):
        with task:
            raise KeyError
    task = sampler.take()
    assert task is not None
    with task:
        task.finish()  # by itself
    assert sampler.left == 0


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"tasks": 0}, "size"),
        ({"tasks": 1.5}, "size"),
        ({"tasks": True}, "size"),
        ({"epochs": 0}, "epochs"),
        ({"repeats": 0}, "repeats"),
        ({"shards": 0}, "shards"),
        ({"shard": 2, "shards": 2}, "0 to 1"),
        ({"shard": -1}, "shard"),
        ({"shards": 11}, "at most 10"),
        ({"seed": "1"}, "seed"),
        ({"journal": "/"}, "cannot be opened"),
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        TaskSampler(**{"tasks": 10, **values})


def test_threads_and_coroutines_share_one_sampler(tmp_path: Any) -> None:
    sampler = TaskSampler(2000, journal=tmp_path / "journal", epochs=2)

    async def session() -> list[int]:
        found = []
        for task in sampler:
            with task:
                await asyncio.sleep(0)
                found.append(task.index)
        return found

    async def sessions() -> list[int]:
        return [index for part in await asyncio.gather(*(session() for _ in range(8))) for index in part]

    with ThreadPoolExecutor(8) as pool:
        taken = [pool.submit(indices, sampler) for _ in range(7)] + [pool.submit(asyncio.run, sessions())]
        found = Counter(index for part in taken for index in part.result())
    assert found == dict.fromkeys(range(2000), 2)
    assert sampler.left == 0
    sampler.close()
    with TaskSampler(2000, journal=tmp_path / "journal", epochs=2) as again:
        assert again.left == 0


def _take_in_child(sampler: TaskSampler, said: Any) -> None:
    try:
        sampler.take()
    except UsageError as error:
        said.put(error.message)


def test_a_sampler_stays_in_its_process() -> None:
    sampler = TaskSampler(3)
    with pytest.raises(UsageError, match="shard"):
        pickle.dumps(sampler)
    forking = multiprocessing.get_context("fork")
    said = forking.Queue()
    child = forking.Process(target=_take_in_child, args=(sampler, said))
    child.start()
    assert "belongs to process" in said.get(timeout=30)
    child.join()
    sampler.close()
    with pytest.raises(UsageError, match="closed"):
        sampler.take()


def test_a_fork_in_the_middle_of_a_call_is_refused_too() -> None:
    sampler = TaskSampler(3)
    forking = multiprocessing.get_context("fork")
    said = forking.Queue()
    child = forking.Process(target=_take_in_child, args=(sampler, said))
    with sampler._lock:  # as by another thread, which the child does not have
        child.start()
    try:
        assert "belongs to process" in said.get(timeout=30)
    finally:
        child.kill()
        child.join()


def test_a_million_tasks_are_no_burden() -> None:
    sampler = TaskSampler(1_000_000, shard=3, shards=1000)
    assert sampler.left == 1000
    task = sampler.take()
    assert task is not None
    assert repr(task) == f"<task {task.index} of 'train', epoch 0, repeat 0>"


async def test_it_takes_the_tasks_of_a_client_and_gives_what_its_reset_takes() -> None:
    async with GenericEnvClient(env=Tasked) as env:
        sampler = TaskSampler(await env.tasks("test"), split="test")
        rewards = []
        for task in sampler:
            with task:
                await env.reset(split=task.split, index=task.index, seed=task.seed)
                rewards.append((await env.step({})).reward)
    assert sorted(rewards) == [0.0, 1.0, 2.0]
