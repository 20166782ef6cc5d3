"""How much work a worker has, as it tells its parent."""

from __future__ import annotations

from .table import DRIFT, Row

__all__ = ["Load"]


class Load:
    """A worker's side of its load: the sessions it has, and the connections that may become one.

    The parent counts every connection that it hands over as a load of one. Here is counted only what differs
    from that later on, so a connection that becomes a session changes nothing, and at no moment is it counted
    twice or not at all.
    """

    __slots__ = ("_promised", "_row")

    def __init__(self, row: Row):
        self._row = row
        self._promised = False

    def begin(self) -> None:
        """A connection asks to speak WebSocket; what it opens before `end` takes over its load."""
        self._promised = True

    def end(self) -> None:
        """It was answered. If it opened nothing, it weighs nothing from here on."""
        if self._promised:
            self._promised = False
            self._row.add(DRIFT, -1)

    def opened(self) -> None:
        """A session was opened."""
        if self._promised:
            self._promised = False
        else:
            self._row.add(DRIFT, 1)

    def closed(self) -> None:
        """A session is gone, or a connection that never asked for one."""
        self._row.add(DRIFT, -1)
