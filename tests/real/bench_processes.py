"""Which processes there are, and which are left."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

__all__ = ["children_of", "left_of"]

PATIENCE_S = 30.0


def left_of(pids):
    """Which of these live on. What was told to end may take a moment."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit and any(map(_lives, pids)):
        time.sleep(0.01)
    return [pid for pid in pids if _lives(pid)]


def children_of(parent):
    """Command lines of the children of a process, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _fields(entry)[1:2] == [str(parent)]:
            with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")
    return found


def _lives(pid):
    # A process that has ended is a zombie until its parent, or init, takes note.
    return _fields(Path(f"/proc/{pid}"))[:1] not in ([], ["Z"])


def _fields(folder):
    """State, parent and so on; none if there is no such process."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
