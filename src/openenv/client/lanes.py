"""The v2 connections that the environments of a vector share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import ConnectionLost, OpenEnvError, ProtocolViolation
from .dial import Dial
from .link import Link
from .redial import redial
from .resumption import Resumption
from .road import Road
from .seat import Seat
from .wave import Owner, Wave

__all__ = ["Lanes"]


class Lanes:
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
        first: Link,
        connections: int,
        owner: Owner,
        patience_s: float,
        wait_s: float | None = None,
    ):
        self._lanes = [_Lane(dial, owner, patience_s, wait_s) for _ in range(connections)]
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

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        count = len(self._lanes)
        if count == 1:
            self._lanes[0].carry(seats, wave)
            return
        shares: list[list[Seat]] = [[] for _ in range(count)]
        for seat in seats:
            shares[seat.index % count].append(seat)
        for lane, share in zip(self._lanes, shares, strict=True):
            if share:
                lane.carry(share, wave)

    async def aclose(self) -> None:
        await asyncio.gather(*(lane.aclose() for lane in self._lanes))


class _Lane:
    """One connection, and after its end the next one."""

    def __init__(self, dial: Dial, owner: Owner, patience_s: float, wait_s: float | None):
        self._dial = dial
        self._owner = owner
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._resumption = Resumption(dial, patience_s)
        self._road: Road | None = None
        # Roads that take no further session, but have some: their server stops, or they lost their connection.
        self._former: list[Road] = []
        self._connecting = asyncio.Lock()
        self._refills: set[asyncio.Task[None]] = set()

    async def open(self, link: Link | None) -> None:
        try:
            self._road = await self._new_road(link)
        except ConnectionLost:  # after the handshake: there is a server, and the road is bad
            self._road = await redial(self._new_road, self._patience_s)

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        road = self._road
        fresh = road if road is not None and road.usable else None
        shares: dict[Road | None, list[Seat]] = {}
        for seat in seats:
            way = seat.road
            if way is None or _moves(seat):
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
                self._refills.add(refill)
                refill.add_done_callback(self._refills.discard)

    async def aclose(self) -> None:
        for refill in list(self._refills):
            refill.cancel()
        roads = [road for road in (*self._former, self._road) if road is not None]
        await asyncio.gather(*self._refills, *(road.aclose() for road in roads), return_exceptions=True)

    async def _refill(self, seats: list[Seat], wave: Wave) -> None:
        """Finds seats a new road who have none, or one that ends soon."""
        homeless = [seat for seat in seats if seat.road is None]
        try:
            async with self._connecting:
                if self._road is None or not self._road.usable:
                    fresh = await redial(self._new_road, self._patience_s if homeless else 0.0)
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

    async def _new_road(self, link: Link | None = None) -> Road:
        end = link or await self._dial()
        if not isinstance(end, Link):
            await end.aclose()
            raise ProtocolViolation("the server spoke protocol v2 before and does so no more: close() and begin anew")
        try:
            await end.greeting(self._patience_s)
        except BaseException:
            await end.aclose()
            raise
        return Road(end, self._owner, self._resumption, self._wait_s)


def _moves(seat: Seat) -> bool:
    """Whether an episode begins that is better begun on another road."""
    return seat.kind == "reset" and seat.road is not None and seat.road.leaving and seat.call is None


def _send(seats: Sequence[Seat], wave: Wave, road: Road) -> None:
    for seat in seats:
        if seat.road is not None and seat.road is not road:
            seat.road.dismiss(seat)
    road.carry(seats, wave)
