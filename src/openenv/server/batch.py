"""The calls of one batch, on their way back to the client."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ..protocol.codec import Body
from ..protocol.messages import Batch as Request
from ..protocol.server_v2 import ServerProtocolV2

__all__ = ["FRAME_BYTES", "Batch", "Outlet"]

# A large batch is answered in frames of about this size: the client can begin with the first.
FRAME_BYTES = 1024 * 1024
# What stands around each result in a frame: place, session, and the map itself.
AROUND_BYTES = 100


class Outlet(Protocol):
    """The connection of a batch.

    Attributes:
        protocol: How its frames are written.
        max_frame_bytes: Largest frame of results; one that is larger by itself gets a frame of its own.
    """

    protocol: ServerProtocolV2
    max_frame_bytes: int

    def send(self, frame: bytes) -> None:
        """Sends a frame, if the client is still there."""

    def answered(self, count: int) -> None:
        """So many calls have been given their replies."""

    def completed(self, batch: Batch) -> None:
        """Everything of a batch was sent."""


class Batch:
    """Gathers the results of a batch, and sends them in the order in which they come.

    One frame when all are there, or one whenever `min_ready` are, and one after `wait_s` with what there is then
    (or with the first that comes). Its key for each call is the call's place. Results that come in the same turn of
    the event loop leave together, so there may be more than `min_ready` in a frame.

    Args:
        outlet: Where frames are sent.
        request: What was asked.

    Attributes:
        id: Of the request.
        count: Calls in it.
        due: When its resets and steps must be answered, if they do not say themselves.
    """

    __slots__ = (
        "_due",
        "_enough",
        "_left",
        "_most",
        "_outlet",
        "_ready",
        "_results",
        "_size",
        "_timer",
        "count",
        "due",
        "id",
    )

    def __init__(self, outlet: Outlet, request: Request):
        self.id = request.id
        self.count = len(request.calls)
        self.due = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        self._outlet = outlet
        self._most = outlet.max_frame_bytes
        self._left = self.count
        self._enough = self._ready = min(request.min_ready or self._left, self._left)
        self._results: list[tuple[int, str | None, Body]] = []
        self._size = 0
        self._due: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        if request.wait_s is not None:
            self._timer = asyncio.get_running_loop().call_later(request.wait_s, self._time_is_up)

    def answer(self, key: int, session: str | None, body: Body) -> None:
        """Takes the result of one call."""
        size = self._size + len(body.fields) + AROUND_BYTES
        if size > self._most and self._results:
            self._flush()
            size = len(body.fields) + AROUND_BYTES
        self._results.append((key, session, body))
        self._size = size
        self._left -= 1
        self._ready -= 1
        if not self._left:
            self._flush()
        elif self._ready <= 0 and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._flush_ready)

    def drop(self) -> None:
        """The connection has ended: nothing is sent any more."""
        self._forget_due()
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._forget_due()
        results, self._results = self._results, []
        self._size = 0
        self._outlet.answered(len(results))
        self._outlet.send(self._outlet.protocol.results(self.id, results, self._left > 0))
        if not self._left:
            self.drop()
            self._outlet.completed(self)

    def _flush_ready(self) -> None:
        self._ready = self._enough
        self._flush()

    def _forget_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _time_is_up(self) -> None:
        if self._results:
            self._flush_ready()
        else:
            self._ready = 1
