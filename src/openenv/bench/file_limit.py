"""Open files: a session is one, at both of its ends."""

from __future__ import annotations

import resource

from ..errors import UsageError

__all__ = ["check_share", "raise_file_limit"]

# Where the system sets none, what the kernel allows a process by default.
UNLIMITED = 1_048_576
# The rest is for modules being imported, pipes, and sockets still in their last handshake.
USABLE = 0.9


def raise_file_limit() -> int:
    """Raises this process's limit as far as it may, for itself and what it starts.

    Returns:
        How many files it may have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


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
