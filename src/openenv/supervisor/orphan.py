"""A worker process whose parent is gone ends as well, whatever its environments do."""

from __future__ import annotations

import os
import select
import threading
import time

from .grace import ORPHAN_S

__all__ = ["end_with_parent"]


def end_with_parent(pipe: int) -> None:
    """Ends this process a moment after its parent, also if its event loop hangs by then.

    Only code that keeps the interpreter to itself for good would hold it up.

    Args:
        pipe: Descriptor of the road to the parent, which stays open for the process's life.
    """
    # A thread, since the signal that the kernel can send at a parent's death would leave no time for a farewell.
    threading.Thread(target=_end_after, args=(pipe,), name="openenv-orphan", daemon=True).start()


def _end_after(pipe: int) -> None:
    road = select.poll()
    road.register(pipe, 0)  # nothing but its end, which is always told
    road.poll()
    time.sleep(ORPHAN_S)
    os._exit(1)
