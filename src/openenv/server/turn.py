"""One turn of the event loop: what arrives together is read first, then executed, then answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..interrupts import from_signal
from ..metrics import METER, Phase

__all__ = ["Taker", "Turn"]

logger = logging.getLogger("openenv.server")

# Requests read at most before they are executed: the sessions of so many are still in the processor's caches. Of
# 8,192 sessions that all step, a step takes the server 22.5 us of CPU, and 27.5 where all that came is read first.
MOST_REQUESTS = 32
# Replies kept back at most, and their bytes: the first of them waits for the steps of the others, and none of them
# counts yet as unsent with its connection.
MOST_REPLIES = 64
MOST_BYTES = 1024 * 1024


class Taker(Protocol):
    """Who handles a request."""

    def receive(self, frame: bytes) -> None:
        """Handles it. A reply that is there at once is passed to the turn."""

    def failed(self) -> None:
        """Handling raised what nobody expected: this connection cannot go on."""


class Turn:
    """Requests and replies of all connections of a server, kept until the event loop has read all input.

    Reading, executing and sending are three worlds. Done for one connection after the other, each finds its
    code gone from the processor's caches, and each reply finds its reader asleep again and pays for waking it.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[Taker, bytes]] = []
        self._replies: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._bytes = 0
        self._handling = False
        self._sends = 0
        self._after: list[Callable[[], None]] = []

    def request(self, taker: Taker, frame: bytes) -> None:
        """Has a frame handled when everything that is there has been read."""
        self._requests.append((taker, frame))
        if len(self._requests) == 1:
            asyncio.get_running_loop().call_soon(self.finish)
        elif len(self._requests) == MOST_REQUESTS and not self._handling:
            self.finish()

    def reply(self, transmit: Callable[[bytes], None], frame: bytes) -> None:
        """Has a frame sent, by `transmit(frame)`, with the others of this turn."""
        self._replies.append((transmit, frame))
        self._bytes += len(frame)
        if len(self._replies) >= MOST_REPLIES or self._bytes >= MOST_BYTES:
            self._send()
        elif len(self._replies) == 1 and not self._handling:
            asyncio.get_running_loop().call_soon(self._send)

    def afterwards(self, callback: Callable[[], None]) -> None:
        """Has a function called when the replies of this turn have been sent."""
        if self._handling:
            self._after.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def finish(self) -> None:
        """Handles the requests and sends the replies there are; for what must come after them in order.

        Called while requests are being handled, it only sends.
        """
        requests, self._requests = self._requests, []
        outer, self._handling = self._handling, True
        for taker, frame in requests:
            try:
                taker.receive(frame)
            except BaseException as error:  # one connection's fault must not take the others' requests along
                if from_signal(error):
                    raise
                logger.exception("a request could not be handled; its connection is closed")
                taker.failed()
        self._handling = outer
        try:
            self._send()
        finally:
            if self._after and not outer:
                callbacks, self._after = self._after, []
                for callback in callbacks:
                    callback()

    def _send(self) -> None:
        replies = self._replies
        self._bytes = 0
        began, count = 0.0, len(replies)
        if METER.on and count:
            self._sends += 1
            if not self._sends & METER.SAMPLE:
                began = time.monotonic()
        try:
            # One that closes its connection leads back here: the same queue, so nothing is overtaken.
            while replies:
                transmit, frame = replies.popleft()
                transmit(frame)
            if began:
                METER.observe_many(Phase.SEND, (time.monotonic() - began) / count, count)
        finally:
            if replies:  # one has raised: the others still leave
                asyncio.get_running_loop().call_soon(self._send)
