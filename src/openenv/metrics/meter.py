"""Where a process counts."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from typing import TypeVar

from ..errors import OpenEnvError
from .layout import CELLS, ERRORS, FIRST_ERROR, KEY_CELL, LAYOUT, LAYOUT_CELL, PID_CELL, Count, Gauge, Phase
from .reading import Reading

__all__ = ["METER", "Meter"]

_T = TypeVar("_T")
_R = TypeVar("_R")

_ERROR_CELLS = {error: FIRST_ERROR + place for place, error in enumerate(ERRORS)}


class Meter:
    """The numbers of one process. One thread counts: the event loop's.

    Attributes:
        on: Whether anything is counted. Look at it before reading a clock for `observe`: that is what costs.
    """

    SAMPLE = 15
    """What happens with every step and takes too little time for being timed each time is timed where the number of a
    step has none of these bits: once in 16."""

    __slots__ = ("_cells", "_everybody", "on")

    def __init__(self) -> None:
        self.on = False
        self._cells = memoryview(array("q", bytes(8 * CELLS)))
        self._everybody: Callable[[], list[Reading]] | None = None

    def start(self) -> None:
        """Counts from here on, as a process that serves sessions."""
        self.on = True
        self._cells[LAYOUT_CELL] = LAYOUT
        self._cells[PID_CELL] = os.getpid()

    def observe(self, phase: Phase, seconds: float) -> None:
        """A phase took so long."""
        # Written out for one: this is on the path of every step, and takes a fifth of a microsecond.
        cells, cell = self._cells, phase.cell
        nanoseconds = int(seconds * 1e9)
        cells[cell] += nanoseconds
        cells[cell + 1 + nanoseconds.bit_length()] += 1

    def observe_many(self, phase: Phase, seconds: float, times: int) -> None:
        """A phase took so long, so many times."""
        cells, cell = self._cells, phase.cell
        nanoseconds = int(seconds * 1e9)
        cells[cell] += nanoseconds * times
        cells[cell + 1 + nanoseconds.bit_length()] += times

    def timed(self, phase: Phase, function: Callable[[_T], _R], argument: _T) -> _R:
        """Calls a function, whose time is that of a phase."""
        began = time.monotonic()
        result = function(argument)
        self.observe(phase, time.monotonic() - began)
        return result

    def failed(self, error: BaseException) -> None:
        """An error was answered: counted by its class and blame."""
        if self.on:
            blame = getattr(error, "blame", OpenEnvError.blame)
            for cls in type(error).__mro__:
                cell = _ERROR_CELLS.get((cls, blame)) or _ERROR_CELLS.get((cls, getattr(cls, "blame", "")))
                if cell is not None:
                    break
            else:
                cell = _ERROR_CELLS[OpenEnvError, OpenEnvError.blame]
            self._cells[cell] += 1

    def add(self, what: Gauge | Count, change: int = 1) -> None:
        """Something went up or down."""
        self._cells[what.cell] += change

    def set(self, gauge: Gauge, value: int) -> None:
        """Something is so much now, by whoever is the only one who says so."""
        self._cells[gauge.cell] = value

    def move(self, cells: memoryview, everybody: Callable[[], list[Reading]]) -> None:
        """Counts in other memory from here on, from the sums that are there.

        Args:
            cells: `CELLS` numbers of 8 bytes, which nobody else writes.
            everybody: Reads the numbers of all processes that share the memory, this one's among them.
        """
        for cell, value in enumerate(self._cells):
            if value:
                cells[cell] = value if cell in (LAYOUT_CELL, PID_CELL, KEY_CELL) else cells[cell] + value
        self._cells, self._everybody = cells, everybody

    def leave(self) -> None:
        """Counts in memory of its own again, from the sums that were reached."""
        self._cells = memoryview(array("q", self._cells.tobytes()))
        self._everybody = None

    def reading(self) -> Reading:
        """The numbers of this process."""
        return Reading(self._cells.tolist())

    def readings(self) -> list[Reading]:
        """The numbers of every process of the server."""
        return [self.reading()] if self._everybody is None else self._everybody()


METER = Meter()
"""The numbers of this process."""
