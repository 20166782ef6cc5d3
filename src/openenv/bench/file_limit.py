"""How many sessions one process of the load can hold, and how many processes that makes."""

from __future__ import annotations

import os

from ..errors import UsageError
from ..file_limit import raise_file_limit

__all__ = ["check_share", "enough_processes", "raise_file_limit"]

# The rest is for modules being imported, pipes, and sockets still in their last handshake.
USABLE = 0.9
# So many sessions are worth starting another process for, as long as there is a core for it.
SESSIONS_EACH = 1024
# More than these are started only if somebody says so.
MOST_PROCESSES = 16


def enough_processes(sessions: int, limit: int) -> int:
    """How many processes of the load are right for so many sessions; `check_share` says whether they can hold them.

    Args:
        sessions: Open at one time, by all processes together.
        limit: Files that each process may have open.
    """
    wanted = min(os.cpu_count() or 1, -(-sessions // SESSIONS_EACH))
    return min(MOST_PROCESSES, max(1, wanted, _needed(sessions, limit)))


def check_share(sessions: int, processes: int, limit: int) -> None:
    """Whether the processes of the load can hold their sessions.

    Args:
        sessions: Open at one time, by all processes together.
        processes: Among which they are shared out.
        limit: Files that each process may have open.

    Raises:
        UsageError: They cannot; the message says how many processes can.
    """
    if sessions < 1 or processes < 1:
        raise UsageError(f"{sessions} sessions from {processes} processes: there must be at least one of each")
    needed = _needed(sessions, limit)
    if processes < needed:
        raise UsageError(
            f"{sessions} sessions are too many for {processes} process{'es' if processes > 1 else ''} of the load: "
            f"each may have {limit} files open, enough for {_usable(limit)} sessions; give --processes {needed}"
        )


def _usable(limit: int) -> int:
    return max(1, int(limit * USABLE))


def _needed(sessions: int, limit: int) -> int:
    return -(-sessions // _usable(limit))
