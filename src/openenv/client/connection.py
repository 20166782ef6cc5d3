"""One connection to a server: many sessions with protocol v2, one with v1."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from .._shared_memory import digest_of, open_segment
from ..errors import (
    CapacityError,
    FactoryFailed,
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
    SessionLost,
    StepTimeout,
)
from ..protocol.client import Answer, ClientProtocol, ClientProtocolV2, Event, Request, error_of
from ..protocol.codecs import Codec, codec_of
from ..protocol.messages import SharedMemoryOffer
from ..protocol.shared_arrays import SharedArrayReader
from .endpoints import ANY_SERVER, Affinity
from .payloads import unwritable_error

if TYPE_CHECKING:
    from .session import ResumableSession

LATE_S = 0.25
"""Seconds after a deadline in which the client still waits for the server's own `StepTimeout`."""
# The protocol's limits of a deadline.
SHORTEST_S, LONGEST_S = 0.001, 86_400.0


def deadline_of(due: float, now: float) -> float:
    """Seconds that are left until a deadline, within the protocol's limits."""
    return min(LONGEST_S, max(SHORTEST_S, due - now))


def too_large(size: int, most: int, setting: str = "max_message_size_mb") -> MessageTooLarge:
    """The error for a message that is not sent."""
    return MessageTooLarge(f"a message of {size} bytes is over the limit of {most} ({setting})")


class Receiver(Protocol):
    """Takes the frames of a connection. Called on the event loop that made it."""

    def received(self, frame: bytes | memoryview) -> None:
        """One frame has come. A view is valid during the call."""

    def lost(self, error: OpenEnvError) -> None:
        """The connection has ended; nothing follows."""


class Transport(Protocol):
    """An open connection to a server.

    Attributes:
        subprotocol: Agreed on in the handshake; None for protocol v1.
        affinity: Its server, route and worker.
    """

    @property
    def subprotocol(self) -> str | None: ...

    @property
    def affinity(self) -> Affinity: ...

    def send(self, frame: bytes) -> None:
        """Sends one frame, binary or text as the subprotocol needs.

        Does nothing if the connection has ended: the receiver knows.
        """

    def drop(self) -> None:
        """Closes at once, without waiting."""

    async def aclose(self) -> None:
        """Closes gracefully, within a bounded time. May be called repeatedly."""


Connect = Callable[[Callable[[str | None], Receiver]], Awaitable[Transport]]
"""Opens a connection. The receiver is made when the subprotocol is known, before the first frame is read."""


CallKind = Literal["reset", "step", "state", "fork", "restore", "tasks", "mcp"]


class ClientSession(Protocol):
    """One session of an environment, on the event loop that opened it.

    Attributes:
        error: Why the session ended; None while it lasts.
    """

    error: OpenEnvError | None

    @property
    def leaving(self) -> bool:
        """Whether its server ends it soon, so the next episode should begin elsewhere."""

    @property
    def resumable(self) -> ResumableSession | None:
        """The session itself if it speaks protocol v2; None for v1."""

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        """Sends a request and waits for its reply; concurrent calls are executed in order.

        Args:
            kind: What to do; fork, restore and tasks need protocol v2.
            data: Arguments of a reset, the action of a step, or the fields of another request; None for state.
            timeout_s: Seconds to wait; None waits for as long as the connection lasts.

        Returns:
            The observation payload (`observation`, `reward`, `done`, ...), the state's fields, the `result` or
            `error` of mcp, or the reply to another request.

        Raises:
            MessageTooLarge: The request is over the limit, and was not sent.
            StepTimeout: No reply in time. The reply is dropped when it comes, and later calls get their own.
            OpenEnvError: The error that the server reported, or `SessionLost` when the session has ended.
        """

    async def aclose(self) -> None:
        """Ends the session and its connection, within a bounded time."""


Payload = dict[str, Any]
# No connection that needs heartbeats lasts a day without one, and none needs more than a hundred a second.
LONGEST_PERIOD_S = 86_400
SHORTEST_PERIOD_S = 0.01


class Waiter(Protocol):
    """Takes the reply to a request."""

    def answer(self, payload: Payload, more: bool, /) -> None:
        """One frame of its reply, and whether more follow."""

    def fail(self, error: OpenEnvError, /) -> None:
        """The server's error reply, or the link's error (then `ClientConnectionV2.error` is set)."""


class ReplyFuture(asyncio.Future[Payload]):
    """The reply to one request. Cancelling it asks the server to stop the work."""

    request: Request

    def __init__(self, link: ClientConnectionV2):
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


class Callbacks(NamedTuple):
    """A `Waiter` of two functions."""

    answer: Callable[[Payload, bool], None]
    fail: Callable[[OpenEnvError], None]


def _ignore(*_: object) -> None:
    """Drops a reply."""


_IGNORE_REPLY = Callbacks(_ignore, _ignore)


class ClientConnectionV2:
    """The client's end of a v2 connection. Belongs to the event loop that made it.

    Args:
        codec: Writes and reads its frames.
        max_message_bytes: Largest message that is sent.

    Attributes:
        error: Why it has ended; None while it lasts.
        hello: The server's first message, with its limits; None before it came.
        draining: The server has announced that it stops: it opens no further session.
        on_event: Called with each event of a session, as `(name, fields)`.
        on_end: Called once with the error when the link has ended, after all requests have failed.
        check: Checks the hello before the link is used; `greeting` awaits it and raises its error.
    """

    def __init__(self, codec: Codec, max_message_bytes: int):
        self.loop = asyncio.get_running_loop()
        self.error: OpenEnvError | None = None
        self.hello: Mapping[str, Any] | None = None
        self._affinity = ANY_SERVER
        self.draining = False
        self.on_event: Callable[[str, Payload], None] | None = None
        self.on_end: Callable[[OpenEnvError], None] | None = None
        self.check: Callable[[ClientConnectionV2], Awaitable[None]] | None = None
        self._protocol = ClientProtocolV2(codec)
        self._max_bytes = max_message_bytes
        self._limit = "max_message_size_mb"
        self._transport: Transport | None = None
        self._greeted = asyncio.Event()
        self._spoken = False
        self._beat: asyncio.TimerHandle | None = None
        self._memory_offer: SharedMemoryOffer | None = None
        self._reader: SharedArrayReader | None = None
        self._copied = 0

    def limit(self, name: str) -> int | None:
        """A limit from the server's hello; None if it is missing, or before the hello."""
        limits = (self.hello or {}).get("limits")
        limit = limits.get(name) if isinstance(limits, Mapping) else None
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def affinity(self) -> Affinity:
        """The server and worker process that it leads to."""
        worker = (self.hello or {}).get("worker")
        return self._affinity._replace(worker=worker if isinstance(worker, str) else None)

    def begin(self, transport: Transport) -> None:
        """Takes the connection. Its first frames may have been received already."""
        self._transport, self._affinity = transport, transport.affinity
        if self.error is not None:  # it came with the answer to the handshake
            transport.drop()

    async def greeting(self, timeout_s: float) -> Mapping[str, Any]:
        """Waits for the hello. Raises the link's error, or `ProtocolViolation` if no hello comes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._greeted.wait()
        except TimeoutError:
            self.end(ProtocolViolation(f"the server agreed to protocol v2 but sent no hello within {timeout_s:g} s"))
        if self.error is not None:
            raise self.error
        assert self.hello is not None
        check, self.check = self.check, None
        if check is not None:
            await check(self)
        return self.hello

    def request(self, op: str, fields: Mapping[str, Any]) -> ReplyFuture:
        """Sends a request.

        Returns:
            A future of the reply, which fails with the server's or the link's error.

        Raises:
            MessageTooLarge: It is over the limit, and was not sent.
            OpenEnvError: The link has ended, or the fields cannot be written.
        """
        call = ReplyFuture(self)
        call.request = self.ask(op, fields, call)
        return call

    def ask(self, op: str, fields: Mapping[str, Any], waiter: Waiter) -> Request:
        """Sends a request. Raises as `request` does.

        Args:
            op: What to do.
            fields: The request's other fields.
            waiter: Takes the reply, in one frame or several, perhaps before this returns.
        """
        if self.error is not None:
            raise self.error
        assert self._transport is not None
        if self._copied:
            fields = {**fields, "copied": self._copied}
        frame, request = self._protocol.request(op, fields, waiter)
        if len(frame) > self._max_bytes:
            self._protocol.withdraw(request)
            raise too_large(len(frame), self._max_bytes, self._limit)
        self._spoken = True
        self._transport.send(frame)
        return request

    def post(self, op: str, fields: Mapping[str, Any]) -> None:
        """Sends a request and ignores its reply; does nothing on a link that has ended."""
        if self.error is None:
            self.ask(op, fields, _IGNORE_REPLY)

    def borrow_arrays(self) -> None:
        """From now on, large arrays in replies to batches are valid until `Waiter.answer` returns: it copies them.

        Expects large arrays: asks for shared memory before the first one.
        """
        if self._reader is not None:
            self._reader.borrow()
            if self._memory_offer is not None:
                self._ask_for_memory(self._memory_offer, self._reader)

    @property
    def has_borrowed(self) -> bool:
        """Whether the last frame had such arrays."""
        return self._reader is not None and self._reader.has_borrowed

    def own(self, payload: Payload) -> None:
        """Puts copies in place of such arrays."""
        if self._reader is not None:
            self._reader.owned(payload)

    def cancel(self, request: Request) -> None:
        """Drops the reply of a request, and asks the server to stop its work."""
        request.abandoned = True
        self.post("cancel", {"target": request.id})

    def end(self, error: OpenEnvError) -> None:
        """Closes at once; every request fails with the error."""
        if self.error is None:
            self.lost(error)
            if self._transport is not None:  # else it is still connecting
                self._transport.drop()

    async def aclose(self, sessions: Sequence[str] = ()) -> None:
        """Closes the connection; requests without a reply fail.

        Args:
            sessions: Sessions to end first: otherwise they would wait for their client to come back.
        """
        if self._transport is None:
            return
        closes = [{"op": "close", "session": session} for session in sessions]
        most = self.limit("max_batch") or 1
        with contextlib.suppress(OpenEnvError):  # the link may end meanwhile
            for begin in range(0, len(closes), most):
                self._dismiss(closes[begin : begin + most])
        await self._transport.aclose()

    # Called by the transport.

    def received(self, frame: bytes | memoryview) -> None:
        if self.error is not None:
            return
        try:
            message = self._protocol.receive(frame)
        except ProtocolViolation as violation:
            self.end(violation)
            return
        reader = self._reader
        if reader is not None and self._memory_offer is not None and reader.has_large:
            self._ask_for_memory(self._memory_offer, reader)
        self._deliver(message)
        if reader is not None:  # not before: what the server sends next may overwrite arrays that are not copied yet
            self._copied = reader.copied

    def _deliver(self, message: Answer | Event) -> None:
        if isinstance(message, Event):
            if self.has_borrowed:
                self.own(message.fields)
            self._on_event(message.name, message.fields)
            return
        request = message.request
        if self.has_borrowed and message.error is not None:
            self.own(message.error.data)
        if request is None:
            # The server could not read one of our frames, and cannot say which: its caller would wait forever.
            self.end(message.error or ProtocolViolation("the server sent a reply to no request"))
            return
        waiter = request.waiter
        if not message.more:
            request.waiter = None  # break the reference cycle: the waiter knows the request
        if request.abandoned:
            return
        if message.error is None:
            if request.op != "batch" and self.has_borrowed:
                self.own(message.payload)
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
        if self._reader is not None:
            self._reader.use(memoryview(b""))
        for request in self._protocol.abandon_all():
            request.waiter.fail(error)
        if self.on_end is not None:
            self.on_end(error)

    def _dismiss(self, closes: list[Payload]) -> None:
        """Ends sessions by one message, or by several if that is too large."""
        if len(closes) == 1:
            self.post("close", {"session": closes[0]["session"]})
            return
        try:
            self.post("batch", {"calls": closes})
        except MessageTooLarge:
            half = len(closes) // 2
            self._dismiss(closes[:half])
            self._dismiss(closes[half:])

    def _on_event(self, name: str, fields: Payload) -> None:
        if name == "hello":
            if self.hello is not None:
                return  # another one would only add a heartbeat
            self.hello = fields
            with contextlib.suppress(msgspec.ValidationError):
                offer = msgspec.convert(fields.get("shared_memory"), SharedMemoryOffer)
                # In one process, frames are not copied anyway.
                self._memory_offer = None if offer.process == os.getpid() else offer
            if self._protocol.codec.binary:
                self._protocol.codec = self._reader = SharedArrayReader()
            limit = self.limit("max_message_bytes")
            if limit is not None and limit < self._max_bytes:
                self._max_bytes, self._limit = limit, "the server's max_message_mb, OPENENV_MAX_MESSAGE_MB"
            self._greeted.set()
            self._keep_alive()
        elif name == "draining":
            self.draining = True
        elif self.on_event is not None:
            self.on_event(name, fields)

    def _ask_for_memory(self, offer: SharedMemoryOffer, reader: SharedArrayReader) -> None:
        """Asks a server on this machine for shared memory. Small arrays do without, so it is asked only now."""
        self._memory_offer = None

        def opened(reply: Payload, _more: bool) -> None:
            descriptor = reply.get("descriptor")
            with contextlib.suppress(OSError):
                if type(descriptor) is int:
                    token, data = open_segment(offer.process, descriptor)
                    reader.use(data)
                    self.post("shared_memory", {"token": token})

        with contextlib.suppress(OSError):  # another machine, or another user: arrays stay in frames
            token, _ = open_segment(offer.process, offer.descriptor)
            if digest_of(token) == offer.digest:
                self.ask("shared_memory", {"token": token}, Callbacks(opened, _ignore))

    def _keep_alive(self) -> None:
        """Sends something in every period: some tunnels drop pings, and silence costs a session its lease."""
        if self.error is not None:
            return
        period = (self.hello or {}).get("heartbeat_s")
        if not isinstance(period, (int, float)) or not 0 < period <= LONGEST_PERIOD_S:
            return
        period = max(period, SHORTEST_PERIOD_S)
        if self._beat is not None and not self._spoken:
            self.post("heartbeat", {})
        self._spoken = False
        # Twice a period: up to two of these intervals pass between a message and the check that finds none
        # after it.
        self._beat = self.loop.call_later(period / 2, self._keep_alive)


_ADVICE = "the session is gone, call reset() for a new one"


def session_lost(error: OpenEnvError) -> SessionLost:
    """The error for a session that has ended, with its cause but not the cause's advice."""
    advised = error.message.startswith(_ADVICE)
    gone = SessionLost(error.message if advised else f"{_ADVICE}: {error.message}")
    gone.__cause__ = error
    return gone


def session_not_resumed(error: OpenEnvError) -> SessionLost:
    """The error for a session that is gone from its server when its client comes back."""
    gone = SessionLost(
        f"{_ADVICE}: its connection was lost, and the server that answers now "
        f"does not resume it (another worker process, or away for too long?): {error.message}"
    )
    gone.__cause__ = error
    return gone


def error_after_end(error: OpenEnvError, served: bool) -> OpenEnvError:
    """The error for a call that is made after its session ended.

    Args:
        error: Why it ended.
        served: Whether there was a session; a refused one is refused again.
    """
    refused = isinstance(error, (CapacityError, FactoryFailed)) and not served
    return error if refused else session_lost(error)


def loss_reason(fields: Mapping[str, Any]) -> OpenEnvError:
    """The error in the server's event `session_lost`."""
    facts = fields.get("error")
    return error_of(facts) if isinstance(facts, Mapping) else SessionLost(str(fields.get("reason", "")))


def call_timeout(late: str, link: ClientConnectionV2 | None) -> StepTimeout:
    """The error of a call that was not answered in time; blames the connection if it is currently lost.

    Args:
        late: The call, and its time limit.
        link: The connection of its session.
    """
    if link is None or link.error is None:
        return StepTimeout(f"{late}; the environment may still execute it")
    error = StepTimeout(
        f"{late}: the connection is lost ({link.error.message}), and its session continues on the next one"
    )
    error.blame = "infrastructure"
    return error


class OneSessionConnection:
    """The client's end of a connection that is one `ClientSession`: v1, or MCP.

    It belongs to the event loop that made it.

    Args:
        max_message_bytes: Largest message that is sent.

    Attributes:
        error: Why the session ended; None while it lasts.
        owner: The client, kept alive for as long as its connection, since it closes the connection.
    """

    leaving = False  # these protocols have no message for it
    resumable = None

    def __init__(self, max_message_bytes: int) -> None:
        self.owner: object = None
        self.error: OpenEnvError | None = None
        self._max_bytes = max_message_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        raise NotImplementedError

    def begin(self, transport: Transport) -> None:
        """Takes the connection. Its first frames may have been received already."""
        self._transport = transport
        if self.error is not None:  # it came with the answer to the handshake
            self._drop()

    async def aclose(self) -> None:
        """Ends the session and the connection."""
        # If another loop runs, the connection's own was closed, and the connection with it.
        if self._transport is not None and self._loop is asyncio.get_running_loop():
            await self._transport.aclose()

    async def _reply(
        self, kind: str, frame: bytes, waiter: asyncio.Future[Payload], timeout_s: float | None
    ) -> Payload:
        """Sends a request and waits for its reply. Raises `StepTimeout` if it does not come in time."""
        assert self._transport is not None
        try:
            self._transport.send(frame)
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError as error:
            if isinstance(error, OpenEnvError):  # from the server
                raise
            raise StepTimeout(
                f"no reply to {kind} within {timeout_s:g} s (message_timeout_s); the environment may still execute it"
            ) from None

    def _drop(self) -> None:
        if self._transport is not None:  # else it is still connecting, and the server closes it
            self._transport.drop()


class ClientConnectionV1(OneSessionConnection):
    """The client's end of a v1 connection. Takes arguments as its base does.

    Attributes:
        served: Whether a call got a reply.
    """

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(max_message_bytes)
        self._protocol = ClientProtocol()
        self.served = False

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        """See `ClientSession.call`; concurrent calls queue up on the server."""
        if self.error is not None:
            raise error_after_end(self.error, self.served)
        waiter: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if kind == "mcp":
            data = {"jsonrpc": "2.0", "id": 1, **data}
        try:
            frame, request = self._protocol.send(kind, data, waiter)
        except ValueError as error:
            raise unwritable_error(kind, error) from error
        if len(frame) > self._max_bytes:
            self._protocol.withdraw(request)
            raise too_large(len(frame), self._max_bytes)
        try:
            return await self._reply(kind, frame, waiter, timeout_s)
        finally:
            request.abandoned = not waiter.done() or waiter.cancelled()

    async def aclose(self) -> None:
        """Ends the session and the connection."""
        here = self._loop is asyncio.get_running_loop()
        # A close message would wait for a call that is still running.
        if here and self._transport is not None and self.error is None and not self._protocol.outstanding:
            self._transport.send(self._protocol.close())
        await super().aclose()

    def received(self, frame: bytes | memoryview) -> None:
        try:
            reply = self._protocol.receive(bytes(frame))
        except ProtocolViolation as violation:
            self.lost(violation)
            self._drop()
            return
        if reply.request is None:
            self.error = reply.error  # not a reply: the server refuses the session
        elif not reply.request.waiter.done():  # done: its caller was cancelled, or gave up
            if reply.error is None:
                reply.request.waiter.set_result(reply.payload)
            else:
                # A session that is refused after it was served is lost.
                gone = self.served and isinstance(reply.error, CapacityError)
                reply.request.waiter.set_exception(session_lost(reply.error) if gone else reply.error)
        if reply.error is None:
            self.served = True
        if reply.error is not None and reply.error.code in _FINAL:
            self.error = reply.error
            self._drop()

    def lost(self, error: OpenEnvError) -> None:
        self.error = self.error or error
        for request in self._protocol.abandon_all():
            if not request.waiter.done():
                request.waiter.set_exception(self.error)


# After these the server closes, as protocol v1 says.
_FINAL = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})


class Dial(Protocol):
    """Opens a connection to the server of a client."""

    def __call__(self, affinity: Affinity = ANY_SERVER) -> Awaitable[ClientConnectionV2 | ClientConnectionV1]:
        """Connects.

        Args:
            affinity: Which server and worker it must reach.
        """


async def dial(connect: Connect, max_message_bytes: int) -> ClientConnectionV2 | ClientConnectionV1:
    """Opens a connection.

    Args:
        connect: Opens it; its errors pass through.
        max_message_bytes: Largest message that is sent.

    Returns:
        A link for v2, a conversation for v1.
    """
    made: list[ClientConnectionV2 | ClientConnectionV1] = []

    def receiver(subprotocol: str | None) -> ClientConnectionV2 | ClientConnectionV1:
        end = (
            ClientConnectionV1(max_message_bytes)
            if subprotocol is None
            else ClientConnectionV2(codec_of(subprotocol), max_message_bytes)
        )
        made.append(end)
        return end

    transport = await connect(receiver)
    (end,) = made
    end.begin(transport)
    return end
