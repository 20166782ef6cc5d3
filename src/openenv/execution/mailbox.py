"""The way from any thread back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from . import pace
from .executor import Done

__all__ = ["Mailbox"]


class Mailbox:
    """Carries results from threads to one event loop, with one wake-up for all that wait together.

    Args:
        loop: Where results are delivered.

    Attributes:
        pace: To be told of every call that is given to a thread; it hears from here of each that has come back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.pace = pace.PROCESS
        self._loop = loop
        self._letters: deque[tuple[Done, Any, BaseException | None]] = deque()
        self._ringing = False

    def post(self, done: Done, result: Any, error: BaseException | None) -> None:
        """Has `done` called on the loop. Safe from every thread."""
        self._letters.append((done, result, error))
        if not self._ringing:
            self._ring()

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Delivers to another loop from here on, also what the old one was closed too early for."""
        self._loop = loop
        if self._letters:
            self._ring()

    def _ring(self) -> None:
        self._ringing = True
        # A closed loop hears nothing: what was posted waits for `move`.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Lowered first: a letter posted from here on either is seen below or rings again.
        self._ringing = False
        letters, taken = self._letters, 0
        try:
            while letters:
                done, result, error = letters.popleft()
                taken += 1
                done(result, error)
        finally:
            self.pace.end(taken)
            if letters:  # a reader raised: the others still get theirs
                self._ring()
