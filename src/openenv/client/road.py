"""One v2 connection, and the sessions of a vector's environments on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ..errors import InvalidAction, MessageTooLarge, OpenEnvError, ProtocolViolation, TooManyCalls
from ..protocol.client_v2 import Request2, error_of
from .link import Link
from .linked_session import GONE, new_session_id
from .loss import lost, told
from .seat import Seat
from .wave import Owner, Wave

__all__ = ["Road"]

# What the protocol allows.
MOST_WAIT_S = 86_400.0
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class _Opening(NamedTuple):
    """Stands in a batch where the session of a seat is opened."""

    seat: Seat
    session: str


# Whose a call of a batch is; None once it has its reply.
_Owner = Seat | _Opening | None


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
        # A connection may have so many sessions opened at a time as calls in a batch; others wait for their turn.
        self._opening = 0
        self._waiting: deque[tuple[Seat, Wave]] = deque()
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
                if self._opening >= self._max_batch:
                    self._waiting.append((seat, wave))
                    continue
                session = self._settle_in(seat)
                calls.append({"op": "open", "session": session})
                owners.append(_Opening(seat, session))
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
        """Ends the sessions here, and the connection."""
        await self._link.aclose(list(self._seats))

    def _settle_in(self, seat: Seat) -> str:
        """Gives a seat a session that is about to be opened."""
        session = new_session_id()
        seat.settle_in(self, session)
        self._seats[session] = seat
        self._opening += 1
        return session

    def _send(self, calls: list[dict[str, Any]], owners: list[_Owner], wave: Wave) -> None:
        fields: dict[str, Any] = {"calls": calls}
        if wave.first_finished:
            fields["min_ready"] = 1
        elif wave.send_by is not None:
            fields["wait_s"] = min(MOST_WAIT_S, max(0.0, wave.send_by - self._link.loop.time()))
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
            wave.withdrawals.append(partial(self._withdraw, request, owners))

    def _withdraw(self, request: Request2, owners: list[_Owner]) -> None:
        """Has the server stop the work of a batch. Its replies come all the same, and say what there is to close."""
        self._link.post("cancel", {"target": request.id})
        for owner in owners:
            if isinstance(owner, _Opening) and owner.seat.session == owner.session:
                self._leave(owner.seat)

    def _received(self, owners: list[_Owner], wave: Wave, payload: dict[str, Any], more: bool) -> None:
        """Takes one frame of replies."""
        settle = self._owner.settle
        try:
            for item in payload["results"]:
                place = item["call"]
                owner = owners[place]
                if owner is None or place < 0:
                    raise IndexError(place)
                owners[place] = None
                if "error" in item:
                    self._failed(owner, wave, item)
                elif type(owner) is Seat:
                    settle(owner, wave, item)
                else:
                    self._opened(owner)
        except _MALFORMED:
            self._link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        if not more:
            self._left_out(owners, wave)
        self._admit()
        self._owner.flush()

    def _left_out(self, owners: list[_Owner], wave: Wave) -> None:
        """The last reply to a batch was taken: there must be no call without one."""
        count = len(owners) - owners.count(None)
        if not count or self._link.error is not None:
            return
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(owners)} calls of a batch; nobody knows whether "
            "they were executed: reset() begins anew"
        )
        for owner in owners:
            if isinstance(owner, Seat):
                self._owner.settle(owner, wave, violation)
        self._link.end(violation)

    def _opened(self, opening: _Opening) -> None:
        self._opening -= 1
        if self._seats.get(opening.session) is not opening.seat:  # withdrawn meanwhile
            self._link.post("close", {"session": opening.session})

    def _admit(self) -> None:
        """Goes on with seats that had to wait until others were opened."""
        while self._waiting and self._opening < self._max_batch:
            wave = self._waiting[0][1]
            seats: list[Seat] = []
            while self._waiting and self._waiting[0][1] is wave and len(seats) < self._max_batch - self._opening:
                seat, _ = self._waiting.popleft()
                if seat.pending is wave:  # else it has given up
                    seats.append(seat)
            self.carry(seats, wave)

    def _refused(self, owners: list[_Owner], wave: Wave, error: OpenEnvError) -> None:
        """A batch was not executed."""
        if self._link.error is not None:
            return  # it ended, which every seat is told in turn
        for owner in owners:
            if isinstance(owner, _Opening):
                self._opening -= 1
                self._leave(owner.seat)
            elif owner is not None:
                owner.seq -= 1
                self._owner.settle(owner, wave, error)
        self._admit()
        self._owner.flush()

    def _failed(self, owner: Seat | _Opening, wave: Wave, item: dict[str, Any]) -> None:
        error = error_of(item["error"])
        # An opening that failed answers the call that follows it, whose own answer comes too late.
        gone = isinstance(owner, _Opening)
        if isinstance(owner, _Opening):
            self._opening -= 1
            seat = owner.seat
        else:
            seat = owner
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
        session = str(fields.get("session"))
        seat = self._seats.pop(session, None) if name == "session_lost" else None
        if seat is not None and seat.session == session:
            seat.vacate()
            self._owner.lose(seat, lost(told(fields)))
            self._owner.flush()

    def _ended(self, error: OpenEnvError) -> None:
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            if seat.road is self:  # else its vector has left this connection
                seat.vacate()
                self._owner.lose(seat, lost(error))
        waiting, self._waiting = self._waiting, deque()
        for seat, wave in waiting:
            self._owner.settle(seat, wave, lost(error))
        self._owner.flush()
