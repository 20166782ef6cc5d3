"""A limit on how many do something at one time; further ones wait, first come first served."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Gate", "Start"]

Start = Callable[[], None]
"""Begins what was waited for. It is told apart from others by `==`: one object for one who enters."""


class Gate:
    """Lets a number of calls, or of constructors, go on at one time. Used on one event loop; knows none.

    Every `start` that was called is followed by exactly one `leave`, when its work has ended *or is given up*: work
    that cannot be stopped gives its place back when nobody waits for it any more, or a few calls that hang would
    keep all others out. A `start` that raises must have seen to its own `leave`.

    Args:
        most: How many are inside at one time.

    Attributes:
        inside: How many are.
    """

    def __init__(self, most: int):
        self.most = most
        self.inside = 0
        self._waiting: dict[Start, None] = {}
        self._opening = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def enter(self, start: Start) -> None:
        """Calls `start`, now or when those before it have been let in and there is room."""
        if self.inside < self.most and not self._waiting:
            self.inside += 1
            start()
        else:
            self._waiting[start] = None
            self._open()

    def withdraw(self, start: Start) -> bool:
        """Gives up waiting. True: `start` will not be called, and no `leave` follows. False: it does not wait."""
        return self._waiting.pop(start, self) is None

    def leave(self) -> None:
        """One who was inside has ended; the next one may start before this returns."""
        self.inside -= 1
        self._open()

    def _open(self) -> None:
        # A loop and not a recursion: what is started may have ended before `start` returns.
        if self._opening:
            return
        self._opening = True
        try:
            while self._waiting and self.inside < self.most:
                start = next(iter(self._waiting))
                del self._waiting[start]
                self.inside += 1
                start()
        finally:
            self._opening = False
