"""Many sessions at once that stay open, as frames and nothing else: what is measured is not the client."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from openenv._processes import raise_file_limit

__all__ = ["Crowd", "Seat", "spread"]

PATIENCE_S = 60.0
_RESET = b'{"type":"reset","data":{}}'
_STEP = b'{"type":"step","data":{"wait_seconds":0.0}}'
_CLOSE = b'{"type":"close"}'


class Seat(WSListener):
    """One session of the benchmark environment.

    Attributes:
        connect_s: How long its connection took.
        host: Which server has it, by the name of its machine; "" before its reset, or when that failed.
        failure: What went wrong last.
    """

    def __init__(self) -> None:
        self.connect_s = 0.0
        self.host = ""
        self.failure = ""
        self._transport: WSTransport | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def open(self, url: str, key: str | None) -> None:
        """Connects and resets."""
        began = time.perf_counter()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            await ws_connect(
                lambda: self,
                f"{url.replace('http', 'ws', 1)}/ws",
                extra_headers=headers,
                websocket_handshake_timeout=PATIENCE_S,
            )
            self.connect_s = time.perf_counter() - began
            self.host = (await self._call(_RESET))["observation"]["host_url"]
        except Exception as error:  # noqa: BLE001 - one of thousands; it is counted
            self.failure = repr(error)

    async def step(self) -> bool:
        """Steps, and says whether it did, where it did before."""
        try:
            return bool((await self._call(_STEP))["observation"]["host_url"] == self.host)
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = repr(error)
            return False

    def leave(self) -> None:
        """Ends the session."""
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, _CLOSE)
            self._transport.disconnect()

    async def _call(self, request: bytes) -> dict[str, Any]:
        if self._transport is None:
            raise ConnectionError(self.failure or "it is not connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.send(WSMsgType.TEXT, request)
        data: dict[str, Any] = await asyncio.wait_for(self._answer, PATIENCE_S)
        return data

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        elif self._answer is not None and not self._answer.done():
            message = json.loads(frame.get_payload_as_bytes())
            if message["type"] == "observation":
                self._answer.set_result(message["data"])
            else:
                self._answer.set_exception(RuntimeError(str(message)))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self.failure = self.failure or "the connection was closed"
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(self.failure))


class Crowd:
    """Sessions that were opened all at once, and are open until `async with` is left.

    Args:
        urls: Where; taken in turn.
        count: How many.
        key: The servers' key.
    """

    def __init__(self, urls: Sequence[str], count: int, key: str | None):
        raise_file_limit()
        self.seats = [Seat() for _ in range(count)]
        self._urls = urls
        self._key = key

    async def __aenter__(self) -> Self:
        calls = (seat.open(self._urls[i % len(self._urls)], self._key) for i, seat in enumerate(self.seats))
        await asyncio.gather(*calls)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for seat in self.seats:
            seat.leave()
        await asyncio.sleep(0)

    @property
    def hosts(self) -> Counter[str]:
        """How many sessions each server has; "" for those that there are not."""
        return Counter(seat.host for seat in self.seats)

    @property
    def failures(self) -> Counter[str]:
        """What has gone wrong, and how often."""
        return Counter(seat.failure for seat in self.seats if seat.failure)

    def connect_s(self, share: float) -> float:
        """The time within which that share of the connections was made."""
        times = sorted(seat.connect_s for seat in self.seats)
        return times[min(len(times) - 1, int(len(times) * share))]

    async def step(self) -> list[Seat]:
        """Has every session step; returns those that could not."""
        done = await asyncio.gather(*(seat.step() for seat in self.seats))
        return [seat for seat, good in zip(self.seats, done, strict=True) if not good]


def spread(hosts: Counter[str]) -> float:
    """By how much the busiest server has more than the idlest one, of the mean of all."""
    return (max(hosts.values()) - min(hosts.values())) / (hosts.total() / len(hosts))
