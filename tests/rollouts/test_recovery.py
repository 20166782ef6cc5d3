"""Faults: sessions and processes that end in the middle of rollouts, and runs that go on after them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openenv.errors import JournalFailed, JournalInUse, JournalMismatch, SessionLost, UnreadableRecord
from openenv.evals.sampler import TaskSampler
from openenv.rollouts import (
    Completion,
    ModelRequest,
    Rollout,
    RolloutGroup,
    RolloutJournal,
    RolloutOutcome,
    RolloutRun,
    RolloutTask,
    StepRecord,
    Turn,
    read_rollouts,
    rollout_files,
    rollouts,
)
from openenv.rollouts.groups import LiveGroup
from openenv.rollouts.journal import GroupBegun
from openenv.server import create_app

from ..asynchronous import until
from .environments import Add, ScriptedModel, Sums, Total, adding

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _counted_anew() -> Iterator[None]:
    Sums.forget()
    yield
    assert Sums.live == 0


class Losing:
    """A model that ends the sessions of the server before some of its answers.

    Args:
        when: Whether to do it, by number of messages and of times that it was done.
    """

    def __init__(self, when: Callable[[int, int], bool]):
        self.app = create_app(Sums, Add, Total, max_concurrent_envs=100)
        self.losses = 0
        self._when = when
        self.model = ScriptedModel(self._answer)

    def _answer(self, messages: Any) -> dict[str, int]:
        if self._when(len(messages), self.losses):
            self.losses += 1
            for session in list(self.app.state.openenv.manager.sessions):
                session.end(SessionLost("its machine is gone"))
        return {"by": len(messages) // 2}

    async def rollout(self, fault: str = "", **options: Any) -> Rollout:
        task = RolloutTask(seed=5, arguments={"fault": fault})
        (group,) = [group async for group in rollouts(self.app, self.model, [task], **options)]
        (rollout,) = [*group.rollouts, *group.failed]
        return rollout


async def test_a_lost_session_is_played_again_with_the_same_answers() -> None:
    losing = Losing(lambda messages, losses: messages == 4 and losses == 0)
    rollout = await losing.rollout()
    assert (rollout.outcome, rollout.reward, rollout.attempts) == (RolloutOutcome.TERMINATED, 6.0, 2)
    assert Sums.resets == {5: 2}
    assert [turn.reward for turn in rollout.turns] == [1.0, 2.0, 3.0]
    # Each answer was sampled once.
    assert len(losing.model.keys) == len(set(losing.model.keys)) == 3


async def test_an_environment_that_is_not_deterministic_begins_from_scratch() -> None:
    losing = Losing(lambda messages, losses: messages == 6 and losses == 0)
    rollout = await losing.rollout(fault="random")
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (RolloutOutcome.TERMINATED, 6.0, 3)
    totals = [step.observation["total"] for turn in rollout.turns for step in turn.steps]
    resets = Sums.resets[5]
    assert totals == [5 + 1 + resets, 5 + 3 + 2 * resets, 5 + 6 + 3 * resets]  # all of one episode
    assert len(losing.model.keys) == len(set(losing.model.keys)) == 6


async def test_after_the_last_retry_the_rollout_has_failed_without_a_return() -> None:
    losing = Losing(lambda messages, losses: messages == 4)
    rollout = await losing.rollout(retries=1)
    # The answer after the loss is recorded, so the second attempt has it already: it fails at no later turn.
    assert rollout.outcome is RolloutOutcome.TERMINATED
    losing = Losing(lambda messages, losses: True)
    rollout = await losing.rollout(retries=1)
    assert (rollout.outcome, rollout.reward, rollout.attempts) == (RolloutOutcome.INFRASTRUCTURE, None, 2)
    assert rollout.failure is not None
    assert (rollout.failure.error, rollout.failure.blame) == ("SessionLost", "infrastructure")


class LosingMembers:
    """A model whose sessions are always lost in some rollouts, by the number in their group."""

    name, takes_ids = "losing", False

    def __init__(self, *members: int):
        self._lost = tuple(f"-{member}" for member in members)
        self._model = adding()

    async def complete(self, request: ModelRequest) -> Completion:
        if request.session is not None and request.session.endswith(self._lost):
            raise SessionLost("its machine is gone")
        return await self._model.complete(request)

    async def aclose(self) -> None: ...


async def test_a_sample_that_is_lost_for_good_is_replaced_and_its_group_is_full(tmp_path: Path) -> None:
    model, folder = LosingMembers(1, 4), tmp_path / "run"
    async with rollouts(Sums, model, [5], group_size=4, retries=1, folder=folder) as run:
        (group,) = await run.batch(2)
    assert (group.rewards, group.failed) == ([6.0] * 4, [])
    assert [rollout.member for rollout in group.rollouts] == [0, 2, 3, 5]
    assert {rollout.task.seed for rollout in group.rollouts} == {5}
    assert run.progress.outcomes == {RolloutOutcome.TERMINATED: 4, RolloutOutcome.INFRASTRUCTURE: 2}
    assert len(list(read_rollouts(folder))) == 6  # the lost ones are recorded too


async def test_samples_are_replaced_as_often_as_the_retries_allow(tmp_path: Path) -> None:
    options: dict[str, Any] = {"group_size": 2, "retries": 1, "folder": tmp_path}
    (group,) = [group async for group in rollouts(Sums, LosingMembers(*range(10)), [5], **options)]
    assert (len(group.rollouts), len(group.failed)) == (0, 2)
    assert len(list(read_rollouts(tmp_path))) == 4  # each place once more


# Runs that are interrupted.


def blocking(after: int) -> ScriptedModel:
    """Answers so many times, and never again."""

    async def answer(messages: Any) -> dict[str, int]:
        if len(model.requests) > after:
            await asyncio.Event().wait()
        return {"by": 2}

    model = ScriptedModel(answer)
    return model


async def interrupted(run: RolloutRun, model: ScriptedModel, after: int) -> None:
    """Begins a run and leaves it when its model has got that many requests and more."""
    async with run:
        taking = asyncio.create_task(run.batch(100))
        await until(lambda: len(model.requests) > after and len(asyncio.all_tasks()) > 0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


@pytest.mark.parametrize("after", range(0, 40, 7))
async def test_a_run_goes_on_where_it_was(tmp_path: Path, after: int) -> None:
    options: dict[str, Any] = {"group_size": 2, "sessions": 4, "folder": tmp_path}
    first, second = blocking(after), adding()
    await interrupted(rollouts(Sums, first, range(6), **options), first, after)
    finished = {rollout.rollout_id for rollout in read_rollouts(tmp_path)}
    groups = [group async for group in rollouts(Sums, second, range(6), **options)]
    assert [group.rewards for group in sorted(groups, key=lambda group: group.group)] == [[6.0, 6.0]] * 6
    assert sorted(group.task.seed or 0 for group in groups) == [*range(6)]
    # A rollout that had finished was not played again, and an answer that was recorded was not sampled again.
    assert not finished & {key.split("/")[1] for key in second.keys}
    assert not set(first.answered) & set(second.keys)
    assert sorted(first.answered + second.answered) == sorted({*first.keys, *second.keys})
    assert len(first.answered + second.answered) == 6 * 2 * 3
    everything = Counter(rollout.rollout_id for rollout in read_rollouts(tmp_path))
    assert everything == {f"{group:06d}-{member}": 1 for group in range(6) for member in range(2)}


async def test_a_filter_drops_a_group_of_an_interrupted_run_once(tmp_path: Path) -> None:
    first = blocking(9)
    await interrupted(rollouts(Sums, first, [1], folder=tmp_path, group_size=4, sessions=1), first, 9)
    keep: dict[str, Any] = {"keep": lambda group: len(group.rollouts) < 2}
    async with rollouts(Sums, adding(), [1], folder=tmp_path, group_size=4, **keep) as run:
        assert await run.batch(1) == []
    assert run.progress.dropped == 1


async def test_groups_that_were_taken_do_not_come_again(tmp_path: Path) -> None:
    async with rollouts(Sums, adding(), range(4), folder=tmp_path) as run:
        first = await run.batch(2)
        second = await run.batch(1)
    groups = [group async for group in rollouts(Sums, adding(), range(4), folder=tmp_path)]
    taken = {group.group for group in first}
    assert not taken & {group.group for group in groups}
    assert second[0].group in {group.group for group in groups}  # its consumer did not come back
    assert len(groups) == 2
    assert [group async for group in rollouts(Sums, adding(), range(4), folder=tmp_path)] == []


async def test_a_sampler_with_a_journal_and_a_run_go_on_together(tmp_path: Path) -> None:
    seen: list[Any] = []
    for _ in range(3):
        with TaskSampler(5, seed=1, repeats=2, journal=tmp_path / "tasks") as sampler:
            async with rollouts(Sums, adding(), sampler, folder=tmp_path / "run") as run:
                batch = await run.batch(4)
                seen += batch
                await run.batch(1)
    assert len({group.group for group in seen}) == len(seen) == 10
    assert Counter(group.task.index for group in seen) == dict.fromkeys(range(5), 2)


async def test_tasks_without_a_seed_get_the_same_one_again(tmp_path: Path) -> None:
    tasks = [RolloutTask(split="train", index=3)] * 3
    first = blocking(4)
    await interrupted(rollouts(Sums, first, tasks, folder=tmp_path, sessions=2), first, 4)
    seeds = dict(Sums.resets)
    groups = [group async for group in rollouts(Sums, adding(), tasks, folder=tmp_path, sessions=2)]
    assert len({group.task.seed for group in groups}) == 3
    assert set(seeds) <= {group.task.seed for group in groups}


def journal_of(folder: Path) -> Path:
    (journal,) = folder.glob("journal-*")
    return journal


async def test_an_incomplete_last_line_is_no_damage_and_any_other_is(tmp_path: Path) -> None:
    model = blocking(7)
    await interrupted(rollouts(Sums, model, range(3), folder=tmp_path, sessions=2), model, 7)
    (finished,) = rollout_files(tmp_path)
    for path in (journal_of(tmp_path), finished):
        with path.open("ab") as file:
            file.write(b'{"type": "turn", "rol')
    assert len([group async for group in rollouts(Sums, adding(), range(3), folder=tmp_path)]) == 3
    assert len(list(read_rollouts(tmp_path))) == 3
    journal = journal_of(tmp_path)
    journal.write_bytes(journal.read_bytes()[:-9] + b"garbage\n")
    with pytest.raises(UnreadableRecord, match=f"{journal.name}, line"):
        [group async for group in rollouts(Sums, adding(), range(3), folder=tmp_path)]


async def test_one_process_at_a_time_works_on_a_run(tmp_path: Path) -> None:
    async with rollouts(Sums, adding(), range(3), folder=tmp_path) as run:
        await run.batch(1)
        with pytest.raises(JournalInUse, match="another process"):
            await rollouts(Sums, adding(), range(3), folder=tmp_path).batch(1)


def test_of_runs_that_begin_in_a_new_folder_at_the_same_moment_one_goes_on(tmp_path: Path) -> None:
    begins = threading.Barrier(8)

    def begin(folder: Path) -> RolloutJournal | JournalInUse:
        begins.wait()
        try:
            return RolloutJournal(folder, "run", "sums", "scripted")
        except JournalInUse as error:
            return error

    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            begun = list(threads.map(begin, [tmp_path / str(number)] * 8))
            (journal,) = [each for each in begun if isinstance(each, RolloutJournal)]
            journal.close()


def test_a_fork_never_has_the_number_of_a_rollout_that_was_dropped(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "run", "sums", "scripted")
    task = RolloutTask(seed=1)
    live = LiveGroup(RolloutGroup("000000", task, []), [0, 1], 2)
    assert live.new_member() == 2
    live.members.remove(2)
    assert live.new_member() == 3
    live.members.remove(3)
    journal.group(live.begun)
    journal.close()
    resumed = RolloutJournal(tmp_path, "again", "sums", "scripted")
    assert (resumed.groups["000000"].begun.members, resumed.groups["000000"].begun.numbered) == ([0, 1], 4)
    resumed.close()


async def test_a_folder_is_for_one_environment_and_one_model(tmp_path: Path) -> None:
    assert len([group async for group in rollouts(Sums, adding(), [1], folder=tmp_path)]) == 1
    other = adding()
    other.name = "other"
    with pytest.raises(JournalMismatch, match="scripted"):
        await rollouts(Sums, other, [1], folder=tmp_path).batch(1)


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """No file may grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_is_an_error_that_names_the_folder_and_nothing_is_lost(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    small_disk(8_000)
    with pytest.raises(JournalFailed, match=str(tmp_path)):
        [group async for group in rollouts(Sums, adding(), range(50), folder=tmp_path, sessions=4)]
    small_disk(10_000_000)
    finished = {rollout.rollout_id for rollout in read_rollouts(tmp_path)}
    assert 0 < len(finished) < 50
    assert all(rollout.reward == 6.0 for rollout in read_rollouts(tmp_path))
    model = adding()
    assert len([group async for group in rollouts(Sums, model, range(50), folder=tmp_path)]) > 0
    everything = Counter(rollout.rollout_id for rollout in read_rollouts(tmp_path))
    assert everything == {f"{group:06d}-0": 1 for group in range(50)}
    assert not finished & {key.split("/")[1] for key in model.keys}


class Fragile(Sums):
    """Its session ends before the results of some steps, by number in this process."""

    app: Any = None
    taken: int = 0
    last: tuple[int, ...] = ()

    def step(self, action: Add, timeout_s: float | None = None, **kwargs: Any) -> Total:
        type(self).taken += 1
        if self.taken in self.last:
            for session in list(self.app.state.openenv.manager.sessions):
                session.end(SessionLost("its machine is gone"))
        return super().step(action, timeout_s, **kwargs)


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_session_that_is_lost_in_a_repetition_leaves_a_run_that_can_go_on(tmp_path: Path, calls: int) -> None:
    Fragile.app, Fragile.taken = create_app(Fragile, Add, Total, max_concurrent_envs=9), 0
    Fragile.last = (4, 4 + calls)  # the second time as it repeats the first turn

    async def answer(messages: Any) -> Any:
        if len(model.requests) > 6 // calls - 1:
            await asyncio.Event().wait()
        return [{"by": 2}] * calls

    model = ScriptedModel(answer)
    task = RolloutTask(seed=1, arguments={"length": 6})
    await interrupted(rollouts(Fragile.app, model, [task], folder=tmp_path), model, 6 // calls - 1)
    Fragile.last = ()
    again = ScriptedModel(lambda messages: [{"by": 2}] * calls)
    (group,) = [group async for group in rollouts(Fragile.app, again, [task], folder=tmp_path)]
    assert group.rewards == [12.0]
    assert len(model.answered + again.answered) == 6 // calls


async def test_a_run_that_is_cut_off_as_it_goes_on_can_go_on(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    first = blocking(8)
    await interrupted(rollouts(Sums, first, range(6), folder=tmp_path, sessions=6), first, 8)
    before = journal_of(tmp_path)
    content = before.read_bytes()
    small_disk(len(content) // 2)
    with pytest.raises(JournalFailed, match="make room"):
        await rollouts(Sums, adding(), range(6), folder=tmp_path).batch(1)
    small_disk(10_000_000)
    second = blocking(2)
    await interrupted(rollouts(Sums, second, range(6), folder=tmp_path, sessions=1), second, 2)
    before.write_bytes(content)  # the process was killed before it removed the file
    third = adding()
    groups = [group async for group in rollouts(Sums, third, range(6), folder=tmp_path)]
    assert [group.rewards for group in groups] == [[6.0]] * 6
    assert len({*first.answered, *second.answered, *third.answered}) == 6 * 3
    assert len(first.answered + second.answered + third.answered) == 6 * 3


# A long journal.


def life_of_a_run(journal: RolloutJournal) -> Iterator[None]:
    """Two groups of two rollouts: some rollouts finish, one begins from scratch, and a group ends."""
    for number in range(2):
        group, task = f"{number:06d}", RolloutTask(seed=number)
        ids = [f"{group}-{member}" for member in range(2)]
        journal.group(GroupBegun(group, task, [0, 1], numbered=2))
        yield
        for place in range(2):
            for rollout_id in ids:
                turn = Turn(prompt=[], completion={"role": "assistant", "content": f"{rollout_id} {place}" * 20})
                journal.turn(rollout_id, place, turn)
                yield
                journal.step(rollout_id, place, StepRecord(action={"by": place}))
                yield
            if number == place == 1:
                journal.restart(ids[1])
                yield
                ids = ids[:1]
        for member, rollout_id in enumerate(ids):
            outcome = RolloutOutcome.TERMINATED
            journal.finish(Rollout(rollout_id, task, group=group, member=member, outcome=outcome, turns=[]))
            yield
        if number == 0:
            journal.end(group)
            yield


def recorded_in(folder: Path) -> list[Any]:
    """What the next process finds."""
    journal = RolloutJournal(folder, "again", "sums", "scripted")
    journal.close()
    assert journal.run_id == "run"
    return [
        (
            group.begun,
            group.ended,
            sorted(group.finished),
            {rollout: turns for rollout, turns in group.turns.items() if turns},
            {rollout: count for rollout, count in group.restarts.items() if rollout not in group.finished},
        )
        for group in journal.groups.values()
    ]


def live_until(folder: Path, last_call: int, done: Any) -> None:
    """Lives the life of a run, and is killed before one of its calls of the operating system."""
    calls = itertools.count(1)

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **options: Any) -> Any:
            if next(calls) == last_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **options)

        return called

    journal = RolloutJournal(folder, "run", "sums", "scripted", long_bytes=700)
    for name in ("open", "write", "fsync", "rename", "unlink", "close"):
        setattr(os, name, killing(getattr(os, name)))
    for _ in life_of_a_run(journal):
        done.value += 1


@pytest.mark.slow
def test_a_run_that_is_killed_as_it_replaces_its_journal_loses_nothing(tmp_path: Path) -> None:
    expected: list[list[Any]] = [[]]
    for length in range(1, 100):
        with contextlib.closing(RolloutJournal(tmp_path / f"e{length}", "run", "sums", "scripted")) as journal:
            lived = len(list(itertools.islice(life_of_a_run(journal), length)))
        if lived < length:
            break
        expected.append(recorded_in(tmp_path / f"e{length}"))
    children = multiprocessing.get_context("fork")
    for last_call in itertools.count(1):
        folder = tmp_path / str(last_call)
        done = children.Value("i", 0)
        child = children.Process(target=live_until, args=(folder, last_call, done))
        child.start()
        child.join()
        assert recorded_in(folder) in expected[done.value : done.value + 2], last_call
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert last_call > len(expected) + 2 * 5  # it was replaced at least twice


def test_the_journal_of_a_long_run_stays_short(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "run", "sums", "scripted", long_bytes=20_000)
    turn = Turn(prompt=[], completion={"role": "assistant", "content": "x" * 500})
    for number in range(200):
        group, task = f"{number:06d}", RolloutTask(seed=number)
        journal.group(GroupBegun(group, task, [0], numbered=1))
        for place in range(5):
            journal.turn(f"{group}-0", place, turn)
        outcome = RolloutOutcome.TERMINATED
        journal.finish(Rollout(f"{group}-0", task, group=group, member=0, outcome=outcome, turns=[turn] * 5))
        journal.end(group)
        assert journal_of(tmp_path).stat().st_size < 60_000
    journal.turn("000000-0", 5, turn)  # of a group that has ended
    journal.close()
    again = RolloutJournal(tmp_path, "again", "sums", "scripted")
    assert [group.ended for group in again.groups.values()] == [True] * 200
    again.close()


def test_a_journal_that_cannot_be_replaced_is_used_on(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "run", "sums", "scripted", long_bytes=1)
    journal.group(GroupBegun("000000", RolloutTask(seed=0), [0], numbered=1))
    journal.turn("000000-0", 0, Turn(prompt=[], completion={"role": "assistant", "content": "x" * 500}))
    before, limits = journal_of(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # no other file can be opened
    try:
        journal.end("000000")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert journal_of(tmp_path) == before
    journal.close()
    again = RolloutJournal(tmp_path, "again", "sums", "scripted")
    assert again.groups["000000"].ended
    again.close()


TRAINER = """
import asyncio, sys
from openenv.rollouts import rollouts
from tests.rollouts.environments import Sums, ScriptedModel

class Telling(ScriptedModel):
    async def complete(self, request):
        print("asked", request.key, flush=True)
        return await super().complete(request)

async def main():
    model = Telling(lambda messages: {"by": 2})
    async for group in rollouts(Sums, model, range(40), group_size=2, sessions=8, folder=sys.argv[1]):
        pass

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.real
def test_a_killed_run_loses_and_repeats_nothing(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    for kill_after in (30, 50, 70, None):
        command = [sys.executable, "-c", TRAINER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as trainer:
            assert trainer.stdout is not None
            for number, line in enumerate(trainer.stdout):
                if line.startswith("asked") and line.endswith("\n"):
                    asked[line.split()[1]] += 1
                if number == kill_after:
                    os.kill(trainer.pid, signal.SIGKILL)
        assert trainer.returncode == (-signal.SIGKILL if kill_after else 0)
    everything = Counter(rollout.rollout_id for rollout in read_rollouts(tmp_path))
    assert everything == {f"{group:06d}-{member}": 1 for group in range(40) for member in range(2)}
    assert all(rollout.reward == 6.0 for rollout in read_rollouts(tmp_path))
    assert len(asked) == 40 * 2 * 3
    # Only an answer that was on its way when the process died was asked for again, under its key.
    assert asked.total() - len(asked) <= 3 * 8
