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
from .vector_state import BatchOwner, EnvSlot, PendingBatch


class ConnectionPool:
    """Several lanes (`wave.Carrier`); environment i takes lane i modulo their number.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        connections: How many lanes there are.
        owner: Hears of the replies.
        patience_s: Seconds for connecting.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.
    """

    def __init__(
        self,
        dial: Dial,
        first: ClientConnectionV2,
        connections: int,
        owner: BatchOwner,
        patience_s: float,
        wait_s: float | None = None,
    ):
        self._lanes = [_PooledConnection(dial, owner, patience_s, wait_s) for _ in range(connections)]
        self._first = first

    async def open(self) -> None:
        """Connects all lanes; if one cannot be, none is left."""
        links = [self._first, *[None] * (len(self._lanes) - 1)]
        try:
            opening = [lane.open(link) for lane, link in zip(self._lanes, links, strict=True)]
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                if failure is not None:
                    raise failure
        except BaseException:
            await self.aclose()
            await self._first.aclose()  # a lane that was cancelled before it began does not have it
            raise

    def carry(self, seats: Sequence[EnvSlot], wave: PendingBatch) -> None:
        count = len(self._lanes)
        if count == 1:
            self._lanes[0].carry(seats, wave)
            return
        shares: list[list[EnvSlot]] = [[] for _ in range(count)]
        for seat in seats:
            shares[seat.index % count].append(seat)
        for lane, share in zip(self._lanes, shares, strict=True):
            if share:
                lane.carry(share, wave)

    async def aclose(self) -> None:
        await asyncio.gather(*(lane.aclose() for lane in self._lanes))


class _PooledConnection:
    """One connection, and after its end the next one."""

    def __init__(self, dial: Dial, owner: BatchOwner, patience_s: float, wait_s: float | None):
        self._dial = dial
        self._owner = owner
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._resumption = Resumption(dial, patience_s)
        self._road: ResumableConnection | None = None
        # Roads that take no further session, but have some: their server stops, or they lost their connection.
        self._former: list[ResumableConnection] = []
        self._connecting = asyncio.Lock()
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def open(self, link: ClientConnectionV2 | None) -> None:
        try:
            self._road = await self._new_road(link)
        except ConnectionLost:  # after the handshake: there is a server, and the road is bad
            self._road = await retry_connect(self._new_road, self._patience_s)

    def carry(self, seats: Sequence[EnvSlot], wave: PendingBatch) -> None:
        road = self._road
        fresh = road if road is not None and road.usable else None
        shares: dict[ResumableConnection | None, list[EnvSlot]] = {}
        for seat in seats:
            way = seat.road
            if way is None or _should_move(seat):
                way = fresh
            if way in shares:
                shares[way].append(seat)
            else:
                shares[way] = [seat]
        for way, share in shares.items():
            if way is not None:
                _send(share, wave, way)
            else:
                refill = asyncio.get_running_loop().create_task(self._refill(share, wave))
                self._reconnecting.add(refill)
                refill.add_done_callback(self._reconnecting.discard)

    async def aclose(self) -> None:
        for refill in list(self._reconnecting):
            refill.cancel()
        roads = [road for road in (*self._former, self._road) if road is not None]
        await asyncio.gather(*self._reconnecting, *(road.aclose() for road in roads), return_exceptions=True)

    async def _refill(self, seats: list[EnvSlot], wave: PendingBatch) -> None:
        """Finds seats a new road who have none, or one that ends soon."""
        homeless = [seat for seat in seats if seat.road is None]
        try:
            async with self._connecting:
                if self._road is None or not self._road.usable:
                    fresh = await retry_connect(self._new_road, self._patience_s if homeless else 0.0)
                    self._former = [road for road in (*self._former, self._road) if road and road.error is None]
                    self._road = fresh
        except OpenEnvError as error:
            for seat in homeless:
                self._owner.settle(seat, wave, error)
            # There is no other server: theirs serves for as long as it does.
            for road in {seat.road for seat in seats if seat.road is not None}:
                road.carry([seat for seat in seats if seat.road is road and seat.pending is wave], wave)
            self._owner.flush()
        else:
            # Some may have given up meanwhile, and have other calls by now.
            _send([seat for seat in seats if seat.pending is wave], wave, self._road)

    async def _new_road(self, link: ClientConnectionV2 | None = None) -> ResumableConnection:
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


def _should_move(seat: EnvSlot) -> bool:
    """Whether an episode begins that is better begun on another road."""
    return seat.kind == "reset" and seat.road is not None and seat.road.leaving and seat.call is None


def _send(seats: Sequence[EnvSlot], wave: PendingBatch, road: ResumableConnection) -> None:
    for seat in seats:
        if seat.road is not None and seat.road is not road:
            seat.road.dismiss(seat)
    road.carry(seats, wave)


class V1Pool:
    """Carries calls one by one (`wave.Carrier`), for servers that do not speak v2.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        num_envs: How many there will be.
        owner: Hears of the replies.
        patience_s: Seconds for connecting.
    """

    def __init__(
        self,
        dial: Dial,
        first: ClientConnectionV1,
        num_envs: int,
        owner: BatchOwner,
        patience_s: float,
    ):
        self._solos = [_V1PoolConnection(dial, patience_s) for _ in range(num_envs)]
        self._solos[0].conversation = first
        self._owner = owner
        self._calls: set[asyncio.Task[None]] = set()

    def carry(self, seats: Sequence[EnvSlot], wave: PendingBatch) -> None:
        loop = asyncio.get_running_loop()
        for seat in seats:
            # A copy, since the caller may go on before it is sent.
            call = loop.create_task(self._call(seat, seat.kind, dict(seat.contents), wave))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def aclose(self) -> None:
        for call in self._calls:  # first: one that waits for a connection would have it and nobody to close it
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(solo.aclose() for solo in self._solos))

    async def _call(self, seat: EnvSlot, kind: CallKind, data: dict[str, Any], wave: PendingBatch) -> None:
        reply: dict[str, Any] | OpenEnvError
        try:
            reply = await self._solos[seat.index].call(kind, data)
        except SessionLost as error:
            seat.drop_session()
            reply = error
        except InvalidArgument as error:
            reply = InvalidAction(error.message)
        except OpenEnvError as error:
            reply = error
        self._owner.settle(seat, wave, reply)
        self._owner.flush()


class _V1PoolConnection:
    """The connection of one environment, and after its end the next one."""

    def __init__(self, dial: Dial, patience_s: float):
        self._dial = dial
        self._patience_s = patience_s
        self._connecting = asyncio.Lock()
        self._served = False
        self.conversation: ClientConnectionV1 | None = None

    async def call(self, kind: CallKind, data: Any) -> dict[str, Any]:
        """Waits for the reply. After the connection was lost, only a reset connects anew."""
        async with self._connecting:
            conversation = self.conversation
            if conversation is None or (conversation.error is not None and kind == "reset"):
                conversation = self.conversation = await retry_connect(self._connect, self._patience_s)
                self._served = False
        try:
            reply = await conversation.call(kind, data, None)
        except OpenEnvError as error:
            if conversation.error is None or isinstance(error, SessionLost):
                raise
            raise error_after_end(error, self._served) from error
        self._served = True
        return reply

    async def aclose(self) -> None:
        if self.conversation is not None:
            await self.conversation.aclose()

    async def _connect(self) -> ClientConnectionV1:
        end = await self._dial()
        if isinstance(end, ClientConnectionV1):
            return end
        await end.aclose()
        raise ProtocolViolation("the server spoke only protocol v1 before: close() and begin anew to use v2")
