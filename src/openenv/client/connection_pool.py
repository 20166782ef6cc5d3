"""The connections of a vector: a few that all environments share (v2), or one for each environment (v1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from .._backoff import retry_connect
from ..errors import ConnectionLost, InvalidAction, InvalidArgument, OpenEnvError, ProtocolViolation, SessionLost
from .connection import CallKind, ClientConnectionV1, ClientConnectionV2, Dial, error_after_end
from .resumable_connection import ResumableConnection
from .session import Resumption
from .vector_state import EnvSlot, PendingBatch, VectorState


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
        count = len(self._connections)
        if count == 1:
            self._connections[0].carry(slots, batch)
            return
        shares: list[list[EnvSlot]] = [[] for _ in range(count)]
        for slot in slots:
            shares[slot.index % count].append(slot)
        for connection, share in zip(self._connections, shares, strict=True):
            if share:
                connection.carry(share, batch)

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
        self._current: ResumableConnection | None = None
        # Connections that take no further session, but have some: their server stops, or they are being made again.
        self._former: list[ResumableConnection] = []
        self._connecting = asyncio.Lock()
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def open(self, link: ClientConnectionV2 | None) -> None:
        try:
            self._current = await self._new_connection(link)
        except ConnectionLost:  # after the handshake: there is a server, and the network is bad
            self._current = await retry_connect(self._new_connection, self._patience_s)

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        fresh = self._current if self._current is not None and self._current.usable else None
        shares: dict[ResumableConnection | None, list[EnvSlot]] = {}
        for slot in slots:
            target = slot.connection
            # A reset moves to another connection if the server of this one stops soon.
            if target is None or (slot.kind == "reset" and target.leaving and slot.call is None):
                target = fresh
            if target in shares:
                shares[target].append(slot)
            else:
                shares[target] = [slot]
        for target, share in shares.items():
            if target is not None:
                _send(share, batch, target)
            else:
                refill = asyncio.get_running_loop().create_task(self._refill(share, batch))
                self._reconnecting.add(refill)
                refill.add_done_callback(self._reconnecting.discard)

    async def aclose(self) -> None:
        for refill in list(self._reconnecting):
            refill.cancel()
        closing = [each.aclose() for each in (*self._former, self._current) if each is not None]
        await asyncio.gather(*self._reconnecting, *closing, return_exceptions=True)

    async def _refill(self, slots: list[EnvSlot], batch: PendingBatch) -> None:
        """Makes a new connection for slots that have none, or one that ends soon."""
        unconnected = [slot for slot in slots if slot.connection is None]
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
            for old in {slot.connection for slot in slots if slot.connection is not None}:
                old.carry([slot for slot in slots if slot.connection is old and slot.pending is batch], batch)
            self._owner.flush()
        else:
            # Some calls may have ended meanwhile, and their slots may have other calls.
            _send([slot for slot in slots if slot.pending is batch], batch, self._current)

    async def _new_connection(self, link: ClientConnectionV2 | None = None) -> ResumableConnection:
        end = link or await self._dial()
        if not isinstance(end, ClientConnectionV2):
            await end.aclose()
            raise ProtocolViolation("the server spoke protocol v2 before and does so no more: close() and begin anew")
        try:
            await end.greeting(self._patience_s)
        except BaseException:
            await end.aclose()
            raise
        return ResumableConnection(end, self._owner, self._resumption, self._wait_s)


def _send(slots: Sequence[EnvSlot], batch: PendingBatch, connection: ResumableConnection) -> None:
    for slot in slots:
        if slot.connection is not None and slot.connection is not connection:
            slot.connection.dismiss(slot)
    connection.carry(slots, batch)


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
