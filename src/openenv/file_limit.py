"""How many files this process may have open: a session is one, at both of its ends."""

from __future__ import annotations

import resource

__all__ = ["raise_file_limit"]

# Where the system sets none, what the kernel allows a process by default.
UNLIMITED = 1_048_576


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
