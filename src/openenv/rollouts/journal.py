"""A run on disk: finished rollouts, and the journal from which a run goes on after a crash.

A folder has files `rollouts-*.jsonl` with a finished rollout in each line, and files `journal-*.jsonl` with what
unfinished rollouts have so far. Every process that works on the run begins new files; lines are only appended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import JournalFailed, JournalInUse, JournalMismatch, UnreadableRecord
from ..recording.storage import JSONL, Journal, lock_file, new_stem
from .records import Rollout, RolloutTask, StepRecord, Turn

T = TypeVar("T")
_ROLLOUTS, _JOURNAL = "rollouts-", "journal-"


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

    Raises:
        JournalInUse: Another process works on the run.
        JournalMismatch: The folder has another environment's or model's run.
        JournalFailed: A file cannot be read or written: no space, no right.

    Attributes:
        run_id: Id of the run.
        groups: The groups that the run had when it was interrupted, by id.
    """

    def __init__(self, folder: str | os.PathLike[str], run_id: str, environment: str, model: str):
        self.folder = Path(folder)
        self.run_id = run_id
        self.groups: dict[str, RecordedGroup] = {}
        stem = new_stem()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as files:
                folder_fd = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
                files.callback(os.close, folder_fd)
                if not lock_file(folder_fd):
                    raise JournalInUse(
                        f"another process works on the run in {self.folder}: end that one, or choose another folder"
                    )
                old = sorted(self.folder.glob(f"{_JOURNAL}*{JSONL}"))
                for path in old:
                    self._read(path, environment, model)
                for rollout in read_rollouts(self.folder):
                    if (group := self.groups.get(rollout.group)) is not None:
                        group.turns.pop(rollout.rollout_id, None)
                        if not group.ended:
                            group.finished[rollout.rollout_id] = rollout
                self._rollouts = files.enter_context(closing(Journal(self.folder / f"{_ROLLOUTS}{stem}{JSONL}")))
                self._journal = files.enter_context(closing(Journal(self.folder / f"{_JOURNAL}{stem}{JSONL}")))
                self._append(self._journal, *self._unfinished(), RunBegun(self.run_id, environment, model))
                for path in old:
                    path.unlink()
                self._files = files.pop_all()
        except OSError as error:
            raise self._failed(error) from error

    def group(self, group: GroupBegun) -> None:
        """Records that a group begins, or needs other members."""
        self._append(self._journal, group)

    def turn(self, rollout_id: str, number: int, turn: Turn) -> None:
        """Records an answer of the model."""
        self._append(self._journal, TurnTaken(rollout_id, number, turn))

    def step(self, rollout_id: str, number: int, step: StepRecord) -> None:
        """Records a step of the environment."""
        self._append(self._journal, StepTaken(rollout_id, number, step))

    def turns(self, rollout_id: str, turns: Sequence[Turn]) -> None:
        """Records turns with their steps."""
        self._append(self._journal, *_events_of(rollout_id, turns))

    def restart(self, rollout_id: str) -> None:
        """Records that a rollout begins from scratch."""
        self._append(self._journal, RolloutRestarted(rollout_id))

    def finish(self, rollout: Rollout) -> None:
        """Records a finished rollout."""
        self._append(self._rollouts, rollout)

    def end(self, group: str) -> None:
        """Records that the consumer has taken a group, or that the run has dropped it."""
        self._append(self._journal, GroupEnded(group))

    def close(self) -> None:
        """Closes the files, with what they have on the disk."""
        try:
            self._files.close()
        except OSError as error:
            raise self._failed(error) from error

    def _append(self, journal: Journal, *records: msgspec.Struct) -> None:
        try:
            journal.append([_encode(record) + b"\n" for record in records])
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> JournalFailed:
        return JournalFailed(
            f"the run in {self.folder} cannot be recorded: {error.strerror}; make room or choose another folder, and "
            "start the run again: it goes on where it was, and loses no finished rollout"
        )

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
        name = event.group if isinstance(event, GroupEnded) else event.rollout.rpartition("-")[0]
        group = self.groups.get(name)
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

    def _unfinished(self) -> Iterator[msgspec.Struct]:
        for group in self.groups.values():
            yield group.begun
            for rollout_id, count in group.restarts.items():
                yield from [RolloutRestarted(rollout_id)] * count
            for rollout_id, turns in group.turns.items():
                yield from _events_of(rollout_id, turns)
            if group.ended:
                yield GroupEnded(group.begun.group)


def _events_of(rollout_id: str, turns: Sequence[Turn]) -> Iterator[msgspec.Struct]:
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
