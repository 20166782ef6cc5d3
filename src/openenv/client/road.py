"""One v2 connection, and the sessions of a vector's environments on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ..errors import InvalidAction, MessageTooLarge, OpenEnvError, ProtocolViolation, TooManyCalls
from ..protocol.client_v2 import error_of
from .link import Link
from .linked_session import GONE, new_session_id
from .loss import lost, told
from .seat import Seat
from .wave import Owner, Wave

__all__ = ["Road"]

_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class _Opening(NamedTuple):
    """Stands in a batch where the session of a seat is opened."""

    seat: Seat


_Owner = Seat | _Opening


class Road:
    """Carries calls in batches: one frame there, and one or several back.

    Args:
        link: The connection, greeted by the server.
        owner: Hears of the replies.
    """

    def __init__(self, link: Link, owner: Owner):
        self._link = link
        self._owner = owner
        self._seats: dict[str, Seat] = {}
        self._max_batch = link.limit("max_batch") or 1
        link.on_event = self._heard
        link.on_end = self._ended

    @property
    def usable(self) -> bool:
        """Whether sessions can be opened here."""
        return self._link.error is None and not self._link.draining

    @property
    def draining(self) -> bool:
        """Whether its server keeps the sessions here for a while and opens no more."""
        return self._link.error is None and self._link.draining

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        """Sends what seats were asked to do, who are here or have no session; one without gets one first."""
        calls: list[dict[str, Any]] = []
        owners: list[_Owner] = []
        for seat in seats:
            if seat.session is None:
                session = new_session_id()
                seat.settle_in(self, session)
                self._seats[session] = seat
                calls.append({"op": "open", "session": session})
                owners.append(_Opening(seat))
            seq = seat.seq = seat.seq + 1
            if seat.kind == "step":
                call = seat.step
                call["seq"] = seq
                call["action"] = seat.contents
            else:
                call = {"op": "reset", "session": seat.session, "seq": seq, "kwargs": seat.contents}
            calls.append(call)
            owners.append(seat)
        for begin in range(0, len(calls), self._max_batch):
            end = begin + self._max_batch
            self._send(calls[begin:end], owners[begin:end], wave)

    async def aclose(self) -> None:
        """Closes the connection, and with it the sessions on it."""
        await self._link.aclose()

    def _send(self, calls: list[dict[str, Any]], owners: list[_Owner], wave: Wave) -> None:
        fields: dict[str, Any] = {"calls": calls}
        if wave.first_finished:
            fields["min_ready"] = 1
        elif wave.wait_s is not None:
            fields["wait_s"] = wave.wait_s
        try:
            request = self._link.stream(
                "batch", fields, partial(self._received, owners, wave), partial(self._refused, owners, wave)
            )
        except (MessageTooLarge, ValueError) as error:
            if len(calls) == 1:
                self._refused(owners, wave, error if isinstance(error, OpenEnvError) else InvalidAction(str(error)))
                return
            # What can be sent is sent; in the end each one that cannot stands alone.
            half = len(calls) // 2
            self._send(calls[:half], owners[:half], wave)
            self._send(calls[half:], owners[half:], wave)
        except OpenEnvError as error:  # the link has ended
            for owner in owners:
                if isinstance(owner, Seat):
                    self._leave(owner)
                    self._owner.settle(owner, wave, lost(error))
        else:
            wave.withdrawals.append(partial(self._link.cancel, request))

    def _received(self, owners: list[_Owner], wave: Wave, payload: dict[str, Any]) -> None:
        """Takes one frame of replies."""
        settle = self._owner.settle
        try:
            for item in payload["results"]:
                owner = owners[item["call"]]
                if "error" in item:
                    self._failed(owner, wave, item)
                elif type(owner) is Seat:
                    settle(owner, wave, item)
        except _MALFORMED:
            self._link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        self._owner.flush()

    def _refused(self, owners: list[_Owner], wave: Wave, error: OpenEnvError) -> None:
        """A batch was not executed."""
        if self._link.error is not None:
            return  # it ended, which every seat is told in turn
        for owner in owners:
            if isinstance(owner, _Opening):
                self._leave(owner.seat)
            else:
                owner.seq -= 1
                self._owner.settle(owner, wave, error)
        self._owner.flush()

    def _failed(self, owner: _Owner, wave: Wave, item: dict[str, Any]) -> None:
        error = error_of(item["error"])
        seat = owner.seat if isinstance(owner, _Opening) else owner
        # An opening that failed answers the call that follows it, whose own answer comes too late.
        gone = isinstance(owner, _Opening)
        if isinstance(error, GONE):
            error, gone = lost(error), True
        elif isinstance(error, TooManyCalls) and not gone:
            seat.seq -= 1  # not counted
        if gone and item["session"] == seat.session:
            self._leave(seat)
        self._owner.settle(seat, wave, error)

    def _leave(self, seat: Seat) -> None:
        if seat.session is not None and self._seats.pop(seat.session, None) is seat:
            seat.vacate()

    def _heard(self, name: str, fields: dict[str, Any]) -> None:
        seat = self._seats.get(str(fields.get("session"))) if name == "session_lost" else None
        if seat is not None:
            self._leave(seat)
            self._owner.lose(seat, lost(told(fields)))
            self._owner.flush()

    def _ended(self, error: OpenEnvError) -> None:
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            seat.vacate()
            self._owner.lose(seat, lost(error))
        self._owner.flush()
