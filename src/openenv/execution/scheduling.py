"""How threads that work for the event loop share a processor with it."""

from __future__ import annotations

import contextlib
import os

__all__ = ["give_way"]


def give_way() -> None:
    """Has the kernel not interrupt a running thread when the calling one is woken. Elsewhere than on Linux, nothing.

    A thread is woken while the event loop holds the interpreter: given the processor at once, it would only find that
    out and go back to sleep. On one core, 64 sessions, that is two switches and a third to a half of the CPU of a
    step (51 us without, 28 with; `openenv bench steps --serve` of a synchronous environment).
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # A sandbox may forbid it. What the thread starts inherits it: the same share, later by a moment.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
