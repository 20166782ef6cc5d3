"""An index of finished rollouts: where each lies in the files of a folder, and the facts by which a list shows it."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from .._files import read_at
from ..errors import UnreadableRecord
from ..recording.reader import MOST_LINE_BYTES, Damage, ReadFault
from .journal import rollout_files
from .records import PrefixBreak, Rollout, RolloutFailure, RolloutOutcome, RolloutTask, TokenUsage

INDEX_SUFFIX = ".index"
"""Suffix of the file beside a large file of rollouts that keeps its index."""
# The index is saved each time that a file has grown by this: less is read in a few hundredths of a second.
SAVED_BYTES = 8 * 1024 * 1024
FORMAT = 1
# Bytes at the end of the indexed part that must be unchanged for the index to be valid.
_TAIL_BYTES = 4096


class RolloutSummary(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The facts of a rollout that a list shows.

    Attributes:
        file, offset: The file, relative to the folder of the index, and the byte at which its line begins.
        run: The folder of the file, relative to the folder of the index; the name of that folder itself at its top.
        task: `RolloutTask.name`.
        turns: Number of turns.
        breaks: Number of turns whose prompt does not extend the tokens before it.
        tokens: Tokens of all completions.
        version: Version of the policy in the last turn.
        error: Class of the error of a failed rollout.
        rollout_id, group, member, outcome, reward, cost, seconds, started, environment, model, invalid_actions,
        attempts: As in `Rollout`.
    """

    file: str
    offset: int
    run: str
    rollout_id: str
    group: str
    member: int
    task: str
    outcome: RolloutOutcome
    reward: float | None = None
    turns: int = 0
    breaks: int = 0
    tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0
    started: float = 0.0
    environment: str = ""
    model: str = ""
    version: int | None = None
    invalid_actions: int = 0
    attempts: int = 1
    error: str | None = None


class _TurnHead(msgspec.Struct, gc=False):
    prefix_break: PrefixBreak | None = None
    version: int | None = None


class _RolloutHead(msgspec.Struct):
    """The parts of a `Rollout` in its summary. The decoder skips the rest without making objects."""

    rollout_id: str
    task: RolloutTask
    group: str
    member: int
    outcome: RolloutOutcome
    reward: float | None = None
    turns: list[_TurnHead] = []
    failure: RolloutFailure | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    environment: str = ""
    model: str = ""
    invalid_actions: int = 0
    attempts: int = 1
    started: float = 0.0
    seconds: float = 0.0

    def summary(self, file: str, offset: int, run: str) -> RolloutSummary:
        return RolloutSummary(
            file=file,
            offset=offset,
            run=run,
            rollout_id=self.rollout_id,
            group=self.group,
            member=self.member,
            task=self.task.name,
            outcome=self.outcome,
            reward=self.reward,
            turns=len(self.turns),
            breaks=sum(turn.prefix_break is not None for turn in self.turns),
            tokens=self.usage.completion_tokens,
            cost=self.usage.cost,
            seconds=self.seconds,
            started=self.started,
            environment=self.environment,
            model=self.model,
            version=self.turns[-1].version if self.turns else None,
            invalid_actions=self.invalid_actions,
            attempts=self.attempts,
            error=None if self.failure is None else self.failure.error,
        )


_head = msgspec.json.Decoder(_RolloutHead).decode
_rollout = msgspec.json.Decoder(Rollout).decode


class _FileIndex(msgspec.Struct):
    """The summaries of the first `size` bytes of a file, as they are saved beside it."""

    format: int = FORMAT
    size: int = 0
    tail: int = 0
    lines: int = 0
    summaries: list[RolloutSummary] = msgspec.field(default_factory=list)


_saved = msgspec.msgpack.Decoder(_FileIndex).decode


class IndexedFile:
    """A file of rollouts, one JSON line each, that may grow while it is read.

    Args:
        path: The file.
        name: Its name relative to the folder of the index.
        run: The name of its run.

    Attributes:
        damage: Lines that are no rollouts.
    """

    def __init__(self, path: Path, name: str, run: str):
        self.path, self.name, self.run = path, name, run
        self.damage = Damage()
        self._index = _FileIndex()
        self._saved_size = 0

    @property
    def size(self) -> int:
        """Bytes that are indexed: whole lines."""
        return self._index.size

    @property
    def summaries(self) -> Sequence[RolloutSummary]:
        """A summary of each rollout, in the order of the file."""
        return self._index.summaries

    def refresh(self) -> None:
        """Reads what was written since the last call; all of it if the file was replaced by another one."""
        try:
            with self.path.open("rb") as file:
                if self.size == 0:
                    with contextlib.suppress(OSError, msgspec.DecodeError):
                        found = _saved(self.path.with_name(self.path.name + INDEX_SUFFIX).read_bytes())
                        if found.format == FORMAT:
                            heads = [
                                msgspec.structs.replace(it, file=self.name, run=self.run) for it in found.summaries
                            ]
                            self._index = msgspec.structs.replace(found, summaries=heads)
                            self._saved_size = found.size
                if self._tail(file) != self._index.tail:
                    self._index, self._saved_size, self.damage = _FileIndex(), 0, Damage()
                self._read(file)
        except OSError as error:
            self.damage = Damage()
            self.damage.add(ReadFault(self.path, "", f"it cannot be read: {error.strerror}"))

    def _read(self, file: BinaryIO) -> None:
        index = self._index
        file.seek(index.size)
        while (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            fault = None
            if not line.isspace():
                try:
                    index.summaries.append(_head(line).summary(self.name, index.size, self.run))
                except (msgspec.DecodeError, RecursionError) as error:
                    fault = str(error)
            if fault is not None and index.size == 0:
                self.damage = Damage()
                self.damage.add(ReadFault(self.path, "", f"it is no file of rollouts: {fault}"))
                return
            index.lines += 1
            index.size += len(line)
            if fault is not None:
                self.damage.add(ReadFault(self.path, f"line {index.lines}", fault))
        if len(line) == MOST_LINE_BYTES:
            self.damage.add(ReadFault(self.path, f"line {index.lines + 1}", "it is longer than any rollout"))
        index.tail = self._tail(file)
        if index.size - self._saved_size >= SAVED_BYTES:
            self._saved_size = self.size
            path = self.path.with_name(self.path.name + INDEX_SUFFIX)
            new = path.with_name(f"{path.name}.{os.getpid()}")
            with contextlib.suppress(OSError):  # the folder may be read-only: the next reader reads the file again
                new.write_bytes(msgspec.msgpack.encode(index))
                new.replace(path)

    def _tail(self, file: BinaryIO) -> int:
        """Checksum of the end of the indexed part."""
        first = max(0, self.size - _TAIL_BYTES)
        return zlib.crc32(read_at(file.fileno(), self.size - first, first))


class RolloutIndex:
    """The rollouts in a folder and its subfolders, one run each. Its methods may be called from any thread.

    Args:
        folder: The folder, or one file of rollouts.

    Raises:
        UnreadableRecord: There is no such folder or file.

    Attributes:
        folder: The folder.
        read_bytes, total_bytes: How much of the files the index has read.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        place = Path(folder)
        if not place.exists():
            raise UnreadableRecord(
                f"{place} is not there: name a folder with rollouts (`openenv rollout TARGET -o DIR` writes them)"
            )
        self._only = place if place.is_file() else None
        self.folder = place.parent if place.is_file() else place
        self.read_bytes = self.total_bytes = 0
        self._files: dict[str, IndexedFile] = {}
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Indexes what was written since the last call. Other threads see each file's rollouts as they are read."""
        with self._lock:
            found = [] if self._only is None else [self._only]
            for place, folders, _ in os.walk(self.folder) if self._only is None else ():
                folders.sort()
                found += filter(Path.is_file, rollout_files(place))
            paths = {str(path.relative_to(self.folder)): path for path in found}
            for name in self._files.keys() - paths.keys():
                del self._files[name]
            for name, path in paths.items():
                if name not in self._files:
                    parent = path.parent.relative_to(self.folder)
                    run = str(parent) if parent.parts else self.folder.resolve().name
                    self._files[name] = IndexedFile(path, name, run)
            sizes = {name: _size(path) for name, path in paths.items()}
            self.total_bytes, done = sum(sizes.values()), 0
            for name, file in list(self._files.items()):
                self.read_bytes = done
                file.refresh()
                done += sizes[name]
            self.read_bytes = done

    def summaries(self) -> list[RolloutSummary]:
        """The summaries of all rollouts, by file, in the order in which they ended."""
        return [each for file in list(self._files.values()) for each in list(file.summaries)]

    def faults(self) -> list[str]:
        """Files and lines that are no rollouts, as sentences."""
        return [each for file in list(self._files.values()) for each in file.damage.sentences()]

    def run_of(self, file: str) -> str:
        """The run of a file; empty if there is no such file (any more)."""
        found = self._files.get(file)
        return "" if found is None else found.run

    def read(self, file: str, offset: int) -> Rollout:
        """A rollout of the index.

        Args:
            file, offset: As in its summary.

        Raises:
            UnreadableRecord: The index has no such rollout, or its file was changed.
        """
        try:
            return _rollout(self.line(file, offset))
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableRecord(f"{file}, at byte {offset}: it cannot be decoded: {error}") from None

    def line(self, file: str, offset: int) -> bytes:
        """The line of a rollout. Arguments and errors as for `read`."""
        found = self._files.get(file)
        summaries = () if found is None else found.summaries
        place = bisect_left(summaries, offset, key=attrgetter("offset"))
        if found is None or place == len(summaries) or summaries[place].offset != offset:
            raise UnreadableRecord(f"{file}, at byte {offset}: there is no such rollout (any more): list them again")
        try:
            with found.path.open("rb") as opened:
                opened.seek(offset)
                return opened.readline(MOST_LINE_BYTES)
        except OSError as error:
            raise UnreadableRecord(f"{found.path} cannot be read: {error.strerror}") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
