"""Many sessions at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .crew import Counts, Member, deal, run_crew, run_loop, without_gc
from .episode import Batch, request, warm_up
from .file_limit import check_share, raise_file_limit
from .row import Row

__all__ = ["Storm", "storm"]


@dataclass(slots=True)
class Storm:
    """What came of a batch.

    Attributes:
        rows: One a request.
        wall_s: From the first request's beginning to the last one's end, its close included.
    """

    rows: list[Row]
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Part:
    rows: list[Row]
    began: float
    ended: float


def storm(batch: Batch, processes: int = 1, progress: Callable[[Counts], None] = lambda counts: None) -> Storm:
    """Begins all requests of a batch at the same moment and waits for them.

    Args:
        batch: What to do.
        processes: Among which the requests are shared out.
        progress: Called about ten times a second.

    Raises:
        UsageError: The processes cannot have as many sessions open.
    """
    check_share(batch.sessions, processes, raise_file_limit())
    parts = run_crew(partial(_requests, batch), deal(batch.sessions, processes), progress=progress)
    # The clock of perf_counter is one for all processes of a machine.
    wall_s = max(part.ended for part in parts) - min(part.began for part in parts)
    return Storm([row for part in parts for row in part.rows], wall_s)


def _requests(batch: Batch, member: Member, numbers: range) -> _Part:
    """In a process of the crew: its share of the requests."""

    async def all_at_once() -> list[Row]:
        return await asyncio.gather(*(request(batch, number, member) for number in numbers))

    raise_file_limit()
    run_loop(warm_up(batch))
    without_gc()
    member.meet()
    began = time.perf_counter()
    rows = run_loop(all_at_once())
    return _Part(rows, began, time.perf_counter())
