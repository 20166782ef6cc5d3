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
from .storage import JSONL, PARQUET, PART, array_path, replace_file
from .transition import referenced_arrays


def export(episodes: Iterator[Episode], target: Path, on_episode: Callable[[int], None] = lambda count: None) -> int:
    """Writes episodes as lines, or as Parquet, by the suffix of the file; large arrays go beside it, into `arrays`.

    The file is there when it is whole, and not before.

    Args:
        episodes: What to write.
        target: The new file.
        on_episode: Gets the number of episodes written so far, after each one.

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
            count = _write(episodes, file, target.parent, on_episode)
        made = lines
        if target.suffix == PARQUET:
            try:
                made = convert(lines)
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


def _write(episodes: Iterator[Episode], file: BinaryIO, folder: Path, on_episode: Callable[[int], None]) -> int:
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
                        f"{there} is not there; copy the record together with its folder `arrays`"
                    ) from None
            file.write(msgspec.json.encode(line) + b"\n")
        count += 1
        on_episode(count)
    return count
