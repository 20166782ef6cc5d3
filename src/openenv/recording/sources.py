"""Read transitions from one file, JSON lines or Parquet, and collect what is damaged."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ..errors import MissingExtra, UnreadableRecord
from .transition import HEAD_COLUMNS, RecordLine, Transition, TransitionHead, TransitionValues, transition_of

MOST_FAULTS = 20


class ReadFault(NamedTuple):
    """Something that could not be read.

    Attributes:
        file: In which it is.
        place: Where in it: `line 3`; empty for the whole file.
        text: What is wrong.
        torn: It is the end of a file, cut off in the middle: a process was killed, or writes it still.
    """

    file: Path
    place: str
    text: str
    torn: bool = False

    def sentence(self) -> str:
        """In words."""
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.text}"


class Damage:
    """Faults that were found while reading: all are counted, and the first are kept.

    Attributes:
        count: How many there are, without torn ends.
        torn: How many files end in the middle of a line.
        faults: The first of both.
    """

    def __init__(self) -> None:
        self.count = 0
        self.torn = 0
        self.faults: list[ReadFault] = []

    def add(self, fault: ReadFault) -> None:
        """One more."""
        if fault.torn:
            self.torn += 1
        else:
            self.count += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)

    def sentences(self) -> list[str]:
        """All of it in words."""
        said = [fault.sentence() for fault in self.faults]
        more = self.count + self.torn - len(said)
        return [*said, f"and {more} more"] if more else said


# A line is a transition; what is longer is no text of lines.
MOST_LINE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 8192

_line = msgspec.json.Decoder(RecordLine).decode
_values = msgspec.json.Decoder(TransitionValues).decode


class JsonlSource:
    """A file of JSON lines. It stays open while one of its episodes is in use, so it may be rotated away meanwhile.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: It is gone.
        UnreadableRecord: It cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableRecord(f"{path} cannot be read: {error.strerror}") from None

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def heads(self, damage: Damage) -> Iterator[tuple[int, TransitionHead]]:
        """Each transition and where it is, as far as the file is written now; once. What is none is in `damage`."""
        number = offset = 0
        while line := self._file.readline(MOST_LINE_BYTES):
            number += 1
            if line.endswith(b"\n"):
                head = None if line.isspace() else self._head(line, number, damage)
                if head is not None:
                    yield offset, head
            elif len(line) == MOST_LINE_BYTES:
                damage.add(ReadFault(self.path, f"line {number}", "it is too long to be one of ours"))
                return
            else:
                damage.add(ReadFault(self.path, f"line {number}", "the file ends in the middle of it", torn=True))
            offset += len(line)

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at some places of `heads`. Raises as `transition_of`."""
        folder = str(self.path.parent) if arrays else None
        for place in places:
            line = self._line(place)
            try:
                yield transition_of(_line(line), _values(line), folder)
            except RecursionError:
                raise UnreadableRecord(f"{self.path}, at byte {place}: it is nested too deep") from None
            except msgspec.DecodeError as error:
                raise UnreadableRecord(f"{self.path} was changed while it was read: {error}") from None
            except UnreadableRecord as error:
                raise type(error)(f"{self.path}, at byte {place}: {error.message}") from None

    def _line(self, place: int) -> bytes:
        """A line, read beside `heads`, which may be at another place of the file."""
        number = self._file.fileno()
        line = os.pread(number, CHUNK_BYTES, place)
        while b"\n" not in line:
            more = os.pread(number, max(CHUNK_BYTES, len(line)), place + len(line))
            if not more:
                break
            line += more
        return line.partition(b"\n")[0]

    def _head(self, line: bytes, number: int, damage: Damage) -> TransitionHead | None:
        try:
            head = _line(line)
        except msgspec.ValidationError as error:
            damage.add(ReadFault(self.path, f"line {number}", f"it is no transition: {error}"))
        except (msgspec.DecodeError, RecursionError) as error:
            damage.add(ReadFault(self.path, f"line {number}", f"it is no JSON: {error}"))
        else:
            if head.step >= 0:
                return head
            damage.add(ReadFault(self.path, f"line {number}", "its step is below 0"))
        return None


BATCH_ROWS = 4096
# Of an episode that lies in several row groups, and of its neighbours.
GROUPS_KEPT = 2
_VALUES = ("arguments", "action", "step_arguments", "observation")


class ParquetSource:
    """A file of Parquet with our columns.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: It is gone.
        MissingExtra: pyarrow is not installed.
        UnreadableRecord: It is damaged, or it has other columns.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            from pyarrow import ArrowException, parquet
        except ModuleNotFoundError:
            raise MissingExtra("pyarrow", "recording") from None
        self._damages: tuple[type[Exception], ...] = (ArrowException, OSError, ValueError)
        try:
            self._file = parquet.ParquetFile(path)
        except FileNotFoundError:
            raise
        except self._damages as error:
            raise UnreadableRecord(f"{path} is no Parquet that can be read: {_first_line(error)}") from None
        missing = {*HEAD_COLUMNS, *_VALUES} - {*self._file.schema_arrow.names}
        if missing:
            raise UnreadableRecord(
                f"{path} is no record of openenv: it lacks the columns {', '.join(sorted(missing))}"
            )
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self._starts = [0, *accumulate(metadata.row_group(group).num_rows for group in groups)]
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def heads(self, damage: Damage) -> Iterator[tuple[int, TransitionHead]]:
        """Each transition and where it is. What is none is in `damage`."""
        place = 0
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=list(HEAD_COLUMNS)):
                for row in batch.to_pylist():
                    try:
                        head = _head_of_row(row)
                    except (msgspec.DecodeError, RecursionError) as error:
                        damage.add(ReadFault(self.path, f"row {place + 1}", f"it is no transition: {error}"))
                    else:
                        yield place, head
                    place += 1
        except self._damages as error:
            damage.add(ReadFault(self.path, f"from row {place + 1} on", f"it is damaged: {_first_line(error)}"))

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at some places of `heads`, in their order. Raises as `transition_of`."""
        folder = str(self.path.parent) if arrays else None
        for group, found in groupby(places, lambda place: bisect_right(self._starts, place) - 1):
            rows = [place - self._starts[group] for place in found]
            for first in range(0, len(rows), BATCH_ROWS):
                for row in self._group(group).take(rows[first : first + BATCH_ROWS]).to_pylist():
                    try:
                        yield transition_of(_head_of_row(row), _values_of_row(row), folder)
                    except (msgspec.DecodeError, RecursionError, UnreadableRecord) as error:
                        kind = type(error) if isinstance(error, UnreadableRecord) else UnreadableRecord
                        raise kind(f"{self.path}, step {row['step']} of {row['episode_id']}: {error}") from None

    def _group(self, number: int) -> Any:
        if number not in self._groups:
            try:
                self._groups[number] = self._file.read_row_group(number)
            except self._damages as error:
                raise UnreadableRecord(f"{self.path} is damaged: {_first_line(error)}") from None
            while len(self._groups) > GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(number)
        return self._groups[number]


def _head_of_row(row: dict[str, Any]) -> TransitionHead:
    facts = {name: row[name] for name in HEAD_COLUMNS if row[name] is not None}
    if "source" in facts:
        facts["source"] = msgspec.json.decode(facts["source"])
    return msgspec.convert(facts, TransitionHead)


def _values_of_row(row: dict[str, Any]) -> TransitionValues:
    arguments, action, step_arguments = (
        None if row[name] is None else msgspec.json.decode(row[name]) for name in _VALUES[:3]
    )
    return TransitionValues(msgspec.Raw((row["observation"] or "null").encode()), arguments, action, step_arguments)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
