"""Convert JSONL files to Parquet, with one schema for all environments; export selected episodes to a new file."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from ..errors import MissingArray, MissingExtra, UsageError
from .storage import JSONL, PARQUET, PART, array_path, replace_file
from .transition import Int64, Transition, TransitionFacts, referenced_arrays

if TYPE_CHECKING:
    from .reader import Episode

# Limits of a row group in rows and bytes: it must fit into memory.
GROUP_ROWS = 20_000
GROUP_BYTES = 32 * 1024 * 1024

_ABSENT = msgspec.Raw(b"null")


JSON_COLUMNS = ("arguments", "action", "step_arguments", "observation", "source")
"""The columns that hold JSON text."""
COLUMNS = (
    "episode_id",
    "session_id",
    *Transition.__struct_fields__[:-1],
    "environment",
    "versions",
    "schema",
    "source",
)
"""The columns, in order."""


class ParquetRow(TransitionFacts):
    """One transition. Its JSON columns stay encoded."""

    step: Int64 = 0
    arguments: msgspec.Raw = _ABSENT
    action: msgspec.Raw = _ABSENT
    step_arguments: msgspec.Raw = _ABSENT
    observation: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT


class ParquetForm(NamedTuple):
    """How lines of JSON become rows of a Parquet file.

    Attributes:
        row: What a line is, in errors.
        decode: Makes a row of a line.
        schema: Makes the pyarrow schema.
        table: Makes a pyarrow table of rows.
    """

    row: str
    decode: Callable[[bytes], Any]
    schema: Callable[[], Any]
    table: Callable[[list[Any]], Any]

    def rows(self, lines: Iterable[bytes]) -> Iterator[tuple[Any, int]]:
        """The rows with their sizes in bytes, without an incomplete last line.

        Raises:
            ValueError: A line is no such row.
        """
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield self.decode(line), len(line)
            except msgspec.MsgspecError as error:
                raise ValueError(f"line {number} is not a {self.row}: {error}") from error


@cache
def schema() -> Any:
    """The pyarrow schema of every file."""
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(COLUMNS, pa.string())
    kinds |= {"step": pa.int64(), "seed": pa.int64()}
    kinds |= dict.fromkeys(("reward", "time", "duration_s"), pa.float64())
    kinds |= dict.fromkeys(("terminated", "truncated", "done"), pa.bool_())
    kinds["versions"] = pa.struct({"openenv": pa.string(), "environment": pa.string()})
    return pa.schema([pa.field(name, kinds[name]) for name in COLUMNS])


def columns_of(rows: list[ParquetRow]) -> Any:
    """Rows as a pyarrow table."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values = [getattr(row, name) for row in rows]
        if name in JSON_COLUMNS:
            texts = [str(value, "utf-8") for value in values]
            values = [None if text == "null" else text for text in texts]
        columns[name] = values
    return pa.table(columns, schema=schema())


TRANSITIONS = ParquetForm("transition", msgspec.json.Decoder(ParquetRow).decode, schema, columns_of)


def convert(source: Path, form: ParquetForm = TRANSITIONS) -> Path:
    """Writes a JSONL file as Parquet beside it. The source stays unchanged.

    Returns:
        The new file, complete and synced to disk.

    Raises:
        OSError: The new file cannot be written; no part of it is left.
        ValueError: A line is no row of this form, and would be lost.
        ImportError: pyarrow is not installed.
    """
    import pyarrow.parquet as pq

    target = source.with_suffix(PARQUET)
    with replace_file(target) as part, source.open("rb") as lines, part.open("wb") as file:
        with pq.ParquetWriter(file, form.schema(), compression="zstd") as writer:
            rows: list[Any] = []
            size = 0
            for row, length in form.rows(lines):
                rows.append(row)
                size += length
                if len(rows) >= GROUP_ROWS or size >= GROUP_BYTES:
                    writer.write_table(form.table(rows))
                    rows, size = [], 0
            writer.write_table(form.table(rows))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(target.parent)
    return target


def sync_folder(folder: Path) -> None:
    """Syncs the directory entries of a folder to disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def export(episodes: Iterator[Episode], target: Path, on_episode: Callable[[int], None] = lambda count: None) -> int:
    """Writes episodes as JSONL or Parquet, by the suffix of the file. Large arrays go into `arrays` beside it.

    The file appears when it is complete.

    Args:
        episodes: The episodes to write.
        target: The new file.
        on_episode: Gets the number of episodes written so far, after each one.

    Returns:
        The number of episodes written.

    Raises:
        UsageError: The file exists, its suffix is unknown, or it cannot be written.
        UnreadableRecord: An episode cannot be read.
        MissingArray: An array of an episode does not exist.
        MissingExtra: The target is Parquet and pyarrow is not installed.
    """
    return write_file(target, partial(_write, episodes, folder=target.parent, on_episode=on_episode))


def write_file(target: Path, write: Callable[[BinaryIO], int], form: ParquetForm = TRANSITIONS) -> int:
    """Writes a new file of lines of JSON, or of Parquet, by its suffix. It appears when it is complete.

    Args:
        target: The new file.
        write: Writes the lines, and returns a count.
        form: Makes rows of the lines.

    Returns:
        The count of `write`.

    Raises:
        UsageError: The file exists, its suffix is unknown, or it cannot be written.
        MissingExtra: The target is Parquet and pyarrow is not installed.
    """
    if target.suffix not in {JSONL, PARQUET}:
        raise UsageError(f"{target} is not a name for an export: it must end in {JSONL} or {PARQUET}")
    if target.exists():
        raise UsageError(f"{target} exists already: remove it, or name another file")
    lines = target.with_name(f"{target.stem}{PART}{JSONL}{PART}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lines.open("wb") as file:
            count = write(file)
        made = lines
        if target.suffix == PARQUET:
            try:
                made = convert(lines, form)
            except ImportError:
                raise MissingExtra("pyarrow", "recording") from None
            except ValueError as error:
                raise UsageError(f"{target} cannot be written: {error}; lines ({JSONL}) can hold it") from None
        made.replace(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            lines.unlink()
    return count


def _write(episodes: Iterator[Episode], file: BinaryIO, *, folder: Path, on_episode: Callable[[int], None]) -> int:
    count = 0
    for episode in episodes:
        for line, origin in episode.lines():
            for digest, suffix in referenced_arrays(line):
                there, here = (array_path(each, digest, suffix) for each in (origin, folder))
                if here.exists():
                    continue
                here.parent.mkdir(parents=True, exist_ok=True)
                try:
                    with replace_file(here) as part:
                        shutil.copyfile(there, part)
                except FileNotFoundError:
                    raise MissingArray(
                        f"{there} does not exist; copy the record together with its folder `arrays`"
                    ) from None
            file.write(msgspec.json.encode(line) + b"\n")
        count += 1
        on_episode(count)
    return count
