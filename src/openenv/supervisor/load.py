"""How much work a worker has, as it tells its parent."""

from __future__ import annotations

from collections import deque

from .table import DECIDED, DRIFT, Row

__all__ = ["Load"]


class Load:
    """A worker's side of its load: the sessions it has, and the connections that may become one.

    The parent counts every connection that it hands over as a load of one. Here is counted only what differs
    from that later on, so a connection that becomes a session changes nothing, and at no moment is it counted
    twice or not at all.

    The parent also reads how many connections are decided: it is known whether they want a session now. A
    connection of protocol v1 and one that only speaks HTTP are decided at once. One of protocol v2 opens its session
    a moment later.
    """

    __slots__ = ("_asked", "_begun", "_count", "_promised", "_row", "_undecided")

    def __init__(self, row: Row):
        self._row = row
        self._promised = self._asked = self._begun = False
        self._count = 0
        self._undecided: deque[int] = deque()

    def begin(self) -> None:
        """A connection asks to speak WebSocket; what it opens before `end` takes over its load."""
        self._promised = self._begun = True
        self._asked = False

    def end(self, gone: bool = False) -> int | None:
        """It was answered. If it opened nothing, it weighs nothing from here on.

        Args:
            gone: The connection was closed or handed on.

        Returns:
            A number to call `give_up` with, if the connection has not asked for a session yet; else None.
        """
        if self._promised:
            self._promised = False
            self._row.add(DRIFT, -1)
        self._begun = False
        if self._asked or gone:
            self.note_decision()
            return None
        self._count += 1
        self._undecided.append(self._count)
        return self._count

    def give_up(self, number: int) -> None:
        """No session was asked for over a connection for a while."""
        if self._undecided and self._undecided[0] <= number:  # those in front of it are older
            self._undecided.popleft()
            self.note_decision()

    def note_request(self) -> None:
        """A session was asked for, and has a slot, waits for one, or was refused."""
        if self._begun:
            self._asked = True
        elif self._undecided:
            self._undecided.popleft()
            self.note_decision()

    def note_decision(self) -> None:
        """It is known what a connection wants."""
        self._row.add(DECIDED, 1)

    def opened(self) -> None:
        """A session was opened."""
        if self._promised:
            self._promised = False
        else:
            self._row.add(DRIFT, 1)

    def closed(self) -> None:
        """A session is gone, or a connection that never asked for one."""
        self._row.add(DRIFT, -1)
