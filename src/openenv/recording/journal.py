"""One file of lines, while it is written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .files import PART

__all__ = ["Journal", "held"]

# What is written with one call of the system.
CHUNK_LINES = 512


class Journal:
    """Appends whole lines. What the kernel has taken survives the death of this process, however it dies.

    It holds a lock on the file, which goes with the process: nobody else touches the file while it lives.

    Args:
        path: A new file.

    Raises:
        OSError: It cannot be made.

    Attributes:
        size: Bytes in it.
        lines: Lines in it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self.lines = 0
        # Locked before it has its name: whoever tidies up would take an empty file that nobody holds for a dead one.
        made = path.with_name(path.name + PART) if os.name == "posix" else path
        self._fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _lock(self._fd)
        if made != path:
            made.rename(path)

    def append(self, lines: Sequence[bytes]) -> None:
        """Writes lines.

        Raises:
            OSError: Not all could be written, and of the one at which it ended nothing is left in the file; or the
                file was removed.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self.path))
        for start in range(0, len(lines), CHUNK_LINES):
            some = lines[start : start + CHUNK_LINES]
            self._write(b"".join(some))
            self.lines += len(some)

    def close(self, sync: bool = True) -> None:
        """Ends it. Raises `OSError` where the disk does not take what the kernel has."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _write(self, text: bytes) -> None:
        view, done = memoryview(text), 0
        try:
            while done < len(text):
                done += os.write(self._fd, view[done:])
        except OSError:
            whole = text.rfind(b"\n", 0, done) + 1
            self.size += whole
            self.lines += text.count(b"\n", 0, whole)
            if done > whole:
                os.ftruncate(self._fd, self.size)
            raise
        self.size += done


def held(path: Path, work: Callable[[int], None]) -> bool:
    """Does something with a file of lines that nobody writes, and keeps others away meanwhile.

    Args:
        path: The file.
        work: Gets its file descriptor, to read and write.

    Returns:
        Whether it was done: not if somebody writes the file, or has done the same meanwhile.

    Raises:
        OSError: The file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not _lock(fd) or not path.exists():
            return False
        work(fd)
        return True
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Keeps others away from a file. False: somebody else does, or there are no locks here."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
