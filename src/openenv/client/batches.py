"""Calls of many seats on one v2 connection: one frame there, and one or several back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..errors import InvalidAction, MessageTooLarge, OpenEnvError, ProtocolViolation
from ..protocol.client_v2 import Request2
from .deadline import deadline_of
from .link import Link
from .seat import Seat
from .wave import Wave

__all__ = ["Batches", "Entry", "Opening", "Recipient"]

# What the protocol allows.
MOST_WAIT_S = 86_400.0
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
Payload = dict[str, Any]


class Opening(NamedTuple):
    """Stands in a batch where the session of a seat is opened."""

    seat: Seat
    session: str


Entry = Seat | Opening | None
"""Whose a call of a batch is; None once it has its reply."""


class Recipient(Protocol):
    """Who hears what became of each call."""

    def answered(self, seat: Seat, wave: Wave, item: Payload) -> None:
        """The reply to a call of a seat, or its error."""

    def opened(self, opening: Opening) -> None:
        """There is a session."""

    def not_opened(self, opening: Opening, wave: Wave, item: Payload) -> None:
        """There is none, and why."""

    def refused(self, entries: Sequence[Entry], wave: Wave, error: OpenEnvError) -> None:
        """Calls that were not made."""

    def cancelled(self, opening: Opening) -> None:
        """Nobody wants the session any more."""

    def left_out(self, seat: Seat, wave: Wave, error: OpenEnvError) -> None:
        """A call that will never have a reply."""

    def flush(self) -> None:
        """That was all for now."""


class Batches:
    """Sends batches over a link, for as long as it lasts.

    Args:
        link: The connection, greeted by the server.
        recipient: Hears of the replies.
    """

    def __init__(self, link: Link, recipient: Recipient):
        self._link = link
        self._recipient = recipient
        self._max_batch = link.limit("max_batch") or 1
        self._opening = 0

    @property
    def room(self) -> int:
        """How many sessions more may be opened now: a connection may have as many at a time as calls in a batch."""
        return self._max_batch - self._opening

    def add_opening(self, seat: Seat, wait_s: float | None, calls: list[Payload], entries: list[Entry]) -> None:
        """Adds the call that opens the session of a seat."""
        assert seat.session is not None
        opening: Payload = {"op": "open", "session": seat.session, "token": seat.token}
        if wait_s is not None:
            opening["wait_s"] = wait_s
        self._opening += 1
        calls.append(opening)
        entries.append(Opening(seat, seat.session))

    def send(self, calls: list[Payload], entries: list[Entry], wave: Wave) -> None:
        """Sends calls, in as few frames as they fit in. When the link has ended, or ends, nothing is told of them."""
        for begin in range(0, len(calls), self._max_batch):
            end = begin + self._max_batch
            self._send(calls[begin:end], entries[begin:end], wave)

    def _send(self, calls: list[Payload], entries: list[Entry], wave: Wave) -> None:
        if self._link.error is not None:
            return
        hear = partial(self._received, entries, wave), partial(self._refused, entries, wave)
        try:
            request = self._link.stream("batch", {"calls": calls, **self._terms(wave)}, *hear)
        except (MessageTooLarge, ValueError) as error:
            if len(calls) == 1:
                failure = error if isinstance(error, OpenEnvError) else InvalidAction(str(error))
                self._refused(entries, wave, failure)
                return
            # What can be sent is sent; in the end each one that cannot stands alone.
            half = len(calls) // 2
            self._send(calls[:half], entries[:half], wave)
            self._send(calls[half:], entries[half:], wave)
        else:
            wave.withdrawals.append(partial(self._withdraw, request, entries))
            if wave.withdrawn:
                self._withdraw(request, entries)

    def _terms(self, wave: Wave) -> Payload:
        """What a batch says of all of its calls."""
        terms: Payload = {}
        now = self._link.loop.time()
        if wave.first_finished:
            terms["min_ready"] = 1
        elif wave.send_by is not None:
            terms["wait_s"] = min(MOST_WAIT_S, max(0.0, wave.send_by - now))
        if wave.due is not None:
            terms["deadline_s"] = deadline_of(wave.due, now)
        return terms

    def _withdraw(self, request: Request2, entries: list[Entry]) -> None:
        """Has the server stop the work of a batch. Its replies come all the same, and say what there is to close."""
        self._link.post("cancel", {"target": request.id})
        for entry in entries:
            if isinstance(entry, Opening):
                self._recipient.cancelled(entry)

    def _received(self, entries: list[Entry], wave: Wave, payload: Payload, more: bool) -> None:
        """Takes one frame of replies."""
        answered = self._recipient.answered
        try:
            for item in payload["results"]:
                place = item["call"]
                entry = entries[place]
                if entry is None or place < 0:
                    raise IndexError(place)
                entries[place] = None
                if type(entry) is Seat:
                    answered(entry, wave, item)
                else:
                    self._told_of(entry, wave, item)
        except _MALFORMED:
            self._link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        if not more:
            self._close(entries, wave)
        self._recipient.flush()

    def _told_of(self, opening: Opening, wave: Wave, item: Payload) -> None:
        self._opening -= 1
        if "error" in item:
            self._recipient.not_opened(opening, wave, item)
        else:
            self._recipient.opened(opening)

    def _close(self, entries: list[Entry], wave: Wave) -> None:
        """The last reply to a batch was taken: there must be no call without one."""
        count = len(entries) - entries.count(None)
        if not count or self._link.error is not None:
            return
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(entries)} calls of a batch; nobody knows "
            "whether they were executed: reset() begins anew"
        )
        for entry in entries:
            if isinstance(entry, Seat):
                self._recipient.left_out(entry, wave, violation)
        self._link.end(violation)

    def _refused(self, entries: list[Entry], wave: Wave, error: OpenEnvError) -> None:
        if self._link.error is not None:
            return  # it ended, and what becomes of its calls is decided then
        self._opening -= sum(isinstance(entry, Opening) for entry in entries)
        self._recipient.refused(entries, wave, error)
        self._recipient.flush()
