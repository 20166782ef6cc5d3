"""Room for sessions: how many may be open, counted for the whole server and not for one process of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol

__all__ = ["LocalSlots", "Room", "Slots"]


class Room(Enum):
    """What became of the wish for a slot."""

    TAKEN = "taken"
    NONE = "none"
    """No slot is free, or somebody who came earlier waits for it."""
    NONE_FOR_KEY = "none for key"
    """The newcomer's API key has as many sessions as it may."""


class Slots(Protocol):
    """The slots of a server, as one of its processes sees them. Called on that process's event loop.

    Newcomers get slots in the order in which they came, whichever process they came to: a free slot is only for
    the one that waits longest. A process sees itself to the order of those that wait in it, and is woken when another
    one has given back what its first may have, or has left it the first place.

    Attributes:
        limit: Most slots that are taken at one time, by all processes together.
        per_key: The same for those of one API key; None: no such limit.
        on_free: Called on the event loop when there may be a slot for newcomers that wait in this process, because of
            something that another one did.
    """

    limit: int
    per_key: int | None
    on_free: Callable[[], None] | None

    @property
    def held(self) -> int:
        """Slots taken now, by all processes together."""

    @property
    def leaving(self) -> int:
        """Those of them whose sessions are closing, so that they are about to be free."""

    @property
    def waiting(self) -> int:
        """Newcomers that wait for a slot in all processes, without those that stand aside."""

    @property
    def stuck(self) -> int:
        """Slots, of all processes, whose sessions have ended and whose calls do not return: nobody can have them."""

    def add_stuck(self, change: int) -> None:
        """So many more slots of this process are stuck, or fewer."""

    def note_request(self) -> None:
        """A session was asked for, and has a slot, waits for one, or was refused. Called once for each."""

    def take(self, since_ns: int, holder: int = 0) -> Room:
        """Takes a slot for a newcomer.

        Args:
            since_ns: When it came (monotonic nanoseconds).
            holder: Its API key, counted from 1; 0: it has none, and no limit but the server's.
        """

    def leave(self) -> None:
        """One of this process's slots is about to be given back."""

    def give(self, holder: int = 0) -> None:
        """Gives back a slot that was leaving, and that this key had taken."""

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        """Tells who waits for a slot in this process.

        Args:
            waiting: How many.
            since_ns: When the first of them came.
            aside: How many more wait until their key may have another session.

        Returns:
            Whether a slot is free for the first of them: nobody else is going to say so.
        """


class LocalSlots:
    """The slots of a server that is one process."""

    def __init__(self, limit: int, per_key: int | None = None):
        self.limit = limit
        self.per_key = per_key
        self.on_free: Callable[[], None] | None = None
        self.waiting = 0
        self.stuck = 0
        self._held = 0
        self._leaving = 0
        self._held_by: Counter[int] = Counter()

    @property
    def held(self) -> int:
        return self._held

    @property
    def leaving(self) -> int:
        return self._leaving

    def add_stuck(self, change: int) -> None:
        self.stuck += change

    def note_request(self) -> None:
        """No other process wants to know."""

    def take(self, since_ns: int, holder: int = 0) -> Room:
        if self._held >= self.limit:
            return _NONE
        if self.per_key is not None and holder:
            if self._held_by[holder] >= self.per_key:
                return _NONE_FOR_KEY
            self._held_by[holder] += 1
        self._held += 1
        return _TAKEN

    def leave(self) -> None:
        self._leaving += 1

    def give(self, holder: int = 0) -> None:
        self._leaving -= 1
        self._held -= 1
        if self.per_key is not None and holder:
            self._held_by[holder] -= 1

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        self.waiting = waiting
        return waiting > 0 and self._held < self.limit


# Looking a member up on its Enum class costs more than the rest.
_TAKEN, _NONE, _NONE_FOR_KEY = Room.TAKEN, Room.NONE, Room.NONE_FOR_KEY
