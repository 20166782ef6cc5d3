"""Description of this machine, and CPU time and memory of its processes."""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import UsageError

PROC = Path("/proc")
_TICK_S = 0.01  # of the times in /proc (USER_HZ)


class Processes:
    """Running processes and their descendants.

    Raises:
        UsageError: One of them does not run, at the start or at a reading.
    """

    def __init__(self, roots: Iterable[int]):
        self._roots = list(roots)
        process_tree(self._roots)

    def cpu_seconds(self) -> float:
        """CPU time used so far, in seconds."""
        return cpu_seconds(process_tree(self._roots))

    def resident_bytes(self) -> int:
        """Resident memory in bytes."""
        return resident_bytes(process_tree(self._roots))


def process_tree(roots: Iterable[int]) -> list[int]:
    """PIDs of the running processes: `roots` and all of their descendants.

    Raises:
        UsageError: One of the roots does not run, or this system is not Linux.
    """
    if not PROC.is_dir():
        raise UsageError("CPU time and memory of processes are read from /proc, which only Linux has: measure there")
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, None] = {}
    waiting = list(roots)
    for root in waiting:
        if not _stat(root):
            raise UsageError(f"there is no process {root} on this machine")
    while waiting:
        pid = waiting.pop()
        found[pid] = None
        waiting += children.get(pid, [])
    return list(found)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time (user and system) used so far by those processes that still run, in seconds, a multiple of 10 ms."""
    return sum(_TICK_S * (int(fields[11]) + int(fields[12])) for pid in pids if (fields := _stat(pid)))


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of those processes that still run, in bytes. Shared memory is counted for each."""
    total = 0
    for pid in pids:
        try:
            total += int((PROC / str(pid) / "statm").read_text().split()[1]) * mmap.PAGESIZE
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def _stat(pid: int) -> list[str]:
    """The fields after the name (state, parent, ...), or [] if the process does not run."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name is in parentheses and may contain any characters.
    return text.rpartition(")")[2].split()


_CPUINFO = Path("/proc/cpuinfo")
# Packages that a step runs through.
_PACKAGES = ("picows", "uvloop", "uvicorn", "pydantic", "msgspec", "numpy", "gymnasium")


def machine() -> dict[str, str]:
    """Description of the hardware and the software of this machine."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    versions = []
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return {
        "openenv": __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": next(names, platform.processor() or platform.machine()),
        "cores": str(os.cpu_count()),
        "packages": ", ".join(versions),
    }


def document_head(kind: str, command: str, workload: Mapping[str, Any], served_by: str) -> dict[str, Any]:
    """The fields that the documents of all kinds of measurements have."""
    return {"bench": kind, "command": command, "machine": machine(), "server": served_by, "workload": workload}
