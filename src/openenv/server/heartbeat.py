"""Finds connections whose other end is gone without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["Heartbeat", "Pulse", "Words"]

# A client of v2 says something in every period of `heartbeat_s`. Looked at four times in each, one that is silent for
# two of them is found before they are over.
LOOKS = 4
PATIENCE = 2 * LOOKS - 1


class Pulse(Protocol):
    """A connection under watch."""

    def silent(self) -> bool:
        """Whether its other end gave no sign of life since the last time this was asked."""

    def ping(self) -> None:
        """Asks the other end for a sign of life."""

    def cut(self) -> None:
        """Ends the connection: nothing was heard for too long."""


class Words:
    """The pulse of a connection whose client speaks by itself.

    Args:
        silent: Whether it said nothing since the last time this was asked.
        cut: Ends the connection.
    """

    __slots__ = ("cut", "silent")

    def __init__(self, silent: Callable[[], bool], cut: Callable[[], None]):
        self.silent = silent
        self.cut = cut

    def ping(self) -> None:
        """Asks nothing: it knows that it has to speak."""


class Heartbeat:
    """One timer for all connections of a server: a silent one is cut.

    Args:
        interval_s: The time between beats; None or 0 watches nothing.
        patience: Beats in a row at which a connection may be found silent before it is cut.
    """

    def __init__(self, interval_s: float | None, patience: int = 1):
        self._interval = interval_s or 0.0
        self._patience = patience
        self._watched: dict[Pulse, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of_words(cls, period_s: float) -> Heartbeat:
        """For clients that say something in every period: cuts those that are silent for two; 0 watches nothing."""
        return cls(period_s / LOOKS, PATIENCE)

    @property
    def ticking(self) -> bool:
        """Whether a timer is set: only while there is somebody to watch."""
        return self._timer is not None

    @property
    def watches(self) -> bool:
        """Whether it is on."""
        return self._interval > 0

    def watch(self, pulse: Pulse) -> None:
        """Adds a connection. Runs on the event loop."""
        if self._interval:
            self._watched[pulse] = 0
            if self._timer is None:
                self._arm()

    def forget(self, pulse: Pulse) -> None:
        """Drops a connection that has ended; without any, no timer is left."""
        self._watched.pop(pulse, None)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """One interval has passed: cuts what stayed silent for too long, and pings the rest."""
        for pulse, silences in list(self._watched.items()):
            if pulse not in self._watched:  # ended together with one that was cut
                continue
            in_a_row = silences + 1 if pulse.silent() else 0
            if in_a_row >= self._patience:
                del self._watched[pulse]
                pulse.cut()
            else:
                self._watched[pulse] = in_a_row
                pulse.ping()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._fire)

    def _fire(self) -> None:
        self.beat()
        self._timer = None
        if self._watched:
            self._arm()
