"""Numbers as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import OpenEnvError
from .layout import (
    BUCKETS,
    CELLS,
    ERRORS,
    FIRST_ERROR,
    KEY_CELL,
    LAYOUT,
    LAYOUT_CELL,
    PID_CELL,
    Count,
    Gauge,
    Phase,
    buckets_of,
)

__all__ = ["Histogram", "Reading", "quantile", "total"]

_LASTING = (
    *(count.cell for count in Count),
    *range(FIRST_ERROR, FIRST_ERROR + len(ERRORS)),
    *(cell for phase in Phase for cell in range(phase.cell, phase.cell + 1 + BUCKETS)),
)


class Histogram(NamedTuple):
    """How long a phase took.

    Attributes:
        counts: One for each of `BUCKET_BOUNDS`, not added up, and one for what took longer.
        seconds: All together.
    """

    counts: list[int]
    seconds: float


class Reading:
    """The numbers of one process, or of several together.

    Args:
        cells: A copy of them.
    """

    def __init__(self, cells: list[int]):
        self.cells = cells

    @property
    def pid(self) -> int:
        """The process; 0 for one that serves no sessions, and for several."""
        return self.cells[PID_CELL]

    @property
    def worker(self) -> str:
        """What the process is called among several workers, as clients and `GET /sessions` name it; empty for one."""
        return format(self.cells[KEY_CELL], "x") if self.cells[KEY_CELL] else ""

    @property
    def legible(self) -> bool:
        """Whether it was written by a process to which the cells mean the same."""
        return self.cells[LAYOUT_CELL] == LAYOUT

    def value(self, what: Gauge | Count) -> int:
        return self.cells[what.cell]

    def histogram(self, phase: Phase) -> Histogram:
        return Histogram(buckets_of(self.cells, phase), self.cells[phase.cell] / 1e9)

    def errors(self) -> dict[tuple[type[OpenEnvError], str], int]:
        """The errors that have happened, by class and blame."""
        counts = self.cells[FIRST_ERROR : FIRST_ERROR + len(ERRORS)]
        return {error: count for error, count in zip(ERRORS, counts, strict=True) if count}

    def lasting(self) -> list[tuple[int, int]]:
        """Cells, and what stands in them, of all that never goes down: what is kept of a process that is gone."""
        return [(cell, self.cells[cell]) for cell in _LASTING if self.cells[cell]]


def total(readings: Iterable[Reading]) -> Reading:
    """Several processes as one."""
    cells = [0] * CELLS
    for reading in readings:
        cells = [mine + more for mine, more in zip(cells, reading.cells, strict=True)]
    cells[PID_CELL] = cells[KEY_CELL] = 0
    cells[LAYOUT_CELL] = LAYOUT
    return Reading(cells)


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value below which a share of a histogram lies, evenly spread within each bucket.

    Args:
        bounds: Upper bounds of the buckets, ascending.
        counts: How many fell into each; one more for those over the last bound, which count as of that bound.
        share: From 0 to 1.

    Returns:
        None where nothing was counted.
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
