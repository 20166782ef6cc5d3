"""Files on every system: locks, reads at a place, and folders as files, where POSIX and Windows differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._imports import module_or_none

fcntl: Any = module_or_none("fcntl")
_msvcrt: Any = module_or_none("msvcrt")

# For `os.open`: Windows would end the lines of another file with \r\n. No descriptor of Python's is inherited.
BINARY: int = getattr(os, "O_BINARY", 0)
# Whether a file that is open can get another name.
RENAMES_OPEN_FILES = os.name == "posix"
# Windows refuses others access to the bytes of a lock: one that no file has is locked.
_LOCKED_BYTE = 1 << 40


def lock_file(descriptor: int) -> bool:
    """Locks a file until its last descriptor is closed. False if another process has locked it."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    elif _msvcrt is not None:
        here = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            with suppress(OSError):
                _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
                return True
        finally:
            os.lseek(descriptor, here, os.SEEK_SET)
    return False


def lock_folder(folder: Path) -> int | None:
    """Locks a folder, on Windows by a file `.lock` in it.

    Returns:
        A descriptor, which holds the lock until the caller closes it; None if another process has locked the folder.

    Raises:
        OSError: There is no such folder, or it cannot be opened.
    """
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT) if fcntl is None else os.open(folder, os.O_RDONLY)
    if lock_file(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def set_nonblocking(*descriptors: int) -> None:
    """Reads and writes of these pipes raise `BlockingIOError` in place of a wait. Windows has no such pipes."""
    if sys.platform != "win32":
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)


def sync_folder(folder: Path) -> None:
    """Waits until the names of new files are on the disk. Nothing on Windows, which cannot open folders."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _seek_and_read(descriptor: int, count: int, place: int) -> bytes:
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.read(descriptor, count)
    finally:
        os.lseek(descriptor, here, os.SEEK_SET)


# Reads at most `count` bytes at an offset, given descriptor, count and offset. The file keeps its position; on
# Windows, only one thread may use the file meanwhile.
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
