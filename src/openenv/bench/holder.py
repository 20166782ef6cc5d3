"""The environment of `openenv bench sandbox`: its step allocates memory, touches it, and holds it."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

from .._processes import peak_bytes
from ..environment import Environment
from ..types import Action, Observation, State

TARGET = "openenv.bench.holder:Holder"
"""Its target for `openenv serve`."""
MEBIBYTE = 1024 * 1024


class Hold(Action):
    """Allocates memory and holds it for some time.

    Attributes:
        megabytes: Size in MiB. Each page is written to.
        seconds: Seconds for which the memory is held afterwards.
    """

    megabytes: int
    seconds: float


class Held(Observation):
    """The cost of an allocation.

    Attributes:
        allocation_s: Seconds until all pages were allocated.
        peak_rss_bytes: Peak resident memory of this process so far.
    """

    allocation_s: float = 0.0
    peak_rss_bytes: int = 0


class Holder(Environment[Hold, Held, State]):
    """Holds memory."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Held:
        """Starts an episode, without memory held."""
        self._steps = 0
        return Held()

    def step(self, action: Hold, timeout_s: float | None = None, **kwargs: Any) -> Held:
        """Allocates memory, holds it, and frees it."""
        self._steps += 1
        began = time.monotonic()
        with mmap.mmap(-1, max(action.megabytes * MEBIBYTE, mmap.PAGESIZE)) as block:
            for page in range(0, len(block), mmap.PAGESIZE):
                block[page] = 1
            allocation_s = time.monotonic() - began
            time.sleep(action.seconds)
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        except (OSError, StopIteration):
            # ru_maxrss of Linux also counts the process before it executed Python.
            peak = peak_bytes()
        return Held(allocation_s=allocation_s, peak_rss_bytes=peak, reward=1.0, done=True)

    @property
    def state(self) -> State:
        return State(step_count=self._steps)
