"""Which number stands in which cell."""

from __future__ import annotations

import zlib
from enum import Enum

from .. import errors
from ..errors import OpenEnvError

__all__ = [
    "BUCKETS",
    "BUCKET_BOUNDS",
    "CELLS",
    "ERRORS",
    "FIRST_ERROR",
    "KEY_CELL",
    "LAYOUT",
    "LAYOUT_CELL",
    "PID_CELL",
    "Count",
    "Gauge",
    "Phase",
    "buckets_of",
]

# A page of memory: what one process writes shares no line of the CPU's cache with what another one does.
CELLS = 512

LAYOUT_CELL, PID_CELL, KEY_CELL = 0, 1, 2
_FIRST_GAUGE, _FIRST_COUNT, FIRST_ERROR, _FIRST_PHASE = 3, 20, 24, 96
# Bucket k of a histogram counts what took from 2^(k-1) to 2^k nanoseconds: k is a number's `bit_length`, and for no
# duration is there a bucket too few.
BUCKETS = 64
_PHASE_CELLS = 1 + BUCKETS  # nanoseconds together, then the buckets
# Shown are those from a microsecond to two minutes; what is shorter or longer falls into the first or the last.
_SHORTEST, _LONGEST = 10, 37
BUCKET_BOUNDS = tuple(2**k / 1e9 for k in range(_SHORTEST, _LONGEST + 1))
"""Upper bounds of the buckets that are shown, in seconds; one without a bound follows."""


class Gauge(Enum):
    """What goes up and down, in one process: sessions by state, and what else there is of them."""

    cell: int

    STARTING = "starting"
    LIVE = "live"
    EXECUTING = "executing"
    DETACHED = "detached"
    CLOSING = "closing"
    QUEUED = "queued"
    RUNNING = "running"
    HELD_BACK = "held_back"
    CONSTRUCTING = "constructing"
    CONNECTIONS = "connections"
    STUCK_THREADS = "stuck_threads"
    LOOP_LAG_NS = "loop_lag_ns"
    RECORDING_STOPPED = "recording_stopped"

    def __init__(self, _: str):
        self.cell = _FIRST_GAUGE + len(type(self).__members__)


class Count(Enum):
    """What only grows, and is no error and no phase."""

    cell: int

    WORKER_RESTARTS = "worker_restarts"
    RECORDS = "records"
    RECORD_BYTES = "record_bytes"
    RECORDS_DROPPED = "records_dropped"

    def __init__(self, _: str):
        self.cell = _FIRST_COUNT + len(type(self).__members__)


class Phase(Enum):
    """Where the time of a session goes; each has a histogram of seconds."""

    cell: int

    QUEUE = "queue"
    CONSTRUCT = "construct"
    RESET = "reset"
    STEP = "step"
    SERIALIZE = "serialize"
    SEND = "send"

    def __init__(self, _: str):
        self.cell = _FIRST_PHASE + len(type(self).__members__) * _PHASE_CELLS


ERRORS: tuple[tuple[type[OpenEnvError], str], ...] = (
    *{
        (thing, thing.blame): None
        for thing in vars(errors).values()
        if isinstance(thing, type) and issubclass(thing, OpenEnvError) and thing.__module__ == errors.__name__
    },
    # Classes whose instances differ in it.
    (errors.ToolFailed, "client"),
    (errors.UnknownSession, "infrastructure"),
)
"""Class and blame that errors are counted by; one of another class counts as the nearest of these."""

assert FIRST_ERROR + len(ERRORS) <= _FIRST_PHASE
assert _FIRST_PHASE + len(Phase) * _PHASE_CELLS <= CELLS

# What the cells mean, as a number: processes of two versions may share memory while workers are replaced.
LAYOUT = 1 + zlib.crc32(repr([*Gauge, *Count, *Phase, *ERRORS]).encode())


def buckets_of(cells: list[int], phase: Phase) -> list[int]:
    """The counts of a phase's shown buckets: one for each of `BUCKET_BOUNDS`, and one for what took longer."""
    raw = cells[phase.cell + 1 : phase.cell + 1 + BUCKETS]
    return [sum(raw[: _SHORTEST + 1]), *raw[_SHORTEST + 1 : _LONGEST + 1], sum(raw[_LONGEST + 1 :])]
