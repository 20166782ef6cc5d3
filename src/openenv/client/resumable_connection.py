"""A v2 connection that carries a vector's batches, reconnects when it is lost, and repeats what has no reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..errors import (
    ConnectionLost,
    InvalidAction,
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
    SessionLost,
    TooManyCalls,
    UnknownSession,
)
from ..protocol.client import RequestV2, error_of
from .connection import ClientConnectionV2, deadline_of, loss_reason, session_lost, session_not_resumed
from .session import GONE, AttachResult, Resumption, new_secret
from .vector_state import BatchOwner, EnvSlot, PendingBatch

# What the protocol allows.
MOST_WAIT_S = 86_400.0
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
Payload = dict[str, Any]


class PendingOpen(NamedTuple):
    """Stands in a batch where the session of a seat is opened."""

    seat: EnvSlot
    session: str


BatchEntry = EnvSlot | PendingOpen | None
"""Whose a call of a batch is; None once it has its reply."""


class BatchReceiver(Protocol):
    """Who hears what became of each call."""

    def answered(self, seat: EnvSlot, wave: PendingBatch, item: Payload) -> None:
        """The reply to a call of a seat, or its error."""

    def opened(self, opening: PendingOpen) -> None:
        """There is a session."""

    def not_opened(self, opening: PendingOpen, wave: PendingBatch, item: Payload) -> None:
        """There is none, and why."""

    def refused(self, entries: Sequence[BatchEntry], wave: PendingBatch, error: OpenEnvError) -> None:
        """Calls that were not made."""

    def cancelled(self, opening: PendingOpen) -> None:
        """Nobody wants the session any more."""

    def left_out(self, seat: EnvSlot, wave: PendingBatch, error: OpenEnvError) -> None:
        """A call that will never have a reply."""

    def flush(self) -> None:
        """That was all for now."""


class BatchSender:
    """Sends batches over a link, for as long as it lasts.

    Args:
        link: The connection, greeted by the server.
        recipient: Hears of the replies.
    """

    def __init__(self, link: ClientConnectionV2, recipient: BatchReceiver):
        self._link = link
        self._recipient = recipient
        self._max_batch = link.limit("max_batch") or 1
        self._opening = 0

    @property
    def room(self) -> int:
        """How many sessions more may be opened now: a connection may have as many at a time as calls in a batch."""
        return self._max_batch - self._opening

    def add_opening(
        self, seat: EnvSlot, wait_s: float | None, calls: list[Payload], entries: list[BatchEntry]
    ) -> None:
        """Adds the call that opens the session of a seat."""
        assert seat.session is not None
        opening: Payload = {"op": "open", "session": seat.session, "token": seat.token}
        if wait_s is not None:
            opening["wait_s"] = wait_s
        self._opening += 1
        calls.append(opening)
        entries.append(PendingOpen(seat, seat.session))

    def send(self, calls: list[Payload], entries: list[BatchEntry], wave: PendingBatch) -> None:
        """Sends calls, in as few frames as they fit in. When the link has ended, or ends, nothing is told of them."""
        for begin in range(0, len(calls), self._max_batch):
            end = begin + self._max_batch
            self._send(calls[begin:end], entries[begin:end], wave)

    def _send(self, calls: list[Payload], entries: list[BatchEntry], wave: PendingBatch) -> None:
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

    def _terms(self, wave: PendingBatch) -> Payload:
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

    def _withdraw(self, request: RequestV2, entries: list[BatchEntry]) -> None:
        """Has the server stop the work of a batch. Its replies come all the same, and say what there is to close."""
        self._link.post("cancel", {"target": request.id})
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._recipient.cancelled(entry)

    def _received(self, entries: list[BatchEntry], wave: PendingBatch, payload: Payload, more: bool) -> None:
        """Takes one frame of replies."""
        answered = self._recipient.answered
        try:
            for item in payload["results"]:
                place = item["call"]
                entry = entries[place]
                if entry is None or place < 0:
                    raise IndexError(place)
                entries[place] = None
                if type(entry) is EnvSlot:
                    answered(entry, wave, item)
                else:
                    self._open_answered(entry, wave, item)
        except _MALFORMED:
            self._link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        if not more:
            self._close(entries, wave)
        self._recipient.flush()

    def _open_answered(self, opening: PendingOpen, wave: PendingBatch, item: Payload) -> None:
        self._opening -= 1
        if "error" in item:
            self._recipient.not_opened(opening, wave, item)
        else:
            self._recipient.opened(opening)

    def _close(self, entries: list[BatchEntry], wave: PendingBatch) -> None:
        """The last reply to a batch was taken: there must be no call without one."""
        count = len(entries) - entries.count(None)
        if not count or self._link.error is not None:
            return
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(entries)} calls of a batch; nobody knows "
            "whether they were executed: reset() begins anew"
        )
        for entry in entries:
            if isinstance(entry, EnvSlot):
                self._recipient.left_out(entry, wave, violation)
        self._link.end(violation)

    def _refused(self, entries: list[BatchEntry], wave: PendingBatch, error: OpenEnvError) -> None:
        if self._link.error is not None:
            return  # it ended, and what becomes of its calls is decided then
        self._opening -= sum(isinstance(entry, PendingOpen) for entry in entries)
        self._recipient.refused(entries, wave, error)
        self._recipient.flush()


class ResumableConnection:
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

    def __init__(
        self, link: ClientConnectionV2, owner: BatchOwner, resumption: Resumption, wait_s: float | None = None
    ):
        self.error: OpenEnvError | None = None
        self._owner = owner
        self._resumption = resumption
        self._wait_s = wait_s
        self._seats: dict[str, EnvSlot] = {}
        # Sessions that nobody wants any more and that could not be told to end, with their tokens.
        self._unwanted: dict[str, str] = {}
        self._held: list[EnvSlot] = []  # seats that may go on with what they were asked for meanwhile
        self._waiting: deque[tuple[EnvSlot, PendingBatch]] = deque()  # seats that wait for room to be opened
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

    def carry(self, seats: Sequence[EnvSlot], wave: PendingBatch) -> None:
        """Sends what seats were asked to do, who are here or have no session; one without gets one first."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
        batches, away = self._batches, self.link.error is not None
        for seat in seats:
            if seat.session is None:
                if batches.room <= 0:
                    self._waiting.append((seat, wave))
                    continue
                seat.assign_session(self, new_secret(), new_secret())
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

    def dismiss(self, seat: EnvSlot) -> None:
        """Ends the session of a seat, which is to have one elsewhere."""
        self.link.post("close", {"session": seat.session})
        self._leave(seat)

    async def aclose(self) -> None:
        """Ends the sessions here, and the connection."""
        self._closing = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        await self.link.aclose([*self._seats, *self._unwanted])
        self._finish(ConnectionLost("this client was closed"))

    # What batches tell.

    def answered(self, seat: EnvSlot, wave: PendingBatch, item: Payload) -> None:
        if item["session"] == seat.session:  # else the seat has another one by now
            seat.call = seat.wave = None
            if seat.held is not None:
                self._held.append(seat)
        if "error" in item:
            self._failed(seat, wave, item)
        else:
            self._owner.settle(seat, wave, item)

    def opened(self, opening: PendingOpen) -> None:
        if self._seats.get(opening.session) is opening.seat:
            opening.seat.opened = True
        else:  # nobody wants it any more
            self.link.post("close", {"session": opening.session})

    def not_opened(self, opening: PendingOpen, wave: PendingBatch, item: Payload) -> None:
        # It answers the call that follows it, whose own answer comes too late.
        self._failed(opening.seat, wave, item, gone=True)

    def refused(self, entries: Sequence[BatchEntry], wave: PendingBatch, error: OpenEnvError) -> None:
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._leave(entry.seat)
            elif entry is not None:
                entry.seq -= 1
                entry.call = entry.wave = None
                self._owner.settle(entry, wave, error)

    def cancelled(self, opening: PendingOpen) -> None:
        if opening.seat.session != opening.session:
            return
        if self.link.error is not None:
            self._unwanted[opening.session] = opening.seat.token
        elif opening.seat.opened:
            self.link.post("close", {"session": opening.session})
        self._leave(opening.seat)

    def left_out(self, seat: EnvSlot, wave: PendingBatch, error: OpenEnvError) -> None:
        self._owner.settle(seat, wave, error)

    def flush(self) -> None:
        """Sends what had to wait for replies, and lets the owner go on."""
        if self._held:
            held, self._held = self._held, []
            self._carry_held(held)
        if self._waiting:
            self._admit()
        self._owner.flush()

    def _carry_held(self, held: list[EnvSlot]) -> None:
        shares: dict[PendingBatch, list[EnvSlot]] = {}
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
            seats: list[EnvSlot] = []
            while self._waiting and self._waiting[0][1] is wave and len(seats) < self._batches.room:
                seat, _ = self._waiting.popleft()
                if seat.pending is wave:  # else it has given up
                    seats.append(seat)
            self.carry(seats, wave)

    def _failed(self, seat: EnvSlot, wave: PendingBatch, item: Payload, gone: bool = False) -> None:
        """A call has failed; `gone`: and so has the session."""
        error = error_of(item["error"])
        if isinstance(error, GONE):
            error, gone = session_lost(error), True
        elif isinstance(error, TooManyCalls) and not gone:
            seat.seq -= 1  # not counted
        held = seat.held
        if gone and item["session"] == seat.session:
            self._leave(seat)
            if held is not None:
                self._owner.settle(seat, held, error)
        self._owner.settle(seat, wave, error)

    def _leave(self, seat: EnvSlot) -> None:
        if seat.session is not None and self._seats.pop(seat.session, None) is seat:
            seat.drop_session()

    def _heard(self, name: str, fields: Payload) -> None:
        session = str(fields.get("session"))
        seat = self._seats.pop(session, None) if name == "session_lost" else None
        if seat is not None and seat.session == session:
            seat.drop_session()
            self._owner.lose(seat, session_lost(loss_reason(fields)))
            self._owner.flush()

    # From one connection to the next.

    def _take_link(self, link: ClientConnectionV2) -> None:
        self.link = link
        self._batches = BatchSender(link, self)
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
        return {session: seat.token for session, seat in self._seats.items()} | self._unwanted

    def _resume(self, verdicts: dict[str, AttachResult]) -> None:
        again: dict[PendingBatch, list[EnvSlot]] = {}
        for session, verdict in verdicts.items():
            seat = self._seats.get(session)
            if seat is None:
                if self._unwanted.pop(session, None) is not None and isinstance(verdict, dict):
                    self.link.post("close", {"session": session})
            elif self._is_back(seat, verdict):
                self._held.append(seat)
                if seat.call is not None and seat.wave is not None:
                    again.setdefault(seat.wave, []).append(seat)
        for wave, seats in again.items():
            self._repeat(seats, wave)
        self.flush()

    def _is_back(self, seat: EnvSlot, verdict: AttachResult) -> bool:
        """Takes what the server says of a session. False: there is none any more."""
        if not isinstance(verdict, dict):
            if seat.opened or not isinstance(verdict, UnknownSession):
                self._leave(seat)
                self._owner.lose(seat, session_not_resumed(verdict))
                return False
            return True  # its `open` did not arrive
        seat.opened = True
        wave, last = seat.wave, verdict.get("last")
        if wave is not None and verdict.get("seq") == seat.seq and isinstance(last, dict):
            self.answered(seat, wave, {**last, "session": seat.session})
        return seat.session is not None

    def _repeat(self, seats: list[EnvSlot], wave: PendingBatch) -> None:
        """Sends calls that have no reply once more, under the numbers they had."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
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
            self._owner.settle(seat, wave, session_lost(error))
        self._owner.flush()

    def _tell_end(self, seats: list[EnvSlot], error: OpenEnvError) -> None:
        for seat in seats:
            seat.drop_session()
            self._owner.lose(seat, error if isinstance(error, SessionLost) else session_lost(error))
