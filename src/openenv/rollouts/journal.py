"""A run on disk: finished rollouts, and the journal from which a run goes on after a crash.

A folder has files `rollouts-*.jsonl` with a finished rollout in each line, and files `journal-*.jsonl` with what
unfinished rollouts have so far. Every process that works on the run begins new files; lines are only appended. A
journal that has become long is replaced by one with what is unfinished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from .._files import lock_folder
from ..errors import JournalFailed, JournalInUse, JournalMismatch, UnreadableRecord
from ..recording.storage import JSONL, Journal, file_name, new_stem
from .records import Rollout, RolloutTask, StepRecord, Turn

T = TypeVar("T")
_ROLLOUTS, _JOURNAL = "rollouts-", "journal-"
# A journal is replaced when it has this size, and twice that of its unfinished part.
_LONG_BYTES = 16 << 20
# Keys of the lines of a group itself, and, after the id of a rollout, of those by which it began from scratch.
_GROUP, _RESTARTS = "", "/restarts"


class RunBegun(msgspec.Struct, frozen=True, tag="run"):
    """The line of a journal behind what the journals before it had. A journal without it was cut off, and is void.

    Attributes:
        run_id: Unique id of the run, the same in each process that works on it.
        environment: Name of the environment.
        model: Name of the model.
    """

    run_id: str
    environment: str
    model: str


class GroupBegun(msgspec.Struct, tag="group"):
    """A group was begun.

    Attributes:
        group, task: Its id and task.
        members: Numbers of the rollouts that it needs.
        forks: The rollout and the number of its turns with which a fork begins, by the fork's rollout id.
        numbered: How many numbers its rollouts have had, with those that are no members any more.
    """

    group: str
    task: RolloutTask
    members: list[int]
    forks: dict[str, tuple[str, int]] = {}
    numbered: int = 0


class TurnTaken(msgspec.Struct, tag="turn"):
    """The model has answered. `number` is that of the turn, which has no steps."""

    rollout: str
    number: int
    turn: Turn


class StepTaken(msgspec.Struct, tag="step"):
    """The environment has made a step of a turn."""

    rollout: str
    number: int
    step: StepRecord


class RolloutRestarted(msgspec.Struct, tag="restart"):
    """A rollout has begun from scratch: its turns so far are void."""

    rollout: str


class GroupEnded(msgspec.Struct, tag="end"):
    """The consumer has taken a group, or the run has dropped it."""

    group: str


_GroupEvent = GroupBegun | TurnTaken | StepTaken | RolloutRestarted | GroupEnded
_encode = msgspec.json.Encoder().encode
# Offset and length of a part of a file.
_Extent = tuple[int, int]
_decode_event = msgspec.json.Decoder(RunBegun | _GroupEvent).decode
_decode_rollout = msgspec.json.Decoder(Rollout).decode


class RecordedGroup(msgspec.Struct):
    """A group of an interrupted run.

    Attributes:
        begun: How it began.
        ended: The consumer has taken it, or the run has dropped it.
        finished: Its finished rollouts, by rollout id.
        turns: Turns of the unfinished rollouts, by rollout id.
        restarts: How often each of them began from scratch.
    """

    begun: GroupBegun
    ended: bool = False
    finished: dict[str, Rollout] = {}
    turns: dict[str, list[Turn]] = {}
    restarts: dict[str, int] = {}


class RolloutJournal:
    """The files of a run. It appends each event before the event is used, so a killed process loses nothing.

    Lines are with the operating system when a method returns: they survive the end of the process, and after `close`
    also that of the machine.

    Args:
        folder: The folder of the run; made if it does not exist.
        run_id: Id of the run, if it is new.
        environment: Name of the environment.
        model: Name of the model.
        long_bytes: Size from which the journal is replaced, if less than half of it is about what is unfinished.

    Raises:
        JournalInUse: Another process works on the run.
        JournalMismatch: The folder has another environment's or model's run.
        JournalFailed: A file cannot be read or written: no space, no right.

    Attributes:
        run_id: Id of the run.
        groups: The groups that the run had when it was interrupted, by id.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        run_id: str,
        environment: str,
        model: str,
        long_bytes: int = _LONG_BYTES,
    ):
        self.folder = Path(folder)
        self._long_bytes = self._replaced_at = long_bytes
        # Where the journal has the lines of groups that go on, by group and rollout, and those of groups that ended.
        self._extents: dict[str, dict[str, list[_Extent]]] = {}
        self._ended: list[_Extent] = []
        self.run_id = run_id
        self.groups: dict[str, RecordedGroup] = {}
        self._stem, self._number = new_stem(), 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as files:
                if (lock := lock_folder(self.folder)) is None:
                    raise JournalInUse(
                        f"another process works on the run in {self.folder}: end that one, or choose another folder"
                    )
                files.callback(os.close, lock)
                old = sorted(self.folder.glob(f"{_JOURNAL}*{JSONL}"))
                for path in old:
                    self._read(path, environment, model)
                for rollout in read_rollouts(self.folder):
                    if (group := self.groups.get(rollout.group)) is not None:
                        group.turns.pop(rollout.rollout_id, None)
                        if not group.ended:
                            group.finished[rollout.rollout_id] = rollout
                self._rollouts = files.enter_context(
                    closing(Journal(self.folder / f"{_ROLLOUTS}{self._stem}{JSONL}"))
                )
                self._journal = self._new_journal()
                files.callback(lambda: self._journal.close())  # noqa: PLW0108 - it may be another one by then
                self._begun = RunBegun(self.run_id, environment, model)
                self._record(*self._unfinished(), self._begun)
                for path in old:
                    path.unlink()
                self._files = files.pop_all()
        except OSError as error:
            raise self._failed(error) from error

    def group(self, group: GroupBegun) -> None:
        """Records that a group begins, or needs other members."""
        self._record(group)

    def turn(self, rollout_id: str, number: int, turn: Turn) -> None:
        """Records an answer of the model. As the other methods, it ignores a group that has ended."""
        self._record(TurnTaken(rollout_id, number, turn))

    def step(self, rollout_id: str, number: int, step: StepRecord) -> None:
        """Records a step of the environment."""
        self._record(StepTaken(rollout_id, number, step))

    def turns(self, rollout_id: str, turns: Sequence[Turn]) -> None:
        """Records turns with their steps."""
        self._record(*_events_of(rollout_id, turns))

    def restart(self, rollout_id: str) -> None:
        """Records that a rollout begins from scratch."""
        self._record(RolloutRestarted(rollout_id))

    def finish(self, rollout: Rollout) -> None:
        """Records a finished rollout."""
        self._append(self._rollouts, [_encode(rollout) + b"\n"])
        for kept in (rollout.rollout_id, rollout.rollout_id + _RESTARTS):
            self._extents.get(rollout.group, {}).pop(kept, None)
        self._replace_if_long()

    def end(self, group: str) -> None:
        """Records that the consumer has taken a group, or that the run has dropped it."""
        self._record(GroupEnded(group))
        self._replace_if_long()

    def close(self) -> None:
        """Closes the files, with what they have on the disk."""
        try:
            self._files.close()
        except OSError as error:
            raise self._failed(error) from error

    def _record(self, *events: RunBegun | _GroupEvent) -> None:
        lines, offset = [], self._journal.size
        for event in events:
            if not isinstance(event, RunBegun | GroupBegun) and _group_of(event) not in self._extents:
                continue
            line = _encode(event) + b"\n"
            if not isinstance(event, RunBegun):
                self._keep(event, (offset, len(line)))
            offset += len(line)
            lines.append(line)
        self._append(self._journal, lines)

    def _append(self, journal: Journal, lines: Sequence[bytes]) -> None:
        try:
            journal.append(lines)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> JournalFailed:
        return JournalFailed(
            f"the run in {self.folder} cannot be recorded: {error.strerror}; make room or choose another folder, and "
            "start the run again: it goes on where it was, and loses no finished rollout"
        )

    # When the journal has become long.

    def _new_journal(self) -> Journal:
        return Journal(self.folder / f"{_JOURNAL}{file_name(self._stem, self._number)}")

    def _keep(self, event: _GroupEvent, extent: _Extent) -> None:
        """Keeps where the line of an event is, and forgets those that it makes void."""
        if isinstance(event, GroupBegun):
            self._extents.setdefault(event.group, {})[_GROUP] = [extent]
            return
        group = self._extents[_group_of(event)]
        if isinstance(event, GroupEnded):
            self._ended += [*group[_GROUP], extent]
            del self._extents[event.group]
        elif isinstance(event, RolloutRestarted):
            group.pop(event.rollout, None)
            group.setdefault(event.rollout + _RESTARTS, []).append(extent)
        else:
            group.setdefault(event.rollout, []).append(extent)

    def _replace_if_long(self) -> None:
        if self._journal.size < self._replaced_at:
            return
        lists = [self._ended, *(extents for group in self._extents.values() for extents in group.values())]
        size = sum(length for extents in lists for _, length in extents)
        if self._journal.size >= 2 * size:
            # Without room for another file, this one is used on.
            with suppress(OSError):
                self._replace(lists)
        self._replaced_at = max(self._long_bytes, 2 * size)

    def _replace(self, lists: Sequence[list[_Extent]]) -> None:
        """Replaces the journal. At each moment, one of both has all: the new one counts from its last line on."""
        old, self._number = self._journal, self._number + 1
        with old.path.open("rb") as file, ExitStack() as undo:
            new = self._new_journal()
            undo.callback(new.path.unlink)
            undo.callback(partial(new.close, sync=False))
            places: list[list[_Extent]] = []
            for extents in lists:
                begin, found = new.size, []
                for offset, length in extents:
                    file.seek(offset)
                    found.append(file.read(length))
                new.append(found)
                places.append([(begin, new.size - begin)] if found else [])
            new.append([_encode(self._begun) + b"\n"])
            new.sync()
            undo.pop_all()
        self._journal = new
        for extents, place in zip(lists, places, strict=True):
            extents[:] = place
        old.close(sync=False)
        old.path.unlink()

    # After an interruption.

    def _read(self, path: Path, environment: str, model: str) -> None:
        before, self.groups = self.groups, {}
        is_whole = False

        with path.open("rb") as lines:
            for number, event in _lines(path, lines, _decode_event):
                if isinstance(event, RunBegun):
                    if (event.environment, event.model) != (environment, model):
                        raise JournalMismatch(
                            f"the folder {self.folder} has a run of {event.environment} with {event.model}, not of "
                            f"{environment} with {model}: choose another folder"
                        )
                    self.run_id = event.run_id
                    is_whole = True
                elif not self._take(event):
                    raise UnreadableRecord(
                        f"{path}, line {number}: it does not follow from the lines before; restore the file, or "
                        "choose another folder"
                    )
        if not is_whole:
            self.groups = before

    def _take(self, event: _GroupEvent) -> bool:
        """Takes an event of the journal. False: it does not follow from those before."""
        if isinstance(event, GroupBegun):
            known = self.groups.setdefault(event.group, RecordedGroup(event))
            known.begun = event
            return True
        group = self.groups.get(_group_of(event))
        if group is None:
            return False
        if isinstance(event, GroupEnded):
            group.ended = True
            return True
        turns = group.turns.setdefault(event.rollout, [])
        if isinstance(event, TurnTaken):
            turns.append(event.turn)
            return event.number == len(turns) - 1
        if isinstance(event, StepTaken):
            if event.number != len(turns) - 1:
                return False
            turns[-1].steps.append(event.step)
        else:
            turns.clear()
            group.restarts[event.rollout] = group.restarts.get(event.rollout, 0) + 1
        return True

    def _unfinished(self) -> Iterator[_GroupEvent]:
        for group in self.groups.values():
            yield group.begun
            for rollout_id, count in group.restarts.items():
                yield from [RolloutRestarted(rollout_id)] * count
            for rollout_id, turns in group.turns.items():
                yield from _events_of(rollout_id, turns)
            if group.ended:
                yield GroupEnded(group.begun.group)


def _group_of(event: TurnTaken | StepTaken | RolloutRestarted | GroupEnded) -> str:
    return event.group if isinstance(event, GroupEnded) else event.rollout.rpartition("-")[0]


def _events_of(rollout_id: str, turns: Sequence[Turn]) -> Iterator[TurnTaken | StepTaken]:
    for number, turn in enumerate(turns):
        yield TurnTaken(rollout_id, number, msgspec.structs.replace(turn, steps=[]))
        yield from (StepTaken(rollout_id, number, step) for step in turn.steps)


def rollout_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files with the finished rollouts of a run, oldest first."""
    return sorted(Path(folder).glob(f"{_ROLLOUTS}*{JSONL}"))


def read_rollouts(folder: str | os.PathLike[str]) -> Iterator[Rollout]:
    """Yields the finished rollouts of a run, in the order in which they finished; also while the run goes on.

    Args:
        folder: The folder of the run.

    Raises:
        UnreadableRecord: A file is damaged. An incomplete last line, of a killed process, is no damage.
    """
    for path in rollout_files(folder):
        with path.open("rb") as file:
            for _, rollout in _lines(path, file, _decode_rollout):
                yield rollout


def _lines(path: Path, lines: Iterable[bytes], decode: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """The complete lines of a file, with their numbers."""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):  # cut off by the end of its process
            return
        try:
            yield number, decode(line)
        except msgspec.DecodeError as error:
            where = f"{path}, line {number}: {error}"
            raise UnreadableRecord(f"{where}; restore the file, or choose another folder") from error
