"""Convert a file of lines to Parquet: one schema for all environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Raw, Struct

from .storage import PARQUET, replace_file

# Rows and bytes of a row group: what has to fit into memory.
GROUP_ROWS = 20_000
GROUP_BYTES = 32 * 1024 * 1024

_ABSENT = Raw(b"null")

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""What fits into a column."""


class Versions(Struct):
    """Of what took part."""

    openenv: str | None = None
    environment: str | None = None


class ParquetRow(Struct):
    """One line. What is JSON in it stays encoded."""

    episode_id: str | None = None
    session_id: str | None = None
    step: Int64 = 0
    seed: Int64 | None = None
    arguments: Raw = _ABSENT
    action: Raw = _ABSENT
    step_arguments: Raw = _ABSENT
    observation: Raw = _ABSENT
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    done: bool = False
    time: float = 0.0
    duration_s: float = 0.0
    error: str | None = None
    environment: str | None = None
    versions: Versions = msgspec.field(default_factory=Versions)
    schema: str | None = None
    source: Raw = _ABSENT


COLUMNS = ParquetRow.__struct_fields__
"""The columns, in order."""
JSON_COLUMNS = ("arguments", "action", "step_arguments", "observation", "source")
"""Those that hold text in JSON."""

_decode = msgspec.json.Decoder(ParquetRow).decode


def rows_of(lines: BinaryIO) -> Iterator[tuple[ParquetRow, int]]:
    """The rows of a file of lines with their sizes; a torn last line is left out.

    Raises:
        ValueError: A line is none of ours.
    """
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _decode(line), len(line)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number} is no transition: {error}") from error


@cache
def schema() -> Any:
    """The schema of every file (pyarrow's)."""
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(COLUMNS, pa.string())
    kinds |= {"step": pa.int64(), "seed": pa.int64()}
    kinds |= dict.fromkeys(("reward", "time", "duration_s"), pa.float64())
    kinds |= dict.fromkeys(("terminated", "truncated", "done"), pa.bool_())
    kinds["versions"] = pa.struct({"openenv": pa.string(), "environment": pa.string()})
    return pa.schema([pa.field(name, kinds[name]) for name in COLUMNS])


def columns_of(rows: list[ParquetRow]) -> Any:
    """Rows as a table (pyarrow's)."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values = [getattr(row, name) for row in rows]
        if name in JSON_COLUMNS:
            texts = [str(value, "utf-8") for value in values]
            values = [None if text == "null" else text for text in texts]
        elif name == "versions":
            values = [msgspec.structs.asdict(value) for value in values]
        columns[name] = values
    return pa.table(columns, schema=schema())


def convert(source: Path) -> Path:
    """Writes a file of lines as Parquet beside it. The file itself is left as it is.

    Returns:
        The new file, which is whole and on disk.

    Raises:
        OSError: It cannot be written; nothing of it is left.
        ValueError: A line is none of ours, and would be lost.
        ImportError: pyarrow is not installed.
    """
    import pyarrow.parquet as pq

    target = source.with_suffix(PARQUET)
    with replace_file(target) as part, source.open("rb") as lines, part.open("wb") as file:
        with pq.ParquetWriter(file, schema(), compression="zstd") as writer:
            for group in _groups(lines):
                writer.write_table(columns_of(group))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(target.parent)
    return target


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _groups(lines: BinaryIO) -> Iterator[list[ParquetRow]]:
    rows: list[ParquetRow] = []
    size = 0
    for row, length in rows_of(lines):
        rows.append(row)
        size += length
        if len(rows) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield rows
            rows, size = [], 0
    yield rows
