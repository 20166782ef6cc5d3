"""Counters of a process in one block of memory: a step adds to an array, names are read only on request."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from .. import errors
from ..errors import OpenEnvError

# A page of memory, so that the cells of two processes share no line of the CPU's cache.
CELLS = 512

PID_CELL, KEY_CELL = 0, 1
_FIRST_GAUGE, _FIRST_COUNT, FIRST_ERROR, _FIRST_PHASE = 3, 20, 24, 96
# Bucket k of a histogram counts durations from 2^(k-1) to 2^k nanoseconds: k is the number's `bit_length`, so every
# duration has a bucket.
BUCKETS = 64
_PHASE_CELLS = 1 + BUCKETS  # the sum in nanoseconds, then the buckets
# The exported buckets range from a microsecond to two minutes. Other durations count in the first or the last.
_SHORTEST, _LONGEST = 10, 37
BUCKET_BOUNDS = tuple(2**k / 1e9 for k in range(_SHORTEST, _LONGEST + 1))
"""Upper bounds of the exported buckets, in seconds; one without a bound follows."""


class Gauge(Enum):
    """Gauges of one process: sessions by state, and others."""

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
    """Counters of events other than errors and phases."""

    cell: int

    WORKER_RESTARTS = "worker_restarts"
    RECORDS = "records"
    RECORD_BYTES = "record_bytes"
    RECORDS_DROPPED = "records_dropped"

    def __init__(self, _: str):
        self.cell = _FIRST_COUNT + len(type(self).__members__)


class Phase(Enum):
    """The phases of a session's work; each has a histogram of seconds."""

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
    # In these classes, it differs between instances.
    (errors.ToolFailed, "client"),
    (errors.UnknownSession, "infrastructure"),
)
"""The classes and blames by which errors are counted. An error of another class counts as its nearest base class."""

assert FIRST_ERROR + len(ERRORS) <= _FIRST_PHASE
assert _FIRST_PHASE + len(Phase) * _PHASE_CELLS <= CELLS

_LASTING = (
    *(count.cell for count in Count),
    *range(FIRST_ERROR, FIRST_ERROR + len(ERRORS)),
    *(cell for phase in Phase for cell in range(phase.cell, phase.cell + 1 + BUCKETS)),
)


class Histogram(NamedTuple):
    """The durations of a phase.

    Attributes:
        counts: One for each of `BUCKET_BOUNDS`, not cumulative, and one for longer durations.
        seconds: The sum of all durations.
    """

    counts: list[int]
    seconds: float


class Reading:
    """The metrics of one process, or the sums of several.

    Args:
        cells: A copy of the cells.
    """

    def __init__(self, cells: list[int]):
        self.cells = cells

    @property
    def pid(self) -> int:
        """The process id; 0 for a process that serves no sessions, and for several processes."""
        return self.cells[PID_CELL]

    @property
    def worker(self) -> str:
        """The key of the worker process, as in the protocol and `GET /sessions`; empty for a single process."""
        return format(self.cells[KEY_CELL], "x") if self.cells[KEY_CELL] else ""

    def value(self, what: Gauge | Count) -> int:
        return self.cells[what.cell]

    def histogram(self, phase: Phase) -> Histogram:
        raw = self.cells[phase.cell + 1 : phase.cell + 1 + BUCKETS]
        counts = [sum(raw[: _SHORTEST + 1]), *raw[_SHORTEST + 1 : _LONGEST + 1], sum(raw[_LONGEST + 1 :])]
        return Histogram(counts, self.cells[phase.cell] / 1e9)

    def errors(self) -> dict[tuple[type[OpenEnvError], str], int]:
        """The errors that have happened, by class and blame."""
        counts = self.cells[FIRST_ERROR : FIRST_ERROR + len(ERRORS)]
        return {error: count for error, count in zip(ERRORS, counts, strict=True) if count}

    def lasting(self) -> list[tuple[int, int]]:
        """The indices and values of all counters, which are kept when the process has ended."""
        return [(cell, self.cells[cell]) for cell in _LASTING if self.cells[cell]]


def total(readings: Iterable[Reading]) -> Reading:
    """The sums over several processes."""
    cells = [0] * CELLS
    for reading in readings:
        cells = [mine + more for mine, more in zip(cells, reading.cells, strict=True)]
    cells[PID_CELL] = cells[KEY_CELL] = 0
    return Reading(cells)


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value below which a share of a histogram lies, interpolated linearly within each bucket.

    Args:
        bounds: Upper bounds of the buckets, ascending.
        counts: The count of each bucket, and one more for values over the last bound, which count as that bound.
        share: From 0 to 1.

    Returns:
        None if nothing was counted.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for place, bound in enumerate(bounds):
        count = counts[place]
        if count and below + count >= wanted:
            lower = bounds[place - 1] if place else 0.0
            return lower + (bound - lower) * (wanted - below) / count
        below += count
    return bounds[-1]


_T = TypeVar("_T")
_R = TypeVar("_R")

_ERROR_CELLS = {error: FIRST_ERROR + place for place, error in enumerate(ERRORS)}


class Meter:
    """The metrics of one process. Only the thread of the event loop counts.

    Attributes:
        on: Whether anything is counted. Check it before reading a clock for `observe`: the clock is the cost.
        cells: The numbers. `Session` writes the time of a call itself, as `observe` does.
    """

    SAMPLE = 15
    """Work that happens in every step and is too short to be timed each time is timed if the number of the step has
    none of these bits: once in 16."""

    __slots__ = ("_read_all", "cells", "on")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins at zero, in memory of its own; a fork must, whose numbers are those of its parent."""
        self.on = False
        self.cells = memoryview(array("q", bytes(8 * CELLS)))
        self._read_all: Callable[[], list[Reading]] | None = None

    def start(self) -> None:
        """Starts counting, as a process that serves sessions."""
        self.on = True
        self.cells[PID_CELL] = os.getpid()

    def observe(self, phase: Phase, seconds: float) -> None:
        """Records the duration of a phase."""
        # `observe_many` for one, written out: this is on the path of every step, and takes a fifth of a microsecond.
        cells, cell = self.cells, phase.cell
        nanoseconds = int(seconds * 1e9)
        cells[cell] += nanoseconds
        cells[cell + 1 + nanoseconds.bit_length()] += 1

    def observe_many(self, phase: Phase, seconds: float, times: int) -> None:
        """Records a phase that took `seconds`, `times` times."""
        cells, cell = self.cells, phase.cell
        nanoseconds = int(seconds * 1e9)
        cells[cell] += nanoseconds * times
        cells[cell + 1 + nanoseconds.bit_length()] += times

    def timed(self, phase: Phase, function: Callable[[_T], _R], argument: _T) -> _R:
        """Calls a function and records its duration as that of a phase."""
        began = time.monotonic()
        result = function(argument)
        self.observe(phase, time.monotonic() - began)
        return result

    def failed(self, error: BaseException) -> None:
        """Counts an error that a client received, by its class and blame."""
        if self.on:
            blame = getattr(error, "blame", OpenEnvError.blame)
            for cls in type(error).__mro__:
                cell = _ERROR_CELLS.get((cls, blame)) or _ERROR_CELLS.get((cls, getattr(cls, "blame", "")))
                if cell is not None:
                    break
            else:
                cell = _ERROR_CELLS[OpenEnvError, OpenEnvError.blame]
            self.cells[cell] += 1

    def add(self, what: Gauge | Count, change: int = 1) -> None:
        """Adds to a gauge or a counter."""
        self.cells[what.cell] += change

    def set(self, gauge: Gauge, value: int) -> None:
        """Sets a gauge that has one writer."""
        self.cells[gauge.cell] = value

    def move(self, cells: memoryview, read_all: Callable[[], list[Reading]]) -> None:
        """Moves to other memory, and continues from the sums that are there.

        Args:
            cells: `CELLS` numbers of 8 bytes, which no other process writes.
            read_all: Reads the metrics of all processes that share the memory, including this one.
        """
        for cell, value in enumerate(self.cells):
            if value:
                cells[cell] = value if cell in (PID_CELL, KEY_CELL) else cells[cell] + value
        self.cells, self._read_all = cells, read_all

    def leave(self) -> None:
        """Moves back to its own memory, and continues from the current sums."""
        self.cells = memoryview(array("q", self.cells.tobytes()))
        self._read_all = None

    def reading(self) -> Reading:
        """The metrics of this process."""
        return Reading(self.cells.tolist())

    def readings(self) -> list[Reading]:
        """The metrics of every process of the server."""
        return [self.reading()] if self._read_all is None else self._read_all()


METER = Meter()
"""The metrics of this process."""
