"""The end of a server's log, as errors show it."""

from __future__ import annotations

__all__ = ["TAIL_LINES", "with_tail"]

TAIL_LINES = 50
"""How much of a log an error shows."""


def with_tail(reason: str, log: str) -> str:
    """What an error says, and the end of the log if there is one."""
    return f"{reason}; its log ends with:\n{log}" if log else reason
