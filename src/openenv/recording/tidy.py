"""Brings files that nobody writes any more into their last form.

Runs in a process of its own, out of the server's way: `python -m openenv.recording.tidy FOLDER_OR_FILE`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from .files import ARRAYS, PARQUET, PART, written_in
from .journal import held

__all__ = ["SMALL_BYTES", "can_convert", "is_untidy", "tidy", "tidy_file"]

SMALL_BYTES = 1024 * 1024
"""Files below this size stay lines: many small Parquet files would help nobody."""
# What is not whole by then never will be.
_PART_S = 3600.0
_TAIL = 64 * 1024


def can_convert() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def is_untidy(path: Path) -> bool:
    """Whether a file of lines may need something done, if nobody writes it. Looks at its end alone."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0 or (size >= SMALL_BYTES and can_convert()) or path.with_suffix(PARQUET).exists():
            return True
        file.seek(size - 1)
        return file.read(1) != b"\n"
    return False


def tidy(folder: Path) -> None:
    """Tidies up a folder: what killed processes left is repaired and becomes Parquet, what is torn goes.

    Raises:
        OSError: Something cannot be read or written.
        ValueError: A file has lines of something else; it stays as it is.
    """
    fault: ValueError | None = None
    for path in written_in(folder):
        try:
            tidy_file(path)
        except ValueError as error:  # not of ours: the others are done all the same
            fault = fault or error
    old = time.time() - _PART_S
    for part in (folder / ARRAYS).glob(f"*/*{PART}"):
        with contextlib.suppress(OSError):
            if part.stat().st_mtime < old:
                part.unlink()
    if fault is not None:
        raise fault


def tidy_file(path: Path) -> bool:
    """The same for one file of lines. Returns whether it was its to tidy: nobody writes it.

    Raises:
        OSError: It cannot be read or written.
        ValueError: It has lines of something else, and stays as it is.
    """

    def work(fd: int) -> None:
        if path.with_suffix(PARQUET).exists():  # made, and then somebody was killed
            path.unlink()
            return
        _repair(fd)
        size = os.fstat(fd).st_size
        if size == 0:
            path.unlink()
        elif size >= SMALL_BYTES and can_convert():
            from .parquet import convert

            try:
                convert(path)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            path.unlink()

    return held(path, work)


def _repair(fd: int) -> None:
    """Cuts a torn last line off."""
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        start = max(0, end - _TAIL)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


def _stand_back() -> None:
    """Has the processor only when nobody else wants it; with niceness alone, a server that wakes up may wait."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not everybody may say so
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(19)


def main(arguments: list[str]) -> int:
    """Tidies up what is named; 0, or 1 with a line on stderr."""
    path = Path(arguments[0])
    try:
        if path.is_dir():
            tidy(path)
        else:
            tidy_file(path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    _stand_back()
    sys.exit(main(sys.argv[1:]))
