"""How much a folder of records holds, and may hold."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Room"]

# Others write into the folder too: it is measured anew whenever so much of the bound was added here.
_PART_OF_BOUND = 20


class Room:
    """Keeps a folder within a bound, give or take a twentieth for each process that writes there.

    Args:
        folder: With everything in it.
        bound: Most bytes; None: as many as there are.
    """

    def __init__(self, folder: Path, bound: int | None):
        self.bound = bound
        self._folder = os.fspath(folder)
        self._used = 0
        # Bytes added since the folder was measured; None: it never was.
        self._added: int | None = None

    def add(self, count: int) -> None:
        """So many bytes are new there."""
        if self._added is not None:
            self._added += count

    def is_full(self) -> bool:
        """Whether the bound is reached."""
        if self.bound is None:
            return False
        if (
            self._added is None
            or self._added >= self.bound // _PART_OF_BOUND
            or self._used + self._added >= self.bound
        ):
            self._used, self._added = _size_of(self._folder), 0
        return self._used + self._added >= self.bound


def _size_of(folder: str) -> int:
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has gone meanwhile
                if entry.is_dir(follow_symlinks=False):
                    size += _size_of(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size
