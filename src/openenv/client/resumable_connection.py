"""A v2 connection that carries a vector's batches, reconnects when it is lost, and repeats what has no reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

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
from .connection import ClientConnectionV2, Payload, deadline_of, loss_reason, session_lost, session_not_resumed
from .session import GONE, AttachResult, Resumption, new_secret
from .vector_state import EnvSlot, PendingBatch, VectorState

# The protocol's limit.
MOST_WAIT_S = 86_400.0
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class PendingOpen(NamedTuple):
    """The call of a batch that opens the session of a slot."""

    slot: EnvSlot
    session: str


BatchEntry = EnvSlot | PendingOpen | None
"""The slot of a call of a batch; None once it has its reply."""


class BatchSender:
    """Sends batches over a link, for as long as it lasts.

    Args:
        link: The connection, greeted by the server.
        connection: Takes the replies.
    """

    def __init__(self, link: ClientConnectionV2, connection: ResumableConnection):
        self._link = link
        self._connection = connection
        self._max_batch = link.limit("max_batch") or 1
        self._opening = 0

    @property
    def room(self) -> int:
        """How many sessions more may be opened now: the server opens as many at a time as a batch has calls."""
        return self._max_batch - self._opening

    def add_opening(
        self, slot: EnvSlot, wait_s: float | None, calls: list[Payload], entries: list[BatchEntry]
    ) -> None:
        """Adds the call that opens the session of a slot."""
        assert slot.session is not None
        opening: Payload = {"op": "open", "session": slot.session, "token": slot.token}
        if wait_s is not None:
            opening["wait_s"] = wait_s
        self._opening += 1
        calls.append(opening)
        entries.append(PendingOpen(slot, slot.session))

    def send(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Sends calls, in as few frames as possible. When the link has ended, or ends, no call gets a reply."""
        for begin in range(0, len(calls), self._max_batch):
            end = begin + self._max_batch
            self._send(calls[begin:end], entries[begin:end], batch)

    def _send(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch) -> None:
        if self._link.error is not None:
            return
        fields: Payload = {"calls": calls}
        now = self._link.loop.time()
        if batch.first_finished:
            fields["min_ready"] = 1
        elif batch.send_by is not None:
            fields["wait_s"] = min(MOST_WAIT_S, max(0.0, batch.send_by - now))
        if batch.due is not None:
            fields["deadline_s"] = deadline_of(batch.due, now)
        on_reply = partial(self._on_frame, entries, batch), partial(self._on_error, entries, batch)
        try:
            request = self._link.stream("batch", fields, *on_reply)
        except (MessageTooLarge, ValueError) as error:
            if len(calls) == 1:
                failure = error if isinstance(error, OpenEnvError) else InvalidAction(str(error))
                self._on_error(entries, batch, failure)
                return
            # The halves are sent apart, until each call that cannot be sent is alone.
            half = len(calls) // 2
            self._send(calls[:half], entries[:half], batch)
            self._send(calls[half:], entries[half:], batch)
        else:
            batch.withdrawals.append(partial(self._withdraw, request, entries))
            if batch.withdrawn:
                self._withdraw(request, entries)

    def _withdraw(self, request: RequestV2, entries: list[BatchEntry]) -> None:
        """Has the server stop the work of a batch. Its replies still come, and name the sessions to close."""
        self._link.post("cancel", {"target": request.id})
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._connection.cancelled(entry)

    def _on_frame(self, entries: list[BatchEntry], batch: PendingBatch, payload: Payload, more: bool) -> None:
        """Takes one frame of replies."""
        answered = self._connection.answered
        try:
            for item in payload["results"]:
                place = item["call"]
                entry = entries[place]
                if entry is None or place < 0:
                    raise IndexError(place)
                entries[place] = None
                if type(entry) is EnvSlot:
                    answered(entry, batch, item)
                    continue
                self._opening -= 1
                if "error" in item:  # the answer to the next call too, which comes too late
                    self._connection.failed(entry.slot, batch, item, gone=True)
                else:
                    self._connection.opened(entry)
        except _MALFORMED:
            self._link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        if not more and entries.count(None) < len(entries) and self._link.error is None:
            self._miss(entries, batch)
        self._connection.flush()

    def _miss(self, entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Ends the link, since the last reply to a batch left calls out."""
        count = len(entries) - entries.count(None)
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(entries)} calls of a batch; nobody knows "
            "whether they were executed: reset() begins anew"
        )
        for entry in entries:
            if isinstance(entry, EnvSlot):
                self._connection.left_out(entry, batch, violation)
        self._link.end(violation)

    def _on_error(self, entries: list[BatchEntry], batch: PendingBatch, error: OpenEnvError) -> None:
        if self._link.error is not None:
            return  # it ended: `ResumableConnection` decides about its calls
        self._opening -= sum(isinstance(entry, PendingOpen) for entry in entries)
        self._connection.refused(entries, batch, error)
        self._connection.flush()


class ResumableConnection:
    """Carries the calls of slots over a connection that is made again when it is lost.

    Each slot has one call at a time without a reply. When the connection is lost, its sessions attach to another
    one, and calls without a reply are sent again under their numbers.

    Args:
        link: The connection, greeted by the server.
        owner: Takes the replies.
        resumption: Makes the connection again.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.

    Attributes:
        error: Why it has ended for good; None while it lasts.
        link: The present connection, or the last one.
    """

    def __init__(
        self, link: ClientConnectionV2, owner: VectorState, resumption: Resumption, wait_s: float | None = None
    ):
        self.error: OpenEnvError | None = None
        self._owner = owner
        self._resumption = resumption
        self._wait_s = wait_s
        self._slots: dict[str, EnvSlot] = {}
        # Sessions to close that could not be closed yet, with their tokens.
        self._unwanted: dict[str, str] = {}
        self._held: list[EnvSlot] = []  # slots that may go on with their next call
        self._waiting: deque[tuple[EnvSlot, PendingBatch]] = deque()  # slots that wait for a session
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

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots, which have their session here or none; those without one get one first."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
        sender, away = self._sender, self.link.error is not None
        for slot in slots:
            if slot.session is None:
                if sender.room <= 0:
                    self._waiting.append((slot, batch))
                    continue
                slot.assign_session(self, new_secret(), new_secret())
                self._slots[str(slot.session)] = slot
                sender.add_opening(slot, self._wait_s, calls, entries)
            elif away or slot.call is not None:
                slot.held = batch
                continue
            seq = slot.seq = slot.seq + 1
            if slot.kind == "step":
                call = slot.step
                call["seq"] = seq
                call["action"] = slot.contents
            else:
                call = {"op": "reset", "session": slot.session, "seq": seq, "kwargs": slot.contents}
            slot.call = call
            slot.batch = batch
            calls.append(call)
            entries.append(slot)
        sender.send(calls, entries, batch)
        if self.error is not None:  # the link has ended meanwhile, for good, before some of them were here
            self._lose([slot for slot in slots if slot.connection is self], self.error)

    def dismiss(self, slot: EnvSlot) -> None:
        """Ends the session of a slot, which gets one on another connection."""
        self.link.post("close", {"session": slot.session})
        self._leave(slot)

    async def aclose(self) -> None:
        """Ends the sessions here, and the connection."""
        self._closing = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        await self.link.aclose([*self._slots, *self._unwanted])
        self._finish(ConnectionLost("this client was closed"))

    # What the sender calls.

    def answered(self, slot: EnvSlot, batch: PendingBatch, item: Payload) -> None:
        if item["session"] == slot.session:  # else the slot has another one by now
            slot.call = slot.batch = None
            if slot.held is not None:
                self._held.append(slot)
        if "error" in item:
            self.failed(slot, batch, item)
        else:
            self._owner.settle(slot, batch, item)

    def opened(self, opening: PendingOpen) -> None:
        if self._slots.get(opening.session) is opening.slot:
            opening.slot.opened = True
        else:  # it is not wanted any more
            self.link.post("close", {"session": opening.session})

    def failed(self, slot: EnvSlot, batch: PendingBatch, item: Payload, gone: bool = False) -> None:
        """Takes the error of a call. `gone`: the session has ended with it."""
        error = error_of(item["error"])
        if isinstance(error, GONE):
            error, gone = session_lost(error), True
        elif isinstance(error, TooManyCalls) and not gone:
            slot.seq -= 1  # not counted
        held = slot.held
        if gone and item["session"] == slot.session:
            self._leave(slot)
            if held is not None:
                self._owner.settle(slot, held, error)
        self._owner.settle(slot, batch, error)

    def refused(self, entries: Sequence[BatchEntry], batch: PendingBatch, error: OpenEnvError) -> None:
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._leave(entry.slot)
            elif entry is not None:
                entry.seq -= 1
                entry.call = entry.batch = None
                self._owner.settle(entry, batch, error)

    def cancelled(self, opening: PendingOpen) -> None:
        if opening.slot.session != opening.session:
            return
        if self.link.error is not None:
            self._unwanted[opening.session] = opening.slot.token
        elif opening.slot.opened:
            self.link.post("close", {"session": opening.session})
        self._leave(opening.slot)

    def left_out(self, slot: EnvSlot, batch: PendingBatch, error: OpenEnvError) -> None:
        self._owner.settle(slot, batch, error)

    def flush(self) -> None:
        """Sends calls that had to wait for replies, and lets the owner go on."""
        if self._held:
            held, self._held = self._held, []
            self._carry_held(held)
        if self._waiting:
            self._admit()
        self._owner.flush()

    def _carry_held(self, held: list[EnvSlot]) -> None:
        shares: dict[PendingBatch, list[EnvSlot]] = {}
        for slot in held:
            batch = slot.held
            if slot.connection is self and batch is not None and slot.call is None and self.link.error is None:
                slot.held = None
                if slot.pending is batch:  # else it has given up
                    shares.setdefault(batch, []).append(slot)
        for batch, slots in shares.items():
            self.carry(slots, batch)

    def _admit(self) -> None:
        """Goes on with slots that had to wait until the sessions of others were opened."""
        while self._waiting and self._sender.room > 0 and self.link.error is None:
            batch = self._waiting[0][1]
            slots: list[EnvSlot] = []
            while self._waiting and self._waiting[0][1] is batch and len(slots) < self._sender.room:
                slot, _ = self._waiting.popleft()
                if slot.pending is batch:  # else it has given up
                    slots.append(slot)
            self.carry(slots, batch)

    def _leave(self, slot: EnvSlot) -> None:
        if slot.session is not None and self._slots.pop(slot.session, None) is slot:
            slot.drop_session()

    def _on_event(self, name: str, fields: Payload) -> None:
        session = str(fields.get("session"))
        slot = self._slots.pop(session, None) if name == "session_lost" else None
        if slot is not None and slot.session == session:
            slot.drop_session()
            self._owner.lose(slot, session_lost(loss_reason(fields)))
            self._owner.flush()

    # From one connection to the next.

    def _take_link(self, link: ClientConnectionV2) -> None:
        self.link = link
        self._sender = BatchSender(link, self)
        link.on_event = self._on_event
        link.on_end = self._on_end

    def _on_end(self, error: OpenEnvError) -> None:
        """The link has ended."""
        in_use = any(slot.connection is self for slot in self._slots.values())
        if in_use and not self._closing and self._resumption.window_s(self.link):
            self._returning = self.link.loop.create_task(self._return())
        else:
            self._finish(error)

    async def _return(self) -> None:
        """Goes on with the sessions on another connection."""

        def tokens() -> dict[str, str]:
            return {session: slot.token for session, slot in self._slots.items()} | self._unwanted

        try:
            link, verdicts = await self._resumption.run(self.link, tokens, self._on_event)
        except SessionLost as error:
            self._finish(error)
        else:
            self._take_link(link)
            self._resume(verdicts)

    def _resume(self, verdicts: dict[str, AttachResult]) -> None:
        again: dict[PendingBatch, list[EnvSlot]] = {}
        for session, verdict in verdicts.items():
            slot = self._slots.get(session)
            if slot is None:
                if self._unwanted.pop(session, None) is not None and isinstance(verdict, dict):
                    self.link.post("close", {"session": session})
            elif self._is_back(slot, verdict):
                self._held.append(slot)
                if slot.call is not None and slot.batch is not None:
                    again.setdefault(slot.batch, []).append(slot)
        for batch, slots in again.items():
            self._repeat(slots, batch)
        self.flush()

    def _is_back(self, slot: EnvSlot, verdict: AttachResult) -> bool:
        """Takes the server's answer to `attach`. False: the session is gone."""
        if not isinstance(verdict, dict):
            if slot.opened or not isinstance(verdict, UnknownSession):
                self._leave(slot)
                self._owner.lose(slot, session_not_resumed(verdict))
                return False
            return True  # its `open` did not arrive
        slot.opened = True
        batch, last = slot.batch, verdict.get("last")
        if batch is not None and verdict.get("seq") == slot.seq and isinstance(last, dict):
            self.answered(slot, batch, {**last, "session": slot.session})
        return slot.session is not None

    def _repeat(self, slots: list[EnvSlot], batch: PendingBatch) -> None:
        """Sends calls without a reply once more, under their numbers."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
        for slot in slots:
            assert slot.call is not None
            if not slot.opened:
                self._sender.add_opening(slot, self._wait_s, calls, entries)
            calls.append(slot.call)
            entries.append(slot)
        self._sender.send(calls, entries, batch)

    def _finish(self, error: OpenEnvError) -> None:
        """Ends for good."""
        if self.error is not None:
            return
        self.error = error
        slots, self._slots = self._slots, {}
        self._lose([slot for slot in slots.values() if slot.connection is self], error)
        waiting, self._waiting = self._waiting, deque()
        for slot, batch in waiting:
            self._owner.settle(slot, batch, session_lost(error))
        self._owner.flush()

    def _lose(self, slots: list[EnvSlot], error: OpenEnvError) -> None:
        for slot in slots:
            slot.drop_session()
            self._owner.lose(slot, error if isinstance(error, SessionLost) else session_lost(error))
