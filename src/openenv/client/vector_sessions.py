"""The sessions of a vector: groups on a few connections that all environments share (v2), or one on each (v1)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from .._backoff import retry_connect
from ..errors import (
    ConnectionLost,
    InvalidAction,
    InvalidArgument,
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
    SessionLost,
)
from ..protocol.client import RequestV2, error_of
from .connection import (
    CallKind,
    ClientConnectionV1,
    ClientConnectionV2,
    Dial,
    Payload,
    deadline_of,
    error_after_end,
    session_lost,
)
from .session import Resumption, SessionGroup, new_secret
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


class _SentBatch:
    """A batch that was sent, which takes its replies (a `Waiter`)."""

    __slots__ = ("_batch", "_entries", "_group")

    def __init__(self, group: VectorSessions, entries: list[BatchEntry], batch: PendingBatch):
        self._group = group
        self._entries = entries
        self._batch = batch

    def answer(self, payload: Payload, more: bool) -> None:
        self._group.answered(self._entries, self._batch, payload, more)

    def fail(self, error: OpenEnvError) -> None:
        self._group.refused(self._entries, self._batch, error)


class VectorSessions(SessionGroup[EnvSlot]):
    """The sessions of some environments of a vector, on one connection. Their calls are sent in batches.

    Args:
        link: The connection, greeted by the server.
        resumption: Makes it again.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.
        owner: Takes the replies.
    """

    def __init__(self, link: ClientConnectionV2, resumption: Resumption, wait_s: float | None, owner: VectorState):
        self._owner = owner
        self._held: list[EnvSlot] = []  # slots that may go on with their next call
        self._waiting: deque[tuple[EnvSlot, PendingBatch]] = deque()  # slots that wait for a session
        super().__init__(link, resumption, wait_s)

    @property
    def usable(self) -> bool:
        """Whether sessions can be opened here."""
        return self.link.error is None and not self.link.draining

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots. Those that have no session here get one first; one elsewhere is closed."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
        away = self.link.error is not None
        for slot in slots:
            if slot.group is not self:
                if slot.group is not None:
                    slot.group.dismiss(slot)
                if self._room <= 0:
                    self._waiting.append((slot, batch))
                    continue
                session = new_secret()
                slot.assign_session(self, session, new_secret())
                self._sessions[session] = slot
                self._add_opening(slot, calls, entries)
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
        self._send(calls, entries, batch)
        if self.error is not None:  # the link has ended meanwhile, for good, before some of them were here
            self._end_calls(slots, self.error)

    def dismiss(self, slot: EnvSlot) -> None:
        """Ends the session of a slot, which gets one on another connection."""
        self.link.post("close", {"session": slot.session})
        self._leave(slot)

    # Batches.

    @property
    def _room(self) -> int:
        """How many sessions more may be opened now: the server opens as many at a time as a batch has calls."""
        return self._max_batch - self._opens_pending

    def _add_opening(self, slot: EnvSlot, calls: list[Payload], entries: list[BatchEntry]) -> None:
        self._opens_pending += 1
        calls.append({"op": "open", **self._opening(slot)})
        entries.append(PendingOpen(slot, str(slot.session)))

    def _send(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Sends calls, in as few frames as possible. When the link has ended, or ends, no call gets a reply."""
        most, count = self._max_batch, len(calls)
        if count > most:
            self._send_parts(calls, entries, batch, most)
            return
        if not calls or self.link.error is not None:
            return
        fields: Payload = {"calls": calls}
        now = self.loop.time()
        if batch.first_finished:
            fields["min_ready"] = 1
        elif batch.send_by is not None:
            fields["wait_s"] = min(MOST_WAIT_S, max(0.0, batch.send_by - now))
        if batch.due is not None:
            fields["deadline_s"] = deadline_of(batch.due, now)
        try:
            request = self.link.ask("batch", fields, _SentBatch(self, entries, batch))
        except (MessageTooLarge, ValueError) as error:
            if count == 1:
                self.refused(entries, batch, error if isinstance(error, OpenEnvError) else InvalidAction(str(error)))
                return
            # The halves are sent apart, until each call that cannot be sent is alone.
            self._send_parts(calls, entries, batch, (count + 1) // 2)
        else:
            batch.withdrawals.append(partial(self._withdraw, self.link, request, entries))
            if batch.withdrawn:
                self._withdraw(self.link, request, entries)

    def _send_parts(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch, most: int) -> None:
        for begin in range(0, len(calls), most):
            self._send(calls[begin : begin + most], entries[begin : begin + most], batch)

    def _withdraw(self, link: ClientConnectionV2, request: RequestV2, entries: list[BatchEntry]) -> None:
        """Has the server stop the work of a batch. Its replies still come, and name the sessions to close."""
        link.post("cancel", {"target": request.id})
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._cancel_opening(entry)

    # What sent batches call.

    def answered(self, entries: list[BatchEntry], batch: PendingBatch, payload: Payload, more: bool) -> None:
        """Takes one frame of replies to a batch."""
        settle = self._owner.settle
        try:
            for item in payload["results"]:
                place = item["call"]
                entry = entries[place]
                if entry is None or place < 0:
                    raise IndexError(place)
                entries[place] = None
                if type(entry) is not EnvSlot:
                    self._take_opening(entry, batch, item)
                    continue
                if item["session"] == entry.session:  # else the slot has another one by now
                    entry.call = entry.batch = None
                    if entry.held is not None:
                        self._held.append(entry)
                if "error" in item:
                    self._fail(entry, batch, item)
                else:
                    settle(entry, batch, item)
        except _MALFORMED:
            self.link.end(ProtocolViolation(f"the server sent a batch that is none: {payload!r:.200}"))
        if not more and entries.count(None) < len(entries) and self.link.error is None:
            self._miss(entries, batch)
        self._flush()

    def refused(self, entries: list[BatchEntry], batch: PendingBatch, error: OpenEnvError) -> None:
        """Takes the error of a whole batch."""
        if self.link.error is not None:
            return  # not an answer: `_on_end` decides about its calls
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._opens_pending -= 1
                self._leave(entry.slot)
            elif entry is not None:
                entry.seq -= 1
                entry.call = entry.batch = None
                self._owner.settle(entry, batch, error)
        self._flush()

    def _take_opening(self, opening: PendingOpen, batch: PendingBatch, item: Payload) -> None:
        self._opens_pending -= 1
        if "error" in item:  # the answer to the next call too, which comes too late
            self._fail(opening.slot, batch, item, gone=True)
        elif self._sessions.get(opening.session) is opening.slot:
            opening.slot.opened = True
        else:  # it is not wanted any more
            self.link.post("close", {"session": opening.session})

    def _fail(self, slot: EnvSlot, batch: PendingBatch, item: Payload, gone: bool = False) -> None:
        """Takes the error of a call. `gone`: the session has ended with it."""
        error = error_of(item["error"])
        if not gone and self._is_end(slot, error):
            error, gone = session_lost(error), True
        held = slot.held
        if gone and item["session"] == slot.session:
            self._leave(slot)
            if held is not None:
                self._owner.settle(slot, held, error)
        self._owner.settle(slot, batch, error)

    def _miss(self, entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Ends the link, since the last reply to a batch left calls out."""
        count = len(entries) - entries.count(None)
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(entries)} calls of a batch; nobody knows "
            "whether they were executed: reset() begins anew"
        )
        for entry in entries:
            if isinstance(entry, EnvSlot):
                self._owner.settle(entry, batch, violation)
        self.link.end(violation)

    def _cancel_opening(self, opening: PendingOpen) -> None:
        if opening.slot.session != opening.session:
            return
        if self.link.error is not None:
            self._unwanted[opening.session] = opening.slot.token
        elif opening.slot.opened:
            self.link.post("close", {"session": opening.session})
        self._leave(opening.slot)

    def _leave(self, slot: EnvSlot) -> None:
        if slot.session is not None and self._sessions.pop(slot.session, None) is slot:
            slot.drop_session()

    # Calls that had to wait.

    def _flush(self) -> None:
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
            if slot.group is self and batch is not None and slot.call is None and self.link.error is None:
                slot.held = None
                if slot.pending is batch:  # else it has given up
                    shares.setdefault(batch, []).append(slot)
        for batch, slots in shares.items():
            self.carry(slots, batch)

    def _admit(self) -> None:
        """Goes on with slots that had to wait until the sessions of others were opened."""
        while self._waiting and self._room > 0 and self.link.error is None:
            batch = self._waiting[0][1]
            slots: list[EnvSlot] = []
            while self._waiting and self._waiting[0][1] is batch and len(slots) < self._room:
                slot, _ = self._waiting.popleft()
                if slot.pending is batch:  # else it has given up
                    slots.append(slot)
            self.carry(slots, batch)

    # From one connection to the next.

    def _take_link(self, link: ClientConnectionV2) -> None:
        super()._take_link(link)
        self._max_batch = link.limit("max_batch") or 1
        self._opens_pending = 0

    def _take_last(self, state: EnvSlot, reply: Payload) -> None:
        batch = state.batch
        if batch is None:
            return
        state.call = state.batch = None
        if "error" in reply:
            self._fail(state, batch, reply)
        else:
            self._owner.settle(state, batch, reply)

    def _repeat(self, states: Sequence[EnvSlot]) -> None:
        again: dict[PendingBatch, list[EnvSlot]] = {}
        for slot in states:
            self._held.append(slot)
            if slot.call is not None and slot.batch is not None:
                again.setdefault(slot.batch, []).append(slot)
        for batch, slots in again.items():
            calls: list[Payload] = []
            entries: list[BatchEntry] = []
            for slot in slots:
                assert slot.call is not None
                if not slot.opened:
                    self._add_opening(slot, calls, entries)
                calls.append(slot.call)
                entries.append(slot)
            self._send(calls, entries, batch)
        self._flush()

    def _on_event(self, name: str, fields: Payload) -> None:
        super()._on_event(name, fields)
        self._owner.flush()

    def _lose(self, state: EnvSlot, error: OpenEnvError) -> None:
        self._leave(state)
        self._owner.lose(state, error)

    def _end_calls(self, states: Sequence[EnvSlot], error: OpenEnvError) -> None:
        lost = error if isinstance(error, SessionLost) else session_lost(error)
        for slot in states:
            if slot.group is self:
                slot.drop_session()
                self._owner.lose(slot, lost)
        waiting, self._waiting = self._waiting, deque()
        for slot, batch in waiting:
            self._owner.settle(slot, batch, lost)
        self._owner.flush()


class ConnectionPool:
    """The v2 connections of a vector (a `BatchCarrier`); environment i takes connection i modulo their number.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        connections: How many there are.
        owner: Takes the replies.
        patience_s: Seconds for connecting.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.
    """

    def __init__(
        self,
        dial: Dial,
        first: ClientConnectionV2,
        connections: int,
        owner: VectorState,
        patience_s: float,
        wait_s: float | None = None,
    ):
        self._connections = [_PooledConnection(dial, owner, patience_s, wait_s) for _ in range(connections)]
        self._first = first

    async def open(self) -> None:
        """Makes all connections; if one cannot be made, none is left."""
        links = [self._first, *[None] * (len(self._connections) - 1)]
        try:
            opening = [connection.open(link) for connection, link in zip(self._connections, links, strict=True)]
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                if failure is not None:
                    raise failure
        except BaseException:
            await self.aclose()
            await self._first.aclose()  # a connection that was cancelled before it began does not have it
            raise

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        connections, count = self._connections, len(self._connections)
        shares: dict[VectorSessions | _PooledConnection, list[EnvSlot]] = {}
        for slot in slots:
            group = slot.group
            target: VectorSessions | _PooledConnection
            # A reset moves to another connection if the server of this one stops soon.
            if group is None or (slot.kind == "reset" and group.leaving and slot.call is None):
                target = connections[slot.index % count].fresh
            else:
                target = group
            if target in shares:
                shares[target].append(slot)
            else:
                shares[target] = [slot]
        for target, share in shares.items():
            target.carry(share, batch)

    async def aclose(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._connections))


class _PooledConnection:
    """One connection, and after its end the next one."""

    def __init__(self, dial: Dial, owner: VectorState, patience_s: float, wait_s: float | None):
        self._dial = dial
        self._owner = owner
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._resumption = Resumption(dial, patience_s)
        self._current: VectorSessions | None = None
        # Connections that take no further session, but have some: their server stops, or they are being made again.
        self._former: list[VectorSessions] = []
        self._connecting = asyncio.Lock()
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def open(self, link: ClientConnectionV2 | None) -> None:
        try:
            self._current = await self._new_connection(link)
        except ConnectionLost:  # after the handshake: there is a server, and the network is bad
            self._current = await retry_connect(self._new_connection, self._patience_s)

    @property
    def fresh(self) -> VectorSessions | _PooledConnection:
        """What opens sessions: the present connection, or this, which makes another one first."""
        return self._current if self._current is not None and self._current.usable else self

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots over a new connection, when it is there."""
        refill = asyncio.get_running_loop().create_task(self._refill(slots, batch))
        self._reconnecting.add(refill)
        refill.add_done_callback(self._reconnecting.discard)

    async def aclose(self) -> None:
        for refill in list(self._reconnecting):
            refill.cancel()
        closing = [each.aclose() for each in (*self._former, self._current) if each is not None]
        await asyncio.gather(*self._reconnecting, *closing, return_exceptions=True)

    async def _refill(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Makes a new connection for slots that have none, or one that ends soon."""
        unconnected = [slot for slot in slots if slot.group is None]
        try:
            async with self._connecting:
                if self._current is None or not self._current.usable:
                    fresh = await retry_connect(self._new_connection, self._patience_s if unconnected else 0.0)
                    self._former = [each for each in (*self._former, self._current) if each and each.error is None]
                    self._current = fresh
        except OpenEnvError as error:
            for slot in unconnected:
                self._owner.settle(slot, batch, error)
            # There is no other server: theirs serves for as long as it runs.
            for old in {slot.group for slot in slots if slot.group is not None}:
                old.carry([slot for slot in slots if slot.group is old and slot.pending is batch], batch)
            self._owner.flush()
        else:
            # Some calls may have ended meanwhile, and their slots may have other calls.
            self._current.carry([slot for slot in slots if slot.pending is batch], batch)

    async def _new_connection(self, link: ClientConnectionV2 | None = None) -> VectorSessions:
        end = link or await self._dial()
        if not isinstance(end, ClientConnectionV2):
            await end.aclose()
            raise ProtocolViolation("the server spoke protocol v2 before and does so no more: close() and begin anew")
        try:
            await end.greeting(self._patience_s)
        except BaseException:
            await end.aclose()
            raise
        return VectorSessions(end, self._resumption, self._wait_s, self._owner)


class V1Pool:
    """The v1 connections of a vector (a `BatchCarrier`): one for each environment, for servers without v2.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        num_envs: How many there will be.
        owner: Takes the replies.
        patience_s: Seconds for connecting.
    """

    def __init__(
        self,
        dial: Dial,
        first: ClientConnectionV1,
        num_envs: int,
        owner: VectorState,
        patience_s: float,
    ):
        self._connections = [_V1PoolConnection(dial, patience_s) for _ in range(num_envs)]
        self._connections[0].connection = first
        self._owner = owner
        self._calls: set[asyncio.Task[None]] = set()

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        loop = asyncio.get_running_loop()
        for slot in slots:
            # A copy, since the caller may go on before it is sent.
            call = loop.create_task(self._call(slot, slot.kind, dict(slot.contents), batch))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def aclose(self) -> None:
        for call in self._calls:  # first: one that waits for a connection would get it, and not close it
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(connection.aclose() for connection in self._connections))

    async def _call(self, slot: EnvSlot, kind: CallKind, data: dict[str, Any], batch: PendingBatch) -> None:
        reply: dict[str, Any] | OpenEnvError
        try:
            reply = await self._connections[slot.index].call(kind, data)
        except SessionLost as error:
            slot.drop_session()
            reply = error
        except InvalidArgument as error:
            reply = InvalidAction(error.message)
        except OpenEnvError as error:
            reply = error
        self._owner.settle(slot, batch, reply)
        self._owner.flush()


class _V1PoolConnection:
    """The connection of one environment, and after its end the next one."""

    def __init__(self, dial: Dial, patience_s: float):
        self._dial = dial
        self._patience_s = patience_s
        self._connecting = asyncio.Lock()
        self._served = False
        self.connection: ClientConnectionV1 | None = None

    async def call(self, kind: CallKind, data: Any) -> dict[str, Any]:
        """Waits for the reply. After the connection was lost, only a reset connects anew."""
        async with self._connecting:
            connection = self.connection
            if connection is None or (connection.error is not None and kind == "reset"):
                connection = self.connection = await retry_connect(self._connect, self._patience_s)
                self._served = False
        try:
            reply = await connection.call(kind, data, None)
        except OpenEnvError as error:
            if connection.error is None or isinstance(error, SessionLost):
                raise
            raise error_after_end(error, self._served) from error
        self._served = True
        return reply

    async def aclose(self) -> None:
        if self.connection is not None:
            await self.connection.aclose()

    async def _connect(self) -> ClientConnectionV1:
        end = await self._dial()
        if isinstance(end, ClientConnectionV1):
            return end
        await end.aclose()
        raise ProtocolViolation("the server spoke only protocol v1 before: close() and begin anew to use v2")
