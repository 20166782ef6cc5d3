"""Trainers that are killed: their samplers' journals go on where they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from openenv.evals.sampler import TaskSampler

pytestmark = [pytest.mark.real, pytest.mark.slow]

SIZE, SHARDS, ROUNDS = 30_000, 2, 6
TRAINER = """
import os, sys, threading
from openenv.evals.sampler import TaskSampler

journal, size, shard, shards = sys.argv[1], *map(int, sys.argv[2:])
sampler = TaskSampler(size, seed=1, shard=shard, shards=shards, journal=journal)

def session():
    for task in sampler:
        with task:
            pass
        os.write(1, b"%d\\n" % task.index)

threads = [threading.Thread(target=session) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def train(journal: Path, shard: int, most: int | None) -> list[int]:
    """Runs a trainer until it has said so many times that a task is finished, and kills it then."""
    command = [sys.executable, "-c", TRAINER, str(journal), str(SIZE), str(shard), str(SHARDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        said = []
        for line in trainer.stdout:
            said.append(int(line)) if line.endswith(b"\n") else None
            if len(said) == most:
                trainer.kill()
        if most is None:
            assert trainer.wait() == 0
    return said


def test_what_a_killed_trainer_has_finished_never_comes_again(tmp_path: Path) -> None:
    random = Random(7)
    found: list[int] = []
    for shard in range(SHARDS):
        journal = tmp_path / f"{shard}.journal"
        said: list[int] = []
        for _ in range(ROUNDS // SHARDS):
            before = len(said)
            said += train(journal, shard, random.randrange(1, 2000))
            assert len(said) == len(set(said)) > before
        with TaskSampler(SIZE, seed=1, shard=shard, shards=SHARDS, journal=journal) as sampler:
            left = [task.index for task in sampler]
        # What was finished just before the end may not have been said any more: one task of each session and round.
        assert len(left) <= SIZE // SHARDS - len(said)
        assert len(left) >= SIZE // SHARDS - len(said) - 4 * ROUNDS
        assert not set(left) & set(said)
        rest = train(journal, shard, None)
        assert sorted(rest) == sorted(left)
        found += said + rest
    assert len(found) == len(set(found)) >= SIZE - 4 * ROUNDS * SHARDS
