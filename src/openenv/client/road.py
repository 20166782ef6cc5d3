"""One v2 connection, and the next one when it is lost, with the sessions of a vector's environments on it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..errors import ConnectionLost, OpenEnvError, SessionLost, TooManyCalls, UnknownSession
from ..protocol.client_v2 import error_of
from .batches import Batches, Entry, Opening
from .link import Link
from .linked_session import GONE, new_secret
from .loss import forgotten, lost, told
from .resumption import Resumption, Verdict
from .seat import Seat
from .wave import Owner, Wave

__all__ = ["Road"]

Payload = dict[str, Any]


class Road:
    """Carries the calls of seats (`batches.Recipient`).

    Each seat has one call at a time without a reply. When the connection is lost, its sessions come back on another
    one, and what had no reply is sent again under its number.

    Args:
        link: The connection, greeted by the server.
        owner: Hears of the replies.
        resumption: How the connection is made again.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.

    Attributes:
        error: Why it has ended for good; None while it lasts.
        link: The connection there is, or was last.
    """

    def __init__(self, link: Link, owner: Owner, resumption: Resumption, wait_s: float | None = None):
        self.error: OpenEnvError | None = None
        self._owner = owner
        self._resumption = resumption
        self._wait_s = wait_s
        self._seats: dict[str, Seat] = {}
        # Sessions that nobody wants any more and that could not be told to end, with their tokens.
        self._forsaken: dict[str, str] = {}
        self._held: list[Seat] = []  # seats that may go on with what they were asked for meanwhile
        self._waiting: deque[tuple[Seat, Wave]] = deque()  # seats that wait for room to be opened
        self._closing = False
        self._returning: asyncio.Task[None] | None = None
        self._take_link(link)

    @property
    def usable(self) -> bool:
        """Whether sessions can be opened here."""
        return self.link.error is None and not self.link.draining

    @property
    def leaving(self) -> bool:
        """Whether its server ends the sessions here soon."""
        return self.link.error is None and self.link.draining

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        """Sends what seats were asked to do, who are here or have no session; one without gets one first."""
        calls: list[Payload] = []
        entries: list[Entry] = []
        batches, away = self._batches, self.link.error is not None
        for seat in seats:
            if seat.session is None:
                if batches.room <= 0:
                    self._waiting.append((seat, wave))
                    continue
                seat.settle_in(self, new_secret(), new_secret())
                self._seats[str(seat.session)] = seat
                batches.add_opening(seat, self._wait_s, calls, entries)
            elif away or seat.call is not None:
                seat.held = wave
                continue
            seq = seat.seq = seat.seq + 1
            if seat.kind == "step":
                call = seat.step
                call["seq"] = seq
                call["action"] = seat.contents
            else:
                call = {"op": "reset", "session": seat.session, "seq": seq, "kwargs": seat.contents}
            seat.call = call
            seat.wave = wave
            calls.append(call)
            entries.append(seat)
        batches.send(calls, entries, wave)
        if self.error is not None:  # the link has ended meanwhile, for good, when some of them were not here yet
            self._tell_end([seat for seat in seats if seat.road is self], self.error)

    def dismiss(self, seat: Seat) -> None:
        """Ends the session of a seat, which is to have one elsewhere."""
        self.link.post("close", {"session": seat.session})
        self._leave(seat)

    async def aclose(self) -> None:
        """Ends the sessions here, and the connection."""
        self._closing = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        await self.link.aclose([*self._seats, *self._forsaken])
        self._finish(ConnectionLost("this client was closed"))

    # What batches tell.

    def answered(self, seat: Seat, wave: Wave, item: Payload) -> None:
        if item["session"] == seat.session:  # else the seat has another one by now
            seat.call = seat.wave = None
            if seat.held is not None:
                self._held.append(seat)
        if "error" in item:
            self._failed(seat, wave, item)
        else:
            self._owner.settle(seat, wave, item)

    def opened(self, opening: Opening) -> None:
        if self._seats.get(opening.session) is opening.seat:
            opening.seat.opened = True
        else:  # nobody wants it any more
            self.link.post("close", {"session": opening.session})

    def not_opened(self, opening: Opening, wave: Wave, item: Payload) -> None:
        # It answers the call that follows it, whose own answer comes too late.
        self._failed(opening.seat, wave, item, gone=True)

    def refused(self, entries: Sequence[Entry], wave: Wave, error: OpenEnvError) -> None:
        for entry in entries:
            if isinstance(entry, Opening):
                self._leave(entry.seat)
            elif entry is not None:
                entry.seq -= 1
                entry.call = entry.wave = None
                self._owner.settle(entry, wave, error)

    def cancelled(self, opening: Opening) -> None:
        if opening.seat.session != opening.session:
            return
        if self.link.error is not None:
            self._forsaken[opening.session] = opening.seat.token
        elif opening.seat.opened:
            self.link.post("close", {"session": opening.session})
        self._leave(opening.seat)

    def left_out(self, seat: Seat, wave: Wave, error: OpenEnvError) -> None:
        self._owner.settle(seat, wave, error)

    def flush(self) -> None:
        """Sends what had to wait for replies, and lets the owner go on."""
        if self._held:
            held, self._held = self._held, []
            self._carry_held(held)
        if self._waiting:
            self._admit()
        self._owner.flush()

    def _carry_held(self, held: list[Seat]) -> None:
        shares: dict[Wave, list[Seat]] = {}
        for seat in held:
            wave = seat.held
            if seat.road is self and wave is not None and seat.call is None and self.link.error is None:
                seat.held = None
                if seat.pending is wave:  # else it has given up
                    shares.setdefault(wave, []).append(seat)
        for wave, seats in shares.items():
            self.carry(seats, wave)

    def _admit(self) -> None:
        """Goes on with seats that had to wait until others were opened."""
        while self._waiting and self._batches.room > 0 and self.link.error is None:
            wave = self._waiting[0][1]
            seats: list[Seat] = []
            while self._waiting and self._waiting[0][1] is wave and len(seats) < self._batches.room:
                seat, _ = self._waiting.popleft()
                if seat.pending is wave:  # else it has given up
                    seats.append(seat)
            self.carry(seats, wave)

    def _failed(self, seat: Seat, wave: Wave, item: Payload, gone: bool = False) -> None:
        """A call has failed; `gone`: and so has the session."""
        error = error_of(item["error"])
        if isinstance(error, GONE):
            error, gone = lost(error), True
        elif isinstance(error, TooManyCalls) and not gone:
            seat.seq -= 1  # not counted
        held = seat.held
        if gone and item["session"] == seat.session:
            self._leave(seat)
            if held is not None:
                self._owner.settle(seat, held, error)
        self._owner.settle(seat, wave, error)

    def _leave(self, seat: Seat) -> None:
        if seat.session is not None and self._seats.pop(seat.session, None) is seat:
            seat.vacate()

    def _heard(self, name: str, fields: Payload) -> None:
        session = str(fields.get("session"))
        seat = self._seats.pop(session, None) if name == "session_lost" else None
        if seat is not None and seat.session == session:
            seat.vacate()
            self._owner.lose(seat, lost(told(fields)))
            self._owner.flush()

    # From one connection to the next.

    def _take_link(self, link: Link) -> None:
        self.link = link
        self._batches = Batches(link, self)
        link.on_event = self._heard
        link.on_end = self._lost

    def _lost(self, error: OpenEnvError) -> None:
        """The link has ended."""
        here = any(seat.road is self for seat in self._seats.values())  # else its vector has left this connection
        if here and not self._closing and self._resumption.window_s(self.link):
            self._returning = self.link.loop.create_task(self._return())
        else:
            self._finish(error)

    async def _return(self) -> None:
        """Goes on with the sessions on another connection."""
        try:
            link, verdicts = await self._resumption.run(self.link, self._tokens, self._heard)
        except SessionLost as error:
            self._finish(error)
        else:
            self._take_link(link)
            self._resume(verdicts)

    def _tokens(self) -> dict[str, str]:
        return {session: seat.token for session, seat in self._seats.items()} | self._forsaken

    def _resume(self, verdicts: dict[str, Verdict]) -> None:
        again: dict[Wave, list[Seat]] = {}
        for session, verdict in verdicts.items():
            seat = self._seats.get(session)
            if seat is None:
                if self._forsaken.pop(session, None) is not None and isinstance(verdict, dict):
                    self.link.post("close", {"session": session})
            elif self._is_back(seat, verdict):
                self._held.append(seat)
                if seat.call is not None and seat.wave is not None:
                    again.setdefault(seat.wave, []).append(seat)
        for wave, seats in again.items():
            self._repeat(seats, wave)
        self.flush()

    def _is_back(self, seat: Seat, verdict: Verdict) -> bool:
        """Takes what the server says of a session. False: there is none any more."""
        if not isinstance(verdict, dict):
            if seat.opened or not isinstance(verdict, UnknownSession):
                self._leave(seat)
                self._owner.lose(seat, forgotten(verdict))
                return False
            return True  # its `open` did not arrive
        seat.opened = True
        wave, last = seat.wave, verdict.get("last")
        if wave is not None and verdict.get("seq") == seat.seq and isinstance(last, dict):
            self.answered(seat, wave, {**last, "session": seat.session})
        return seat.session is not None

    def _repeat(self, seats: list[Seat], wave: Wave) -> None:
        """Sends calls that have no reply once more, under the numbers they had."""
        calls: list[Payload] = []
        entries: list[Entry] = []
        for seat in seats:
            assert seat.call is not None
            if not seat.opened:
                self._batches.add_opening(seat, self._wait_s, calls, entries)
            calls.append(seat.call)
            entries.append(seat)
        self._batches.send(calls, entries, wave)

    def _finish(self, error: OpenEnvError) -> None:
        """It has ended for good."""
        if self.error is not None:
            return
        self.error = error
        seats, self._seats = self._seats, {}
        self._tell_end([seat for seat in seats.values() if seat.road is self], error)
        waiting, self._waiting = self._waiting, deque()
        for seat, wave in waiting:
            self._owner.settle(seat, wave, lost(error))
        self._owner.flush()

    def _tell_end(self, seats: list[Seat], error: OpenEnvError) -> None:
        for seat in seats:
            seat.vacate()
            self._owner.lose(seat, error if isinstance(error, SessionLost) else lost(error))
