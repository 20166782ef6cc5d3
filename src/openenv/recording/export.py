"""Write selected episodes and their arrays to a new file."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import MissingArray, MissingExtra, UsageError
from .parquet import convert
from .reader import Episode
from .storage import JSONL, PARQUET, PART, array_path
from .transition import referenced_arrays


def export(episodes: Iterator[Episode], target: Path, heard: Callable[[int], None] = lambda count: None) -> int:
    """Writes episodes as lines, or as Parquet, by the suffix of the file; large arrays go beside it, into `arrays`.

    The file is there when it is whole, and not before.

    Args:
        episodes: What to write.
        target: The new file.
        heard: Gets the number of episodes written so far, after each one.

    Returns:
        How many episodes were written.

    Raises:
        UsageError: There is a file of that name, or its suffix is another one, or it cannot be written.
        UnreadableRecord: An episode cannot be read.
        MissingArray: One of its arrays is not there.
        MissingExtra: For Parquet, pyarrow is not installed.
    """
    if target.suffix not in {JSONL, PARQUET}:
        raise UsageError(f"{target} is no name for an export: let it end in {JSONL} or {PARQUET}")
    if target.exists():
        raise UsageError(f"{target} is there already: remove it, or name another file")
    lines = target.with_name(f"{target.stem}{PART}{JSONL}{PART}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lines.open("wb") as file:
            count = _write(episodes, file, target.parent, heard)
        _finish(lines, target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            lines.unlink()
    return count


def _write(episodes: Iterator[Episode], file: BinaryIO, folder: Path, heard: Callable[[int], None]) -> int:
    count = 0
    for episode in episodes:
        for line, origin in episode.lines():
            for digest, suffix in referenced_arrays(line):
                _copy(array_path(origin, digest, suffix), array_path(folder, digest, suffix))
            file.write(msgspec.json.encode(line) + b"\n")
        count += 1
        heard(count)
    return count


def _finish(lines: Path, target: Path) -> None:
    if target.suffix == JSONL:
        lines.replace(target)
        return
    try:
        made = convert(lines)
    except ImportError:
        raise MissingExtra("pyarrow", "recording") from None
    except ValueError as error:
        raise UsageError(f"{target} cannot be written: {error}; lines ({JSONL}) can hold it") from None
    made.replace(target)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + PART)
    try:
        shutil.copyfile(source, part)
    except FileNotFoundError:
        raise MissingArray(f"{source} is not there; copy the record together with its folder `arrays`") from None
    part.replace(target)
