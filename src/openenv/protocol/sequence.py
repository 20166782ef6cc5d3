"""Numbered calls of one session: each number executes once, and a repeated number gets the reply of the first.

No I/O: a `Sequence` keeps the numbers and the last reply, and a `NumberedCall` the requests that wait for its reply.
The session that owns them executes the calls and sends the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from msgspec import Struct

from .codecs import Body

Asker = tuple[int, int | None]
"""A request that waits for a reply: its id, and in a batch the index of the call."""


def name_of(asker: Asker | None) -> str | None:
    """The name of a request's call in logs and traces: the id, and in a batch the index of the call."""
    if asker is None:
        return None
    number, place = asker
    return str(number) if place is None else f"{number}.{place}"


class NumberedCall(Struct, eq=False):
    """One call, from its request to its end.

    Args:
        message: The request message.
        seq: Its number; 0 for a call that is not counted.
        asker: The first request for it; None if no request waits for the reply.
        due: When it must be answered, in monotonic seconds; None for never.

    Attributes:
        others: Requests that repeated the call before its end.
        early_reply: The reply that was given before its end: the call was cancelled, or its deadline passed.
    """

    message: Any
    seq: int
    asker: Asker | None
    due: float | None = None
    others: tuple[Asker, ...] = ()
    early_reply: Body | None = None

    def join(self, asker: Asker) -> None:
        """Adds a request that waits for the reply."""
        self.others = (*self.others, asker)

    def take_askers(self) -> tuple[Asker, ...]:
        """Removes and returns the requests that wait for the reply."""
        askers = self.others if self.asker is None else (self.asker, *self.others)
        self.asker, self.others = None, ()
        return askers

    def waits_for(self, request: int) -> bool:
        """Whether a request waits for the reply, at any index of a batch."""
        return any(asker[0] == request for asker in self.others) or (
            self.asker is not None and self.asker[0] == request
        )


class Sequence:
    """The numbers of a session's calls, which its client counts from 1. The session advances them.

    An accepted call stays counted, even if its action is invalid or it is cancelled before its turn.

    Attributes:
        accepted: Number of the last call that was accepted. The next call has the number after it.
        completed: Number of the last call that was answered.
        last: The reply to that call.
    """

    __slots__ = ("accepted", "completed", "last")

    def __init__(self) -> None:
        self.accepted = self.completed = 0
        self.last: Body | None = None

    def find(self, seq: int, open_calls: Iterable[NumberedCall]) -> Body | NumberedCall | None:
        """Finds the answer for a number that is not the next one.

        Args:
            seq: The number.
            open_calls: The calls that have not ended.

        Returns:
            The stored reply of that number, or the open call of that number, or None if the number is neither the
            last one nor open.
        """
        if seq == self.completed:
            return self.last
        if self.completed < seq <= self.accepted:
            return next(call for call in open_calls if call.seq == seq)
        return None

    def rewrite(self, write: Callable[[Body], Body], open_calls: Iterable[NumberedCall]) -> None:
        """Encodes the stored replies again, for a client that uses another codec."""
        if self.last is not None:
            self.last = write(self.last)
        for call in open_calls:
            if call.early_reply is not None:
                call.early_reply = write(call.early_reply)

    def rewind(self, running: NumberedCall | None, waiting: Iterable[NumberedCall]) -> list[NumberedCall]:
        """Takes back the numbers of the calls that wait, as if they had not been accepted.

        A call that was answered before its turn has used its number, unless one before it is taken back.

        Args:
            running: The call that executes.
            waiting: The calls behind it, in order.

        Returns:
            The calls that have used their numbers and so stay open.
        """
        used = takewhile(lambda call: call.early_reply is not None or not call.seq, waiting)
        left = [call for call in used if call.seq]
        last = left[-1] if left else running
        self.accepted = (0 if last is None else last.seq) or self.completed
        return left
