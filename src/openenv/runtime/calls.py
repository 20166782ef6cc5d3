"""The queue of calls of one session: one executes at a time, and the others wait in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass(slots=True, eq=False, repr=False)
class CallQueue(Generic[C]):
    """Gives a session one call at a time. The base class of users of a session.

    A subclass begins a call in `_begin`, and calls `_end` when the call has ended. If a call ends before `_begin`
    returns, the next one begins in the loop of `_advance` and not deeper in the stack.

    Attributes:
        running: The call that executes; None if no call does. A subclass may begin with one, usually the opening of
            the session, for which later calls wait.
    """

    running: C | None = field(default=None, init=False)
    _waiting: deque[C] | tuple[()] = field(default=(), init=False)  # made when needed: an empty deque has 600 bytes
    _advancing: bool = field(default=False, init=False)

    def _begin(self, call: C) -> None:
        """Begins the call, which is now `running`."""
        raise NotImplementedError

    def _end(self) -> None:
        """Ends the running call and begins the next one."""
        self.running = None
        if self._waiting:
            self._advance()

    def _wait(self, call: C, first: bool = False) -> None:
        """Adds a call to the queue. It begins at once if no call executes.

        Args:
            call: The call.
            first: Puts it before all waiting calls.
        """
        if not isinstance(self._waiting, deque):
            self._waiting = deque()
        if first:
            self._waiting.appendleft(call)
        else:
            self._waiting.append(call)
        if self.running is None:
            self._advance()

    def _remove(self, call: C) -> bool:
        """Takes a call out of the queue. False: it does not wait."""
        if isinstance(self._waiting, deque) and call in self._waiting:
            self._waiting.remove(call)
            return True
        return False

    def _unfinished(self) -> list[C]:
        """The running call and the waiting calls."""
        return [*self._waiting] if self.running is None else [self.running, *self._waiting]

    def _advance(self) -> None:
        """Begins waiting calls until one of them does not end at once."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._waiting and self.running is None:
                call = self.running = self._waiting.popleft()
                self._begin(call)
        finally:
            self._advancing = False
        if not self._waiting:
            self._waiting = ()
