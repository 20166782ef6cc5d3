"""Read recorded episodes from a file or folder, JSON lines or Parquet, that is complete, being written or damaged."""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from .._files import read_at
from ..errors import MissingExtra, UnreadableRecord
from .parquet import JSON_COLUMNS
from .storage import ARRAYS, JSONL, PARQUET
from .transition import ReadableLine, Transition, TransitionHead

MOST_FAULTS = 20


class ReadFault(NamedTuple):
    """A part of a recording that cannot be read.

    Attributes:
        file: The file with the fault.
        place: Position in the file, such as `line 3`; empty for the whole file.
        text: The error.
        torn: Whether it is an incomplete last line: its process was killed, or is still writing.
    """

    file: Path
    place: str
    text: str
    torn: bool = False

    def sentence(self) -> str:
        """The fault as one line of text."""
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.text}"


class Damage:
    """Faults found while reading: all are counted, and the first are kept.

    Attributes:
        count: Number of faults, without incomplete last lines.
        torn: Number of files with an incomplete last line.
        faults: The first faults of both kinds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.torn = 0
        self.faults: list[ReadFault] = []

    def add(self, fault: ReadFault) -> None:
        """Counts a fault, and keeps it if it is one of the first."""
        if fault.torn:
            self.torn += 1
        else:
            self.count += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)

    def sentences(self) -> list[str]:
        """The faults as lines of text."""
        said = [fault.sentence() for fault in self.faults]
        more = self.count + self.torn - len(said)
        return [*said, f"and {more} more"] if more else said


# A file with a longer line is not JSONL.
MOST_LINE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 8192

_readable = msgspec.json.Decoder(ReadableLine).decode
_transition = msgspec.json.Decoder(Transition).decode


class JsonlSource:
    """A JSONL file. It stays open while one of its episodes is in use, so rotation may remove its name meanwhile.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: The file does not exist.
        UnreadableRecord: The file cannot be opened.
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
        """Yields each transition written so far with its byte offset, once. Adds invalid lines to `damage`."""
        number = offset = 0
        while line := self._file.readline(MOST_LINE_BYTES):
            number += 1
            if line.endswith(b"\n"):
                head = None if line.isspace() else self._head(line, number, damage)
                if head is not None:
                    yield offset, head
            elif len(line) == MOST_LINE_BYTES:
                damage.add(ReadFault(self.path, f"line {number}", "it is longer than any line of a record"))
                return
            else:
                damage.add(ReadFault(self.path, f"line {number}", "the file ends in the middle of it", torn=True))
            offset += len(line)

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at offsets that `heads` yielded. Raises the errors of `Transition.restored`."""
        folder = str(self.path.parent)
        for place in places:
            line = self._line(place)
            try:
                transition = _transition(line)
                yield transition.restored(folder) if arrays else transition
            except RecursionError:
                raise UnreadableRecord(f"{self.path}, at byte {place}: it is nested too deep") from None
            except msgspec.DecodeError as error:
                raise UnreadableRecord(
                    f"{self.path}, at byte {place}: it cannot be decoded, or was changed while it was read: {error}"
                ) from None
            except UnreadableRecord as error:
                raise type(error)(f"{self.path}, at byte {place}: {error.message}") from None

    def _line(self, place: int) -> bytes:
        """The line at an offset. It does not move the file position, which `heads` uses."""
        number = self._file.fileno()
        line = read_at(number, CHUNK_BYTES, place)
        while b"\n" not in line:
            more = read_at(number, max(CHUNK_BYTES, len(line)), place + len(line))
            if not more:
                break
            line += more
        return line.partition(b"\n")[0]

    def _head(self, line: bytes, number: int, damage: Damage) -> TransitionHead | None:
        try:
            head = _readable(line)
        except msgspec.ValidationError as error:
            damage.add(ReadFault(self.path, f"line {number}", f"it is not a transition: {error}"))
        except (msgspec.DecodeError, RecursionError) as error:
            damage.add(ReadFault(self.path, f"line {number}", f"it is not JSON: {error}"))
        else:
            if head.step >= 0:
                return head
            damage.add(ReadFault(self.path, f"line {number}", "its step is below 0"))
        return None


BATCH_ROWS = 4096
# Row groups kept in memory: an episode and its neighbours may span several.
GROUPS_KEPT = 2
_HEAD = list(TransitionHead.__struct_fields__)


class ParquetSource:
    """A Parquet file with the columns of a record.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: The file does not exist.
        MissingExtra: pyarrow is not installed.
        UnreadableRecord: The file is damaged, or has other columns.
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
            raise UnreadableRecord(f"{path} is not a readable Parquet file: {_first_line(error)}") from None
        missing = {*_HEAD, *JSON_COLUMNS} - {*self._file.schema_arrow.names}
        if missing:
            raise UnreadableRecord(
                f"{path} is not a record of openenv: it lacks the columns {', '.join(sorted(missing))}"
            )
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self._starts = [0, *accumulate(metadata.row_group(group).num_rows for group in groups)]
        self._read_group = lru_cache(GROUPS_KEPT)(self._file.read_row_group)

    def heads(self, damage: Damage) -> Iterator[tuple[int, TransitionHead]]:
        """Yields each transition with its row number. Adds invalid rows to `damage`."""
        place = 0
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=_HEAD):
                for row in batch.to_pylist():
                    try:
                        facts = {name: row[name] for name in _HEAD if row[name] is not None}
                        if "source" in facts:
                            facts["source"] = msgspec.json.decode(facts["source"])
                        head = msgspec.convert(facts, TransitionHead)
                    except (msgspec.DecodeError, RecursionError) as error:
                        damage.add(ReadFault(self.path, f"row {place + 1}", f"it is not a transition: {error}"))
                    else:
                        yield place, head
                    place += 1
        except self._damages as error:
            damage.add(ReadFault(self.path, f"from row {place + 1} on", f"it is damaged: {_first_line(error)}"))

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions in rows that `heads` yielded, in order. Raises the errors of `Transition.restored`."""
        folder = str(self.path.parent)
        for group, found in groupby(places, lambda place: bisect_right(self._starts, place) - 1):
            rows = [place - self._starts[group] for place in found]
            for first in range(0, len(rows), BATCH_ROWS):
                try:
                    there = self._read_group(group)
                except self._damages as error:
                    raise UnreadableRecord(f"{self.path} is damaged: {_first_line(error)}") from None
                for row in there.take(rows[first : first + BATCH_ROWS]).to_pylist():
                    facts = {name: row[name] for name in Transition.__struct_fields__ if row[name] is not None}
                    try:
                        for name in facts.keys() & JSON_COLUMNS:
                            facts[name] = msgspec.json.decode(facts[name])
                        transition = msgspec.convert(facts, Transition)
                        yield transition.restored(folder) if arrays else transition
                    except (msgspec.DecodeError, RecursionError, UnreadableRecord) as error:
                        kind = type(error) if isinstance(error, UnreadableRecord) else UnreadableRecord
                        raise kind(f"{self.path}, step {row['step']} of {row['episode_id']}: {error}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


TransitionSource = JsonlSource | ParquetSource
"""A file of transitions."""


class Episode:
    """A recorded episode: the transitions from one reset of a session to the next.

    Only the counts are in memory; `transitions` reads the files.

    Args:
        first: The first line of the episode.

    Attributes:
        episode_id, session_id: Ids. Clients choose the episode's id, so several episodes may have the same one.
        environment: Name of the environment.
        versions: Versions of `openenv` and of the `environment`.
        schema: Hash of the environment's contract; None if the record has none.
        seed: Seed of the reset; None if it had none, or if the record lacks the reset.
        continues: Whether its reset had no seed and followed the end of an episode of the same session, as autoreset
            does, so that its random numbers continue those of that episode.
        continued: Whether another episode continues this one.
        first_step: First step in the record; 0, the reset, unless the beginning is missing.
        source: Session, episode and step that it was forked from or restored to; usually None.
        steps: Number of the last step.
        episode_return: Sum of the rewards; None if no step had one.
        began, ended: Start of the first call and end of the last one, Unix seconds.
        done, terminated, truncated: Values of the last transition that has them.
        errors: Number of failed calls by error class.
    """

    def __init__(self, first: TransitionHead):
        self.episode_id = first.episode_id or ""
        self.session_id = first.session_id or ""
        self.environment = first.environment or "unknown"
        self.versions: Mapping[str, str | None] = first.versions
        self.schema = first.schema
        self.seed = first.seed
        self.continues = self.continued = False
        self.first_step = first.step
        self.source = first.source
        self.steps = first.step
        self.episode_return: float | None = None
        self.began = self.ended = first.time
        self.done = False
        self.terminated: bool | None = None
        self.truncated: bool | None = None
        self.failed_last = False
        self.errors: dict[str, int] = {}
        self._parts: list[tuple[TransitionSource, array[int]]] = []

    @property
    def whole(self) -> bool:
        """Whether the record begins with the reset."""
        return self.first_step == 0 and self.source is None

    @property
    def outcome(self) -> str:
        """How it ended: terminated, truncated, done (either of these), failed (in its last call), or open."""
        if self.done:
            if self.truncated and not self.terminated:
                return "truncated"
            return "terminated" if self.terminated else "done"
        return "failed" if self.failed_last else "open"

    def add(self, head: TransitionHead, source: TransitionSource, place: int) -> None:
        """Adds a line of the episode."""
        if not self._parts or self._parts[-1][0] is not source:
            self._parts.append((source, array("Q")))
        self._parts[-1][1].append(place)
        self.steps = max(self.steps, head.step)
        self.ended = head.time + head.duration_s
        self.failed_last = head.error is not None
        if head.error is not None:
            name = head.error.partition(":")[0]
            self.errors[name] = self.errors.get(name, 0) + 1
        if head.reward is not None and head.step:
            self.episode_return = (self.episode_return or 0.0) + head.reward
        if head.done:
            self.done, self.terminated, self.truncated = True, head.terminated, head.truncated

    def transitions(self, arrays: bool = True) -> Iterator[Transition]:
        """The transitions in order, read from the files one at a time.

        Args:
            arrays: Put arrays and bytes back into actions and observations; else their marks stay.

        Raises:
            UnreadableRecord: A file is damaged, or was changed meanwhile.
            MissingArray: An array is missing or was changed.
        """
        return chain.from_iterable(source.read(places, arrays) for source, places in self._parts)

    def lines(self) -> Iterator[tuple[dict[str, Any], Path]]:
        """Each transition as a line, with the folder of its arrays. Raises the errors of `transitions`."""
        names = {
            "environment": self.environment,
            "versions": {"openenv": None, "environment": None, **self.versions},
            "schema": self.schema,
        }
        for source, places in self._parts:
            for transition in source.read(places, arrays=False):
                begins = {"episode_id": self.episode_id, "session_id": self.session_id}
                yield {**begins, **transition.facts(), **names}, source.path.parent

    def facts(self) -> dict[str, Any]:
        """The episode's metadata as JSON values."""
        return {
            "episode_id": self.episode_id,
            "session_id": self.session_id,
            "environment": self.environment,
            "versions": dict(self.versions),
            "schema": self.schema,
            "seed": self.seed,
            "first_step": self.first_step,
            "source": self.source,
            "steps": self.steps,
            "return": self.episode_return,
            "began": self.began,
            "ended": self.ended,
            "outcome": self.outcome,
            "errors": dict(self.errors),
        }


# Most sessions with an open last episode. Beyond that, the least recently used one counts as complete.
MOST_OPEN = 32_768
_NUMBER_DIGITS = 6


class Recording:
    """Reads the episodes of a file or folder one at a time, in bounded memory.

    Args:
        path: A file (`.jsonl` of a recorder or of the web page, `.parquet`), or a folder, with its subfolders.
        environment: Name of the only environment to read; None for all.

    Raises:
        UnreadableRecord: The file or folder does not exist.

    Attributes:
        path: The file or folder.
        damage: Faults found so far.
    """

    def __init__(self, path: str | os.PathLike[str], environment: str | None = None):
        self.path = Path(path)
        self.damage = Damage()
        self._environment = environment
        if not self.path.exists():
            raise UnreadableRecord(
                f"{self.path} is not there: name a file or folder with recorded episodes (`openenv serve TARGET "
                "--record DIR` writes them)"
            )

    def episodes(self) -> Iterator[Episode]:
        """Yields each episode once its last line is read, so roughly in the order in which they ended.

        Parts that cannot be read are added to `damage` and skipped.

        Raises:
            UnreadableRecord: The path is one file, which cannot be read at all.
        """
        self.damage = Damage()
        # The files of each recorder, in the order in which it wrote them.
        runs = (
            [[self.path]] if self.path.is_file() else (list(run) for _, run in groupby(_files(self.path), _recorder))
        )
        for run in runs:
            for episode in self._episodes(run):
                if self._environment is None or episode.environment == self._environment:
                    yield episode

    def _episodes(self, run: list[Path]) -> Iterator[Episode]:
        """The episodes in the files of one recorder."""
        going: OrderedDict[str, Episode] = OrderedDict()
        for path in run:
            source = self._source(path)
            if source is None:
                continue
            for place, head in source.heads(self.damage):
                episode = going.get(head.session_id or "")
                if episode is None or head.step == 0 or head.source is not None:
                    before, episode = episode, Episode(head)
                    going[episode.session_id] = episode
                    if before is not None:
                        before.continued = episode.continues = episode.whole and head.seed is None and before.done
                        yield before
                going.move_to_end(episode.session_id)
                episode.add(head, source, place)
                if len(going) > MOST_OPEN:
                    yield going.popitem(last=False)[1]
        yield from going.values()

    def _source(self, path: Path) -> TransitionSource | None:
        """Opens a file; None if that fails."""
        try:
            if path.suffix != PARQUET:
                with contextlib.suppress(FileNotFoundError):  # rotated since its folder was listed
                    return JsonlSource(path)
            return ParquetSource(path.with_suffix(PARQUET))
        except FileNotFoundError:
            fault = ReadFault(path, "", "it was removed meanwhile")
        except UnreadableRecord as error:
            if self.path.is_file():
                raise
            fault = ReadFault(path, "", error.message.removeprefix(f"{path} ").removeprefix("is "))
        self.damage.add(fault)
        return None


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ARRAYS)
        # A file that exists in both forms was rotated, and its JSONL is not removed yet.
        paths = (Path(place, name) for name in sorted(names) if name.endswith((JSONL, PARQUET)))
        yield from {path.with_suffix(""): path for path in paths}.values()


def _recorder(path: Path) -> Path:
    """The common prefix of one recorder's files."""
    stem, dash, number = path.stem.rpartition("-")
    numbered = dash and len(number) == _NUMBER_DIGITS and number.isdigit()
    return path.with_name(stem) if numbered else path.with_suffix("")
