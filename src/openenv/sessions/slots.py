"""Room for sessions: how many may be open, counted for the whole server and not for one process of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["LocalSlots", "Slots"]


class Slots(Protocol):
    """The slots of a server, as one of its processes sees them. Called on that process's event loop.

    Attributes:
        limit: Most slots that are taken at one time, by all processes together.
        on_free: Called on the event loop when another process has given a slot back, while newcomers wait here.
    """

    limit: int
    on_free: Callable[[], None] | None

    @property
    def held(self) -> int:
        """Slots taken now, by all processes together."""

    @property
    def leaving(self) -> int:
        """Those of them whose sessions are closing, so that they are about to be free."""

    def take(self) -> bool:
        """Takes a slot; False if there is none."""

    def leave(self) -> None:
        """One of this process's slots is about to be given back."""

    def give(self) -> None:
        """Gives back a slot that was leaving."""

    def expect(self, waiting: int) -> None:
        """Tells how many newcomers wait for a slot in this process."""


class LocalSlots:
    """The slots of a server that is one process."""

    def __init__(self, limit: int):
        self.limit = limit
        self.on_free: Callable[[], None] | None = None
        self._held = 0
        self._leaving = 0

    @property
    def held(self) -> int:
        return self._held

    @property
    def leaving(self) -> int:
        return self._leaving

    def take(self) -> bool:
        if self._held >= self.limit:
            return False
        self._held += 1
        return True

    def leave(self) -> None:
        self._leaving += 1

    def give(self) -> None:
        self._leaving -= 1
        self._held -= 1

    def expect(self, waiting: int) -> None:
        """Nobody else gives slots back: there is nothing to be told."""
