"""One call of a session: who waits for its reply."""

from __future__ import annotations

from typing import Protocol

from ..protocol.codec import Body
from ..protocol.messages import Fork, Mcp, Reset, Restore, State, Step, Tasks
from .loan import Loan

__all__ = ["NOBODY", "Asker", "Call", "Request", "request_of"]

Request = Reset | Step | State | Fork | Restore | Tasks | Mcp
"""What is asked of one session."""


class Asker(Protocol):
    """Where replies go: a connection, or a batch on it.

    Attributes:
        due: When what it asks for must be answered, in monotonic seconds, if a call does not say; None for never.
    """

    due: float | None

    @property
    def id(self) -> int | None:
        """Id of the request, where the calls in it have none of their own."""

    def answer(self, key: int, session: str | None, body: Body) -> None:
        """Takes the reply to what was asked under `key`: the id of a request, or the place in a batch."""


class _Nobody:
    """Hears the replies to calls whose asker has had an answer."""

    __slots__ = ()
    due: float | None = None
    id: int | None = None

    def answer(self, key: int, session: str | None, body: Body) -> None:
        pass


NOBODY: Asker = _Nobody()


def request_of(asker: Asker, key: int) -> str:
    """What a call is named by in logs and traces: the id of its request, with its place where that is a batch."""
    return str(key) if asker.id is None else f"{asker.id}.{key}"


class Call:
    """One call that is running or waits for its turn.

    Args:
        message: What to do; None: the opening, behind which calls wait as behind any other; a `Loan`: to have its
            state copied for another session.
        seq: Its number in the session; 0 for one that is not counted.
        asker: Who asked first, under `key`.

    Attributes:
        others: Who asked for the same call again.
        due: When it must be answered, in monotonic seconds; None for never.
        fate: The reply that was given before the call has ended: it was cancelled, or its time was over.
    """

    __slots__ = ("asker", "due", "fate", "key", "message", "others", "seq")

    def __init__(self, message: Request | Loan | None, seq: int, asker: Asker, key: int):
        self.message = message
        self.seq = seq
        self.asker = asker
        self.key = key
        self.others: list[tuple[Asker, int]] = _NONE
        self.due: float | None = None
        self.fate: Body | None = None

    def join(self, asker: Asker, key: int) -> None:
        """One more waits for the reply."""
        self.others = [*self.others, (asker, key)]

    def answer(self, session: str, body: Body) -> None:
        """Gives everybody the reply; nobody waits from then on."""
        asker, self.asker = self.asker, NOBODY
        asker.answer(self.key, session, body)
        if self.others:
            others, self.others = self.others, _NONE
            for other, key in others:
                other.answer(key, session, body)

    def desert(self) -> None:
        """The connection of all who wait is gone."""
        self.asker, self.others = NOBODY, _NONE

    def concerns(self, asker: Asker, key: int | None) -> bool:
        """Whether an asker waits for it, under a certain key or any."""
        waiting = ((self.asker, self.key), *self.others)
        return any(who is asker and key in (None, what) for who, what in waiting)


# Shared, never changed: a list for each call would be a good part of its cost.
_NONE: list[tuple[Asker, int]] = []
