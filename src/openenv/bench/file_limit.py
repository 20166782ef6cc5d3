"""How many sessions one process of the load can hold."""

from __future__ import annotations

from ..errors import UsageError
from ..file_limit import raise_file_limit

__all__ = ["check_share", "raise_file_limit"]

# The rest is for modules being imported, pipes, and sockets still in their last handshake.
USABLE = 0.9


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
    usable = max(1, int(limit * USABLE))
    needed = -(-sessions // usable)
    if processes < needed:
        raise UsageError(
            f"{sessions} sessions are too many for {processes} process{'es' if processes > 1 else ''} of the load: "
            f"each may have {limit} files open, enough for {usable} sessions; give --processes {needed}"
        )
