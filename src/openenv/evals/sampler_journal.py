"""The sampler's order of tasks, and the journal that records taken and finished ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import weakref
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from .._files import BINARY, lock_file, sync_folder
from ..errors import InvalidArgument, JournalInUse, JournalMismatch, OpenEnvError

_SEED_BITS = 31


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The tasks of a split, their order, and their distribution to shards.

    Attributes:
        split: Name of the split.
        size: Number of tasks in the split.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order; otherwise tasks come by index.
        repeats: How often each task comes in an epoch, in a row.
        shard, shards: Number of this shard, from 0, and number of shards.
        by_signal: Whether tasks come by the results of their groups.
    """

    split: str
    size: int
    seed: int
    shuffle: bool
    repeats: int
    shard: int
    shards: int
    by_signal: bool = False

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("repeats", 1), ("shards", 1), ("shard", 0), ("seed", None)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
                at_least = "" if least is None else f" of at least {least}"
                raise InvalidArgument(f"{name} must be a whole number{at_least}, got {value!r}")
        if self.shard >= self.shards:
            raise InvalidArgument(f"shard must be one of 0 to {self.shards - 1} (shards={self.shards}): {self.shard}")
        if self.shards > self.size:
            raise InvalidArgument(
                f"{self.shards} shards of {self.size} tasks: some would have none; use at most {self.size} shards"
            )

    @property
    def share(self) -> int:
        """Number of tasks in this shard per epoch."""
        return len(range(self.shard, self.size, self.shards))

    def order(self, epoch: int) -> array[int]:
        """The indices of this shard's tasks, in the order of an epoch.

        The shards of an epoch together have every index once; their sizes differ by at most one.
        """
        indices = array("q", range(self.size))
        if self.shuffle:
            Random(f"{self.seed}/{epoch}").shuffle(indices)  # noqa: S311 - an order, no secret
        return indices[self.shard :: self.shards]

    def seed_of(self, epoch: int, index: int) -> int:
        """The seed for the episodes of a task in an epoch: the same for all its repeats and in any shard."""
        words = f"{self.seed}/{self.split}/{epoch}/{index}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest()) >> (64 - _SEED_BITS)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The results of a group, for its task.

    Attributes:
        index: Index of the task in its split.
        rewards: Return of each rollout.
        cost: What the group cost, in any unit (tokens, seconds), but the same for all groups.
    """

    index: int
    rewards: Sequence[float]
    cost: float = 1.0

    def check(self) -> None:
        """Raises InvalidArgument unless the rewards and the cost are finite, and the cost is above 0."""
        for reward in self.rewards:
            if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
                raise InvalidArgument(f"rewards of task {self.index} must be finite numbers, got {reward!r}")
        if isinstance(self.cost, bool) or not isinstance(self.cost, (int, float)) or not 0 < self.cost < math.inf:
            raise InvalidArgument(f"the cost of task {self.index} must be a number above 0, got {self.cost!r}")


EVENTS = ("taken", "finished", "returned")
RESULT = "result"
_KIND, _VERSION = "openenv.sampler", 1
_MARK = b'{"journal": "openenv.sampler", '
_open: weakref.WeakSet[TaskJournal] = weakref.WeakSet()
TaskKey = tuple[int, int, int]
"""The epoch, index and repeat of a task."""


class TaskJournal:
    """An append-only JSONL file with one line per event; the first line has the plan.

    Each line is with the operating system before a call returns, so it survives a crash of this process. With `sync`
    it is on the disk, and survives a crash of the machine. An incomplete last line is removed.

    The file is locked while it is open; the lock ends with the process.

    Args:
        path: The file; it is created if it does not exist.
        plan: The plan of the tasks.
        sync: Whether every line is synced to the disk before a call returns (milliseconds each).

    Raises:
        JournalInUse: Another sampler has the file open.
        JournalMismatch: The file is of another plan, or not a journal; the message says which.
        InvalidArgument: The file cannot be opened.
    """

    def __init__(self, path: Path, plan: SamplingPlan, sync: bool):
        self.path = path
        self._sync = sync
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o644)
        except OSError as error:
            raise InvalidArgument(f"the journal {path} cannot be opened: {error.strerror}") from None
        self._end = 0
        try:
            if not lock_file(self._file):
                raise JournalInUse(
                    f"another sampler uses the journal {path}: close that one, or give each process a shard and a "
                    "journal of its own (shard=, shards=, journal=)"
                )
            self._recorded = self._read(plan)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def recorded(self) -> Iterator[tuple[int, str, TaskKey | GroupResult]]:
        """Yields the events that the file had when it was opened: line number, event and task, or result of a group.

        Call it once.

        Raises:
            JournalMismatch: A line is not an event.
        """
        text, self._recorded = self._recorded, b""
        for number, line in enumerate(io.BytesIO(text), 2):
            try:
                said = json.loads(line)
                event = said["event"]
                if event == RESULT:
                    result = GroupResult(said["index"], said["rewards"], said["cost"])
                    result.check()
                    yield number, event, result
                    continue
                key = (said["epoch"], said["index"], said["repeat"])
            except (ValueError, TypeError, KeyError, InvalidArgument):
                raise self._foreign(number) from None
            if event not in EVENTS or not all(type(part) is int and part >= 0 for part in key):
                raise self._foreign(number)
            yield number, event, key

    def damaged(self, number: int, why: str) -> JournalMismatch:
        """The error for an impossible line."""
        return JournalMismatch(f"{self.path}, line {number}, {why}: restore the file, or begin another (journal=)")

    def write(self, event: str, key: TaskKey) -> None:
        """Appends an event, one of `EVENTS`, of a task.

        Raises:
            OpenEnvError: The disk is full; no part of the line is left in the file.
        """
        epoch, index, repeat = key
        self._append(f'{{"event": "{event}", "epoch": {epoch}, "index": {index}, "repeat": {repeat}}}\n')

    def write_result(self, result: GroupResult) -> None:
        """Appends the results of a group. Raises as `write`."""
        self._append(json.dumps({"event": RESULT, **asdict(result)}) + "\n")

    def close(self) -> None:
        """Closes and unlocks the file. May be called repeatedly."""
        _open.discard(self)
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()  # otherwise a sampler without references would keep its journal locked

    def _read(self, plan: SamplingPlan) -> bytes:
        """The lines after the first one, without an incomplete last line."""
        with open(self._file, "rb", closefd=False) as file:
            text = file.read()
        self._end = text.rfind(b"\n") + 1
        head, whole, rest = text[: self._end].partition(b"\n")
        if whole:
            self._check(head, plan)
        elif not _MARK.startswith(text[: len(_MARK)]):
            raise self._foreign(1)
        if self._end < len(text):  # cut off by the end of its process or machine
            os.ftruncate(self._file, self._end)
        if not whole:
            self._append(json.dumps({"journal": _KIND, "version": _VERSION, **asdict(plan)}) + "\n")
            if self._sync:  # a new file's name is on the disk only after a sync of its folder
                sync_folder(self.path.parent)
        return rest

    def _check(self, line: bytes, plan: SamplingPlan) -> None:
        try:
            head = json.loads(line)
            known = head["journal"] == _KIND
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise self._foreign(1)
        head.setdefault("by_signal", False)  # journals of earlier releases
        wanted = {"version": _VERSION, **asdict(plan)}
        different = [
            f"{name} {head.get(name)!r}, not {wanted[name]!r}" for name in wanted if head.get(name) != wanted[name]
        ]
        if different:
            raise JournalMismatch(
                f"the journal {self.path} is of another run: {'; '.join(different)}. Use the same values, or another "
                "file (journal=)"
            )

    def _foreign(self, number: int) -> JournalMismatch:
        return self.damaged(number, "is not a line of a sampler's journal")

    def _append(self, line: str) -> None:
        data = line.encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # the disk is full, and the next write raises that
                os.write(self._file, data[written:])
            if self._sync:
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise OpenEnvError(f"the journal {self.path} cannot be written: {error.strerror}") from error
        self._end += len(data)


def _close_in_child() -> None:
    """Closes the files in a forked child: its copies would keep the locks of a dead parent."""
    for journal in list(_open):
        journal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
