"""Find threads, tasks, processes, files and memory that sessions leak in this process."""

from __future__ import annotations

import asyncio
import gc
import logging
import mmap
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

# Number of sessions: the first one also creates resources for all of them.
CYCLES = 3
# Seconds between two counts, for tasks and threads that are ending.
PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
_COMPLAINTS = "close() of its environment failed"


async def find_leaks(cycle: Callable[[], Awaitable[None]]) -> tuple[list[str], list[str]]:
    """Runs a function `CYCLES` times, and once before that.

    Args:
        cycle: Opens a session, uses and closes it.

    Returns:
        The resources that it leaked, as text, and the exceptions of `close` of its environments.
    """
    with _Complaints() as complaints:
        await cycle()
        before = await _held_after()
        for _ in range(CYCLES):
            await cycle()
        left: list[str] = []
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            now = await _held_after()
            left = []
            for kind, held in now.items():
                # A leak has at least one object of a kind per session: fewer may belong to the server, or be chance.
                count = held.total() - before[kind].total()
                if count >= CYCLES:
                    most = (held - before[kind]).most_common(3)
                    left.append(f"{count} {kind} ({', '.join(f'{number} of {name}' for name, number in most)})")
            if not left:
                break
    return left, complaints.heard


def resident_bytes() -> int | None:
    """Memory of this process and its children, in bytes. None if unknown."""
    pages = 0
    for process in ("self", *descendants("self")):
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        except OSError:
            if process == "self":
                return None
            # A child has ended.
    return pages * mmap.PAGESIZE


async def _held_after() -> dict[str, Counter[str]]:
    await asyncio.sleep(0)
    gc.collect()
    return {
        # Without numbers, which differ between objects of the same kind.
        "threads": Counter(
            "openenv" if name.startswith("openenv-") else name.rstrip("0123456789 ()").rstrip("-_") or name
            for name in (thread.name for thread in threading.enumerate())
        ),
        "tasks": Counter(
            str(getattr(coroutine, "__qualname__", coroutine))
            for coroutine in (task.get_coro() for task in asyncio.all_tasks())
        ),
        "open files and sockets": Counter(_files()),
        "processes": Counter(_command(child) for child in _children("self")),
    }


def _files() -> Iterator[str]:
    for place in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the descriptor that listed the others
            yield str(place.readlink()).partition(":[")[0]


def _children(process: str) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):
            found += (task / "children").read_text(encoding="ascii").split()
    return found


def descendants(process: str) -> list[str]:
    """PIDs of all descendants of a process (its PID, or `self`). Empty if unknown."""
    found: list[str] = []
    for child in _children(process):
        found += [child, *descendants(child)]
    return found


def _command(process: str) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    return " ".join(words[:3])[:60].strip() or "a process"


class _Complaints(logging.Handler):
    """Collects the log records of environments that fail to `close`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []
        self._logger = logging.getLogger("openenv.sessions")

    def emit(self, record: logging.LogRecord) -> None:
        if _COMPLAINTS in record.getMessage():
            error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
            self.heard.append(f"{type(error).__name__}: {error}")

    def __enter__(self) -> _Complaints:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
