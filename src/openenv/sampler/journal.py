"""The file that remembers which tasks were taken and which are done."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, JournalInUse, JournalMismatch, OpenEnvError
from .plan import Plan

__all__ = ["EVENTS", "Entry", "Journal"]

EVENTS = ("taken", "finished", "returned")
_KIND, _VERSION = "openenv.sampler", 1
_MARK = b'{"journal": "openenv.sampler", '
_open: weakref.WeakSet[Journal] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened to a task: one of `EVENTS`."""

    event: str
    epoch: int
    index: int
    repeat: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Which task: epoch, index and repeat."""
        return self.epoch, self.index, self.repeat


class Journal:
    """One line of JSON for each event; the first line says what is sampled. It is only ever added to.

    A line is with the operating system before a call returns, so it outlives the end of this process, however that
    comes about. With `sync` it is on the disk, and outlives the machine's. A last line that was cut off is removed.

    The file is locked while it is open; the lock ends with the process.

    Args:
        path: The file; it is made if there is none.
        plan: What is sampled.
        sync: Whether every line is written to the disk before a call returns (milliseconds each).

    Raises:
        JournalInUse: Another sampler has it.
        JournalMismatch: It is of something else, or no journal; the message says what.
        InvalidArgument: The file cannot be opened.
    """

    def __init__(self, path: Path, plan: Plan, sync: bool):
        self.path = path
        self._sync = sync
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidArgument(f"the journal {path} cannot be opened: {error.strerror}") from None
        self._end = 0
        try:
            self._lock()
            self._recorded = self._read(plan)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def recorded(self) -> Iterator[tuple[int, Entry]]:
        """What it said when it was opened, each with the number of its line; to be asked once.

        Raises:
            JournalMismatch: A line is none.
        """
        text, self._recorded = self._recorded, b""
        for number, line in enumerate(io.BytesIO(text), 2):
            yield number, self._entry(line, number)

    def damaged(self, number: int, why: str) -> JournalMismatch:
        """The error for a line that cannot have come about."""
        return JournalMismatch(f"{self.path}, line {number}, {why}: restore the file, or begin another (journal=)")

    def write(self, entry: Entry) -> None:
        """Adds a line.

        Raises:
            OpenEnvError: The disk takes no more; nothing of the line is left in the file.
        """
        epoch, index, repeat = entry.key
        self._append(f'{{"event": "{entry.event}", "epoch": {epoch}, "index": {index}, "repeat": {repeat}}}\n')

    def close(self) -> None:
        """Lets go of the file. May be called repeatedly."""
        _open.discard(self)
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()  # or a sampler that nobody has any more would keep its journal locked

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(
                f"another sampler uses the journal {self.path}: close that one, or give each process a shard and a "
                "journal of its own (shard=, shards=, journal=)"
            ) from None

    def _read(self, plan: Plan) -> bytes:
        """What the file has after its first line, without a last line that was cut off."""
        text = self._whole()
        self._end = text.rfind(b"\n") + 1
        head, whole, rest = text[: self._end].partition(b"\n")
        if whole:
            self._check(head, plan)
        elif not _MARK.startswith(text[: len(_MARK)]):
            raise self._foreign(1)
        if self._end < len(text):  # cut off when its process, or the machine, ended
            os.ftruncate(self._file, self._end)
        if not whole:
            self._append(json.dumps({"journal": _KIND, **_facts(plan)}) + "\n")
            self._sync_folder()
        return rest

    def _sync_folder(self) -> None:
        """The name of a new file is on the disk when its folder is."""
        if self._sync:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _whole(self) -> bytes:
        with open(self._file, "rb", closefd=False) as file:
            return file.read()

    def _check(self, line: bytes, plan: Plan) -> None:
        try:
            head = json.loads(line)
            known = head["journal"] == _KIND
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise self._foreign(1)
        wanted = _facts(plan)
        different = [
            f"{name} {head.get(name)!r}, not {wanted[name]!r}" for name in wanted if head.get(name) != wanted[name]
        ]
        if different:
            raise JournalMismatch(
                f"the journal {self.path} is of another run: {'; '.join(different)}. Use the same values, or another "
                "file (journal=)"
            )

    def _entry(self, line: bytes, number: int) -> Entry:
        try:
            said = json.loads(line)
            entry = Entry(said["event"], said["epoch"], said["index"], said["repeat"])
        except (ValueError, TypeError, KeyError):
            raise self._foreign(number) from None
        if entry.event not in EVENTS or not all(type(part) is int and part >= 0 for part in entry.key):
            raise self._foreign(number)
        return entry

    def _foreign(self, number: int) -> JournalMismatch:
        return self.damaged(number, "is no line of a sampler's journal")

    def _append(self, line: str) -> None:
        data = line.encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # the disk is full; the rest will say so
                os.write(self._file, data[written:])
            if self._sync:
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise OpenEnvError(f"the journal {self.path} cannot be written: {error.strerror}") from error
        self._end += len(data)


def _facts(plan: Plan) -> dict[str, Any]:
    return {"version": _VERSION, **plan.facts()}


def _forget() -> None:
    """In a process that was forked: its copies of the files would hold the locks of a parent that has died."""
    for journal in list(_open):
        journal.close()


os.register_at_fork(after_in_child=_forget)
