"""Finds connections whose other end is gone without a word."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Heartbeat", "Pulse"]


class Pulse(Protocol):
    """A connection under watch."""

    def silent(self) -> bool:
        """Whether its other end gave no sign of life since the last time this was asked."""

    def ping(self) -> None:
        """Asks the other end for a sign of life."""

    def cut(self) -> None:
        """Ends the connection: nothing was heard for a whole period after a ping."""


class Heartbeat:
    """One timer for all connections of a server: a silent one is cut within two periods.

    Args:
        interval_s: The period; None or 0 watches nothing.
    """

    def __init__(self, interval_s: float | None):
        self._interval = interval_s or 0.0
        self._watched: set[Pulse] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ticking(self) -> bool:
        """Whether a timer is set: only while there is somebody to watch."""
        return self._timer is not None

    def watch(self, pulse: Pulse) -> None:
        """Adds a connection. Runs on the event loop."""
        if self._interval:
            self._watched.add(pulse)
            if self._timer is None:
                self._arm()

    def forget(self, pulse: Pulse) -> None:
        """Drops a connection that has ended; without any, no timer is left."""
        self._watched.discard(pulse)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """One period has passed: cuts what stayed silent through it, and pings the rest."""
        for pulse in list(self._watched):
            if pulse.silent():
                self._watched.discard(pulse)
                pulse.cut()
            else:
                pulse.ping()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._fire)

    def _fire(self) -> None:
        self.beat()
        self._timer = None
        if self._watched:
            self._arm()
