"""An event loop for tests whose both sides run on it: a machine that lets it wait makes neither side late."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

__all__ = ["Unhurried"]


class _Idling(selectors.DefaultSelector):
    """Counts the time in which its loop had nothing to do but to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.monotonic()

    def select(self, timeout: float | None = None) -> Any:
        began = time.monotonic()
        ready = super().select(timeout)
        waited = time.monotonic() - began
        self.now += waited if timeout is None else min(waited, max(0.0, timeout))
        return ready


class Unhurried(asyncio.SelectorEventLoop):
    """Its clock goes on only while it waits: no time is over as long as there is something to do."""

    def __init__(self) -> None:
        self._idling = _Idling()
        super().__init__(self._idling)

    def time(self) -> float:
        return self._idling.now
