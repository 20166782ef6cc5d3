"""Newcomers that wait for a slot, in the order in which they came."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Iterator
from typing import NamedTuple

from .session import Session

__all__ = ["Newcomer", "Queue"]


class Newcomer(NamedTuple):
    """One that waits.

    Attributes:
        session: What it asked for.
        since_ns: When it came; monotonic nanoseconds, which all processes of a machine share.
        timer: Ends its waiting.
    """

    session: Session
    since_ns: int
    timer: TimerHandle


class Queue:
    """One line for each API key; whoever came first of all lines is next.

    A line whose key has as many sessions as it may steps aside: it waits for sessions of its own, and keeps nobody
    else from a slot. It is in the order again when it is called back.
    """

    def __init__(self) -> None:
        self._lines: dict[int, dict[str, Newcomer]] = {}
        self._aside: set[int] = set()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Session]:
        for line in self._lines.values():
            for newcomer in line.values():
                yield newcomer.session

    @property
    def aside(self) -> int:
        """How many stand aside."""
        return sum(len(self._lines[holder]) for holder in self._aside)

    @property
    def first(self) -> Newcomer | None:
        """Who is next."""
        heads = [
            next(iter(line.values())) for holder, line in self._lines.items() if line and holder not in self._aside
        ]
        return min(heads, key=lambda newcomer: newcomer.since_ns, default=None)

    def find(self, session_id: str) -> Session | None:
        for line in self._lines.values():
            if session_id in line:
                return line[session_id].session
        return None

    def has_line(self, holder: int) -> bool:
        """Whether anybody of that key waits."""
        return holder in self._lines

    def is_aside(self, holder: int) -> bool:
        """Whether they wait for sessions of their own key to end."""
        return holder in self._aside

    def add(self, newcomer: Newcomer) -> None:
        session = newcomer.session
        self._lines.setdefault(session.holder, {})[session.id] = newcomer
        self._length += 1

    def remove(self, session: Session) -> bool:
        """Takes one out, wherever it stands. False: it does not wait."""
        line = self._lines.get(session.holder)
        newcomer = None if line is None else line.get(session.id)
        if line is None or newcomer is None or newcomer.session is not session:
            return False
        newcomer.timer.cancel()
        del line[session.id]
        self._length -= 1
        if not line:
            del self._lines[session.holder]
            self._aside.discard(session.holder)
        return True

    def step_aside(self, holder: int) -> None:
        """A key has as many sessions as it may."""
        self._aside.add(holder)

    def call_back(self) -> None:
        """Whoever stood aside is in the order again."""
        self._aside.clear()
