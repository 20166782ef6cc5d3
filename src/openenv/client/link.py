"""One v2 connection: many sessions, and for each request its own reply, whatever the order they come in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import MessageTooLarge, OpenEnvError, ProtocolViolation
from ..protocol.client_v2 import ClientProtocolV2, Event, Request2
from ..protocol.codec import Codec
from .transport import Transport
from .way import ANY, Way

__all__ = ["Call", "Link", "Waiter"]

Payload = dict[str, Any]
# No connection that needs heartbeats lasts a day without one, and none needs more than a hundred a second.
LONGEST_PERIOD_S = 86_400
SHORTEST_PERIOD_S = 0.01


class Waiter(Protocol):
    """Who hears of a request."""

    def answer(self, payload: Payload, more: bool, /) -> None:
        """One frame of its reply, and whether more follow."""

    def fail(self, error: OpenEnvError, /) -> None:
        """The error that is the answer, or that the link ends with; `Link.error` tells which."""


class Call(asyncio.Future[Payload]):
    """The reply of one request. To cancel it is to ask the server to stop the work."""

    request: Request2

    def __init__(self, link: Link):
        super().__init__(loop=link.loop)
        self._link = link

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self._link.cancel(self.request)
        return True

    def answer(self, payload: Payload, _more: bool) -> None:
        if not self.done():
            self.set_result(payload)

    def fail(self, error: OpenEnvError) -> None:
        if not self.done():
            self.set_exception(error)


class _Stream:
    """Who hears each frame of a reply."""

    __slots__ = ("answer", "fail")

    def __init__(self, on_frame: Callable[[Payload, bool], None], on_error: Callable[[OpenEnvError], None]):
        self.answer = on_frame
        self.fail = on_error


def _ignore(*_: object) -> None:
    """What nobody waits for."""


_NOBODY = _Stream(_ignore, _ignore)


class Link:
    """The client's end of a v2 connection. Belongs to the event loop that made it.

    Args:
        codec: How its frames are written.
        max_message_bytes: Largest message that is sent.

    Attributes:
        error: Why it has ended; None while it lasts.
        hello: What the server said of itself and its limits; None before it came.
        draining: The server has announced that it stops: it opens no further session.
        on_event: Hears of events of sessions, as `(name, fields)`.
        on_end: Hears why the link has ended, once, after all requests have.
        check: What is still to be found out before the link is used, once the hello is there; `greeting` awaits it
            and raises what it raises. None: nothing.
    """

    def __init__(self, codec: Codec, max_message_bytes: int):
        self.loop = asyncio.get_running_loop()
        self.error: OpenEnvError | None = None
        self.hello: Mapping[str, Any] | None = None
        self._way = ANY
        self.draining = False
        self.on_event: Callable[[str, Payload], None] | None = None
        self.on_end: Callable[[OpenEnvError], None] | None = None
        self.check: Callable[[Link], Awaitable[None]] | None = None
        self._protocol = ClientProtocolV2(codec)
        self._max_bytes = max_message_bytes
        self._limit = "max_message_size_mb"
        self._transport: Transport | None = None
        self._greeted = asyncio.Event()
        self._spoken = False
        self._beat: asyncio.TimerHandle | None = None

    def limit(self, name: str) -> int | None:
        """One of the limits that the server's hello names; None if it does not, or has not come."""
        limits = (self.hello or {}).get("limits")
        limit = limits.get(name) if isinstance(limits, Mapping) else None
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def way(self) -> Way:
        """What leads back to its server and worker process."""
        worker = (self.hello or {}).get("worker")
        return self._way._replace(worker=worker if isinstance(worker, str) else None)

    def begin(self, transport: Transport) -> None:
        """Takes the connection, whose frames it may have received already."""
        self._transport, self._way = transport, transport.way
        if self.error is not None:  # it came together with the answer to the handshake
            transport.drop()

    async def greeting(self, timeout_s: float) -> Mapping[str, Any]:
        """What the server says of itself. Raises why the link ended instead, or `ProtocolViolation` for silence."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._greeted.wait()
        except TimeoutError:
            self.end(ProtocolViolation(f"the server agreed to protocol v2 and said no hello within {timeout_s:g} s"))
        if self.error is not None:
            raise self.error
        assert self.hello is not None
        check, self.check = self.check, None
        if check is not None:
            await check(self)
        return self.hello

    def request(self, op: str, fields: Mapping[str, Any]) -> Call:
        """Sends a request.

        Returns:
            Its reply, or the error that the server answers with or that the link ends with.

        Raises:
            MessageTooLarge: It is over the limit, and was not sent.
            OpenEnvError: The link has ended, or the fields cannot be written.
        """
        call = Call(self)
        call.request = self.ask(op, fields, call)
        return call

    def stream(
        self,
        op: str,
        fields: Mapping[str, Any],
        on_frame: Callable[[Payload, bool], None],
        on_error: Callable[[OpenEnvError], None],
    ) -> Request2:
        """Sends a request that is answered by one frame or several. Raises as `request` does.

        Args:
            op: What to do.
            fields: The request's other fields.
            on_frame: Gets each frame as it comes, perhaps before this returns, and whether more follow.
            on_error: Gets the error that is the answer, or that the link ends with.
        """
        return self.ask(op, fields, _Stream(on_frame, on_error))

    def ask(self, op: str, fields: Mapping[str, Any], waiter: Waiter) -> Request2:
        """Sends a request, as `request` does.

        Args:
            op: What to do.
            fields: The request's other fields.
            waiter: Hears of it, perhaps before this returns.
        """
        if self.error is not None:
            raise self.error
        assert self._transport is not None
        frame, request = self._protocol.request(op, fields, waiter)
        if len(frame) > self._max_bytes:
            self._protocol.withdraw(request)
            raise MessageTooLarge(
                f"a message of {len(frame)} bytes is over the limit of {self._max_bytes} ({self._limit})"
            )
        self._spoken = True
        self._transport.send(frame)
        return request

    def post(self, op: str, fields: Mapping[str, Any]) -> None:
        """Sends a request whose reply nobody waits for; nothing happens on a link that has ended."""
        if self.error is None:
            self.ask(op, fields, _NOBODY)

    def cancel(self, request: Request2) -> None:
        """Drops the reply of a request, and asks the server to stop its work."""
        request.abandoned = True
        self.post("cancel", {"target": request.id})

    def end(self, error: OpenEnvError) -> None:
        """Closes at once: the connection is of no further use, for the reason that every request is told."""
        if self.error is None:
            self.lost(error)
            if self._transport is not None:  # else it is still being made
                self._transport.drop()

    async def aclose(self, sessions: Sequence[str] = ()) -> None:
        """Closes the connection. What is still asked then fails.

        Args:
            sessions: Those that it has. They are told to end first: without that, they would wait for their client
                to come back.
        """
        if self._transport is None:
            return
        with contextlib.suppress(OpenEnvError):  # the link may end meanwhile
            self._dismiss([{"op": "close", "session": session} for session in sessions])
        await self._transport.aclose()

    # What the transport calls.

    def received(self, frame: bytes) -> None:
        if self.error is not None:
            return
        try:
            message = self._protocol.receive(frame)
        except ProtocolViolation as violation:
            self.end(violation)
            return
        if isinstance(message, Event):
            self._heard(message.name, message.fields)
            return
        request = message.request
        if request is None:
            # One of our frames could not be read, and nobody can say which: somebody would wait forever.
            self.end(message.error or ProtocolViolation("the server answered what was never asked"))
            return
        waiter = request.waiter
        if not message.more:
            request.waiter = None  # it knows the request: a circle would keep each reply until the next collection
        if request.abandoned:
            return
        if message.error is None:
            waiter.answer(message.payload, message.more)
        else:
            waiter.fail(message.error)

    def lost(self, error: OpenEnvError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._greeted.set()
        if self._beat is not None:
            self._beat.cancel()
        for request in self._protocol.abandon_all():
            request.waiter.fail(error)
        if self.on_end is not None:
            self.on_end(error)

    def _dismiss(self, closes: list[Payload]) -> None:
        most = self.limit("max_batch") or 1
        for begin in range(0, len(closes), most):
            self._dismiss_together(closes[begin : begin + most])

    def _dismiss_together(self, closes: list[Payload]) -> None:
        if len(closes) == 1:
            self.post("close", {"session": closes[0]["session"]})
            return
        try:
            self.post("batch", {"calls": closes})
        except MessageTooLarge:
            half = len(closes) // 2
            self._dismiss_together(closes[:half])
            self._dismiss_together(closes[half:])

    def _heard(self, name: str, fields: Payload) -> None:
        if name == "hello":
            if self.hello is not None:
                return  # another one would only add a heartbeat
            self.hello = fields
            limit = self.limit("max_message_bytes")
            if limit is not None and limit < self._max_bytes:
                self._max_bytes, self._limit = limit, "the server's max_message_mb, OPENENV_MAX_MESSAGE_MB"
            self._greeted.set()
            self._keep_alive()
        elif name == "draining":
            self.draining = True
        elif self.on_event is not None:
            self.on_event(name, fields)

    def _keep_alive(self) -> None:
        """Says something in every period: some tunnels drop pings, and silence costs a session its lease."""
        if self.error is not None:
            return
        period = (self.hello or {}).get("heartbeat_s")
        if not isinstance(period, (int, float)) or not 0 < period <= LONGEST_PERIOD_S:
            return
        period = max(period, SHORTEST_PERIOD_S)
        if self._beat is not None and not self._spoken:
            self.post("heartbeat", {})
        self._spoken = False
        # Twice a period: what was said just after one look is nearly two of these intervals old at the one that finds
        # silence.
        self._beat = self.loop.call_later(period / 2, self._keep_alive)
