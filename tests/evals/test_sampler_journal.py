from __future__ import annotations

import itertools
import json
import os
import resource
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from openenv.errors import JournalInUse, JournalMismatch, OpenEnvError
from openenv.evals.sampler import TaskSampler


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "train.journal"


def sampler_of(journal: Path, size: int = 10, **values: Any) -> TaskSampler:
    return TaskSampler(size, seed=5, journal=journal, **values)


def lines(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_there_is_one_line_for_each_event(journal: Path) -> None:
    with sampler_of(journal, shuffle=False) as sampler:
        first, second = sampler.take(), sampler.take()
        assert first is not None
        assert second is not None
        second.give_back()
        first.finish()
    head, *events = lines(journal)
    assert head == {
        "journal": "openenv.sampler",
        "version": 1,
        "split": "train",
        "size": 10,
        "seed": 5,
        "shuffle": False,
        "repeats": 1,
        "shard": 0,
        "shards": 1,
        "by_signal": False,
    }
    assert events == [
        {"event": event, "epoch": 0, "index": index, "repeat": 0}
        for event, index in [("taken", 0), ("taken", 1), ("returned", 1), ("finished", 0)]
    ]


def test_what_was_not_finished_comes_first_and_what_was_does_not_come_again(journal: Path) -> None:
    with sampler_of(journal, epochs=2, repeats=2) as sampler:
        taken = [sampler.take() for _ in range(8)]
        for task in taken[2:6]:
            assert task is not None
            task.finish()
    keys = [(task.epoch, task.index, task.repeat) for task in taken if task is not None]
    with sampler_of(journal, epochs=2, repeats=2) as sampler:
        assert sampler.left == 40 - 4
        rest = [(task.epoch, task.index, task.repeat) for task in sampler]
    assert set(rest[:4]) == set(keys[:2] + keys[6:])
    assert len(rest) == len(set(rest)) == 36
    assert not set(rest) & set(keys[2:6])


def test_the_seeds_are_the_same_after_a_restart(journal: Path) -> None:
    with sampler_of(journal) as sampler:
        before = {task.index: task.seed for task in sampler}
    with sampler_of(journal) as sampler:
        assert {task.index: task.seed for task in sampler} == before


def test_more_epochs_may_be_asked_for_later(journal: Path) -> None:
    with sampler_of(journal) as sampler:
        for task in sampler:
            task.finish()
    with sampler_of(journal) as sampler:
        assert sampler.take() is None
    with sampler_of(journal, epochs=2) as sampler:
        assert sampler.left == 10
        assert {task.epoch for task in sampler} == {1}


def test_a_last_line_that_was_cut_off_is_removed_wherever_that_was(journal: Path) -> None:
    with sampler_of(journal) as sampler:
        for task in itertools.islice(sampler, 3):
            task.finish()
    whole = journal.read_bytes()
    for size in range(len(whole)):
        journal.write_bytes(whole[:size])
        done = whole[:size].count(b"finished", 0, whole.rfind(b"\n", 0, size) + 1)
        with sampler_of(journal) as sampler:
            assert sampler.left == 10 - done
            assert len([*sampler]) == 10 - done
        assert all(lines(journal))


def test_a_second_sampler_is_refused_until_the_first_is_closed(journal: Path) -> None:
    first = sampler_of(journal)
    with pytest.raises(JournalInUse, match=r"train.journal.*shard") as caught:
        sampler_of(journal)
    assert caught.value.blame == "client"
    first.close()
    sampler_of(journal).close()


def test_a_sampler_that_nobody_has_any_more_lets_go_of_its_journal(journal: Path) -> None:
    sampler = sampler_of(journal)
    with pytest.raises(JournalInUse):
        sampler_of(journal)
    del sampler
    sampler_of(journal).close()


def test_a_forked_process_does_not_hold_the_journal(journal: Path) -> None:
    sampler = sampler_of(journal)
    (ready, said), (until, end) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.write(said, b".")
        os.read(until, 1)  # until the parent lets go
        os._exit(0)
    os.close(until)
    os.read(ready, 1)
    sampler.close()
    sampler_of(journal).close()
    for pipe in (ready, said, end):
        os.close(pipe)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"size": 11},
        {"split": "test"},
        {"shuffle": False},
        {"repeats": 2},
        {"shard": 1, "shards": 2},
        {"shards": 2},
    ],
)
def test_a_journal_of_other_values_is_refused_and_left_as_it_is(journal: Path, other: dict[str, Any]) -> None:
    with sampler_of(journal) as sampler:
        sampler.take()
    before = journal.read_bytes()
    with pytest.raises(JournalMismatch, match=next(iter(other))) as caught:
        sampler_of(journal, **other)
    assert "another" in caught.value.message
    assert journal.read_bytes() == before


def test_a_journal_of_an_earlier_release_goes_on(journal: Path) -> None:
    """Its first line does not say whether tasks are chosen by their signal: they were not."""
    with sampler_of(journal) as sampler:
        for _ in range(4):
            task = sampler.take()
            assert task is not None
            task.finish()
    head, *events = lines(journal)
    del head["by_signal"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in [head, *events]))
    with sampler_of(journal) as sampler:
        assert len(list(iter(sampler.take, None))) == 6


def test_a_seed_of_another_run_is_refused(journal: Path) -> None:
    sampler_of(journal).close()
    with pytest.raises(JournalMismatch, match="seed 5, not 6"):
        TaskSampler(10, seed=6, journal=journal)


@pytest.mark.parametrize("text", [b"hello", b"hello\nworld\n", b"{}\n", b'{"journal": "x"}\n', b"[1]\n", bytes(9)])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(journal: Path, text: bytes) -> None:
    journal.write_bytes(text)
    with pytest.raises(JournalMismatch, match=r"line 1, is not a line of a sampler's journal"):
        sampler_of(journal)
    assert journal.read_bytes() == text


TAKEN = '{"event": "taken", "epoch": 0, "index": 1, "repeat": 0}\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TAKEN * 2, "line 3, says that task 1 of epoch 0 was taken twice"),
        (TAKEN.replace("taken", "finished"), "line 2.*finished without being taken first"),
        (TAKEN.replace("taken", "lost"), "line 2, is not a line"),
        (TAKEN.replace("1", "10"), "line 2.*not this shard's"),
        (TAKEN.replace('"epoch": 0', '"epoch": 7'), "line 2.*before its turn"),
        (TAKEN.replace('"repeat": 0', '"repeat": 1'), "line 2"),
        (TAKEN.replace('"epoch": 0', '"epoch": "0"'), "line 2, is not a line"),
        ("\n", "line 2, is not a line"),
        ("what\n" + TAKEN, "line 2, is not a line"),
    ],
)
def test_what_cannot_have_come_about_is_refused_with_its_line(journal: Path, text: str, complaint: str) -> None:
    sampler_of(journal).close()
    before = journal.read_text() + text
    journal.write_text(before)
    with pytest.raises(JournalMismatch, match=complaint):
        sampler_of(journal)
    assert journal.read_text() == before


def test_a_disk_that_is_full_is_one_error_and_no_torn_line(journal: Path) -> None:
    sampler = sampler_of(journal, sync=True)
    task = sampler.take()
    assert task is not None
    size = journal.stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 7, limits[1]))  # as a disk with so many bytes left
        with pytest.raises(OpenEnvError, match=r"train.journal cannot be written"):
            sampler.take()
        with pytest.raises(OpenEnvError, match="cannot be written"):
            task.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert journal.stat().st_size == size
    task.finish()
    sampler.close()
    with sampler_of(journal) as sampler:
        assert sampler.left == 9


def test_any_sequence_of_events_and_restarts_gives_every_task_once(journal: Path) -> None:
    random = Random(1)
    done: list[tuple[int, int, int]] = []
    held: list[Any] = []
    for _ in range(30):
        with sampler_of(journal, epochs=3, repeats=2, shards=2) as sampler:
            held.clear()
            for _ in range(random.randrange(12)):
                if held and random.random() < 0.5:
                    task = held.pop(random.randrange(len(held)))
                    if random.random() < 0.7:
                        task.finish()
                        done.append((task.epoch, task.index, task.repeat))
                    else:
                        task.give_back()
                elif (task := sampler.take()) is not None:
                    assert (task.epoch, task.index, task.repeat) not in done
                    held.append(task)
            assert sampler.left == 30 - len(done)
    with sampler_of(journal, epochs=3, repeats=2, shards=2) as sampler:
        done += [(task.epoch, task.index, task.repeat) for task in sampler]
    assert len(done) == len(set(done)) == 30
