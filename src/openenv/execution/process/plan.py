"""What a server and its warm parent say to each other."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .limits import ProcessLimits

__all__ = ["END", "EXITED", "FAILED", "FORK", "MESSAGE_BYTES", "TOO_MANY", "UNFORKED", "Plan"]

# From the server: fork a process, whose road comes with the message; end one.
FORK, END = "fork", "end"
# A session's process is about to fork another one, whose stderr comes with the message; this is its number.
EXPECT, ADOPT = "expect", "adopt"
# To the server: one has ended; none can be made, since the environment's module fails.
EXITED, FAILED = "exited", "failed"
# Why one has ended, where the warm parent knows.
TOO_MANY, UNFORKED = "too many", "unforked"
MESSAGE_BYTES = 64 * 1024


class Plan(NamedTuple):
    """What a warm parent is to make.

    Attributes:
        factory: What makes environments, pickled by reference.
        limits: Of each process.
        sandbox: Whether this process runs in one.
        kept: Folders that a sandboxed process sees in its own /tmp.
    """

    factory: bytes
    limits: ProcessLimits
    sandbox: Literal["none", "bwrap"]
    kept: list[str]
