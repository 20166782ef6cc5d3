"""One connection of protocol v2: many sessions, single requests and batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ..errors import InvalidMessage, OpenEnvError, SessionLost, TooManyCalls
from ..protocol import messages
from ..protocol.codecs import Body
from ..protocol.contract import Contract
from ..protocol.errors import error_facts
from ..protocol.server import ServerProtocolV2
from ..runtime.manager import SessionManager, close_session
from ..runtime.session import LastSeen
from ..settings import ServerSettings
from ..telemetry.metrics import METER
from .auth import Principal
from .session_table import SESSION_REQUESTS, SessionTable
from .timers import Deadlines
from .v1 import CLOSE_INTERNAL_ERROR, CLOSE_TOO_BIG, Channel, oversized_message

# A large batch is answered in frames of about this size: the client can begin with the first.
FRAME_BYTES = 1024 * 1024
# What stands around each result in a frame: place, session, and the map itself.
RESULT_OVERHEAD_BYTES = 100


class BatchReplies:
    """Gathers the results of a batch, and sends them in the order in which they come.

    One frame when all are there, or one whenever `min_ready` are, and one after `wait_s` with what there is then
    (or with the first that comes). Its key for each call is the call's place. Results that come in the same turn of
    the event loop leave together, so there may be more than `min_ready` in a frame.

    Args:
        connection: The connection that sends the frames.
        request: What was asked.

    Attributes:
        id: Of the request.
        count: Calls in it.
        due: When its resets and steps must be answered, if they do not say themselves.
    """

    __slots__ = (
        "_connection",
        "_due",
        "_enough",
        "_left",
        "_most",
        "_ready",
        "_results",
        "_size",
        "_timer",
        "count",
        "due",
        "id",
    )

    def __init__(self, connection: V2Connection, request: messages.BatchOp):
        self.id = request.id
        self.count = len(request.calls)
        self.due = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        self._connection = connection
        self._most = connection.max_frame_bytes
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
        size = self._size + len(body.fields) + RESULT_OVERHEAD_BYTES
        if size > self._most and self._results:
            self._flush()
            size = len(body.fields) + RESULT_OVERHEAD_BYTES
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
        self._connection.answered(len(results))
        self._connection.send(self._connection.protocol.results(self.id, results, self._left > 0))
        if not self._left:
            self.drop()
            self._connection.completed(self)

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


class V2Connection:
    """The server's end of one v2 connection, from its acceptance.

    Args:
        manager: Where sessions are opened.
        protocol: Reads and writes frames.
        channel: The way to the client.
        settings: The limits.
        hello: What the server says of itself, first of all.
        deadlines: Watches over calls.
        principal: Whose connection it is.
        on_end: Called once, when the connection has ended.
        contract: What the environment takes and gives, for clients who ask.

    Attributes:
        due: When calls that come alone must be answered, if they do not say: never.
        id: None: such calls have ids of their own.
        principal: Whose connection it is.
    """

    due: float | None = None
    id: int | None = None

    __slots__ = (
        "_batches",
        "_channel",
        "_contract",
        "_ended",
        "_large",
        "_large_bytes",
        "_last_id",
        "_max_bytes",
        "_max_held",
        "_max_unanswered",
        "_on_end",
        "_paused",
        "_table",
        "_unanswered",
        "max_frame_bytes",
        "principal",
        "protocol",
    )

    def __init__(
        self,
        manager: SessionManager,
        protocol: ServerProtocolV2,
        channel: Channel,
        settings: ServerSettings,
        hello: dict[str, Any],
        deadlines: Deadlines,
        principal: Principal,
        on_end: Callable[[V2Connection], None],
        contract: Contract,
    ):
        self.protocol = protocol
        self._channel = channel
        self._max_bytes = settings.max_message_bytes
        # Sizes of requests over `_LARGE_BYTES` without a complete reply, by id. Too many bytes pause the channel.
        self._large: dict[int, int] = {}
        self._large_bytes = 0
        self._max_held = settings.max_unsent_bytes
        self._paused = False
        self.max_frame_bytes = min(FRAME_BYTES, settings.max_message_bytes)
        self._on_end = on_end
        self._contract = contract
        self._ended = False
        self._last_id = 0
        # Calls without a reply, and how many there may be.
        self._unanswered = 0
        self._max_unanswered = settings.max_connection_in_flight
        self.principal = principal
        self._table = SessionTable(manager, protocol, settings, deadlines, principal, self._tell_loss)
        self._batches: dict[int, BatchReplies] = {}
        channel.send(protocol.event("hello", hello))

    @property
    def session_id(self) -> str:
        """For the log: the session, or how many there are."""
        sessions = self._table.sessions
        return sessions[0].id if len(sessions) == 1 else f"({len(sessions)} of one connection)"

    @property
    def life(self) -> LastSeen:
        """When something was last heard on this connection."""
        return self._table.life

    # What a transport calls.

    def receive(self, frame: bytes) -> None:
        """Takes one text frame."""
        if self.protocol.codec.binary:
            self._refuse(self.protocol.receive_other(frame).error)
        else:
            self._take(frame)

    def receive_binary(self, frame: bytes) -> None:
        """Takes one binary frame."""
        if self.protocol.codec.binary:
            self._take(frame)
        else:
            self._refuse(self.protocol.receive_other(frame).error)

    def oversized(self, size: int | None) -> None:
        """The client sent a frame over the limit; the conversation ends here."""
        self._refuse(oversized_message(size, self._max_bytes, ": send less in one message"))
        self._finish(CLOSE_TOO_BIG)

    def disconnected(self) -> None:
        """The client is gone, or has closed. May be called repeatedly."""
        if self._ended:
            return
        self._ended = True
        for batch in self._batches.values():
            batch.drop()
        self._batches.clear()
        self._table.abandon()
        self._on_end(self)

    def failed(self) -> None:
        """Ends the conversation after an unexpected error of the server."""
        self._finish(CLOSE_INTERNAL_ERROR)

    def stop(self) -> None:
        """The server ends now: so do the sessions here, and the client hears that it need not come back."""
        for session in self._table.sessions:
            session.end(SessionLost("the server was stopped"))
        self.disconnected()

    def announce(self, grace_s: float) -> None:
        """Tells the client that the server stops."""
        self.send(self.protocol.event("draining", {"grace_s": grace_s}))

    async def aclose(self) -> None:
        """Ends the conversation and waits until its environments are closed."""
        self.disconnected()
        remaining = self._table.remaining
        self._table.end()
        for session in remaining:
            await close_session(session)

    # Where replies go.

    def send(self, frame: bytes) -> None:
        """Sends a frame, if the client is still there."""
        if not self._ended:
            self._channel.send(frame)

    def answer(self, key: int, session: str | None, body: Body) -> None:
        """Sends the reply to the request of id `key`."""
        self._unanswered -= 1
        if not self._ended:
            self._channel.send(self.protocol.reply(key, body))
        if key in self._large:
            self._let_go(key)

    def answered(self, count: int) -> None:
        """So many calls of a batch have been given their replies."""
        self._unanswered -= count

    def completed(self, batch: BatchReplies) -> None:
        """Everything of a batch was sent."""
        self._batches.pop(batch.id, None)
        if batch.id in self._large:
            self._let_go(batch.id)

    def _take(self, frame: bytes) -> None:
        if self._ended:
            return
        if len(frame) > self._max_bytes:
            self.oversized(len(frame))
            return
        message = self.protocol.receive(frame)
        number = message.id
        if number is None:
            assert isinstance(message, messages.RefusedOp)
            self._refuse(message.error)
        elif number <= self._last_id:
            # Under that id it could be taken for the reply to the earlier request.
            last = self._last_id
            self._refuse(InvalidMessage(f"id {number} is not larger than the last one, {last}: count ids upwards"))
        else:
            self._last_id = number
            self._table.life.heard_at = time.monotonic()
            self._unanswered += 1
            if len(frame) > _LARGE_BYTES:
                self._large[number] = len(frame)  # until it has its reply
                self._large_bytes += len(frame)
                if self._large_bytes > self._max_held and not self._paused:
                    self._paused = True
                    self._channel.pause()
            if self._unanswered > self._max_unanswered and type(message) not in _ALWAYS:
                self._refuse_more(number, 1)
                return
            handle = SESSION_REQUESTS.get(type(message))
            if handle is not None:
                handle(self._table, message, self, number)
            else:
                _REQUESTS[type(message)](self, message)

    def _batch(self, message: messages.BatchOp) -> None:
        count = len(message.calls)
        self._unanswered += count - 1  # the request itself was counted as one
        if self._unanswered > self._max_unanswered:
            self._refuse_more(message.id, count)
            return
        batch = self._batches[message.id] = BatchReplies(self, message)
        for place, call in enumerate(message.calls):
            if self._ended:
                return
            SESSION_REQUESTS[type(call)](self._table, call, batch, place)

    def _let_go(self, number: int) -> None:
        self._large_bytes -= self._large.pop(number)
        if self._paused and self._large_bytes <= self._max_held // 2:
            self._paused = False
            self._channel.resume()

    def _refuse_more(self, number: int, count: int) -> None:
        """Answers a request of so many calls, which are more than may be without a reply."""
        limit = f"{self._max_unanswered} (max_connection_in_flight, OPENENV_MAX_CONNECTION_IN_FLIGHT)"
        waiting = f"{self._unanswered - count} calls of this connection have no reply yet"
        crowd = f"{waiting}, and {count} more would be over the limit of {limit}"
        self._unanswered -= count - 1
        full = TooManyCalls(f"{crowd}: take replies, then send more")
        self.answer(number, None, self._table.refusal(None, full, str(number)))

    def _cancel(self, message: messages.CancelOp) -> None:
        batch = self._batches.get(message.target)
        sink, key = (self, message.target) if batch is None else (batch, None)
        self.answer(message.id, None, self.protocol.ok({"cancelled": self._table.cancel(sink, key)}))

    def _refuse(self, error: OpenEnvError) -> None:
        """Answers what cannot be answered under an id."""
        if not self._ended:
            self._channel.send(self.protocol.reply(None, self._table.refusal(None, error)))

    def _tell_loss(self, session: str, error: OpenEnvError) -> None:
        lost = error if isinstance(error, SessionLost) else SessionLost(error.message)
        METER.failed(lost)
        facts = error_facts(lost)
        fields = {"session": session, "reason": facts["message"], "error": facts}
        self.send(self.protocol.event("session_lost", fields))

    def _finish(self, code: int) -> None:
        if not self._ended:
            self.disconnected()
            self._channel.close(code)


# Smaller requests are bounded by their number alone (`max_connection_in_flight`).
_LARGE_BYTES = 4096
# Answered at once, and what makes room.
_ALWAYS = (messages.CancelOp, messages.CloseOp, messages.HeartbeatOp)
_REQUESTS: dict[type[Any], Callable[[V2Connection, Any], None]] = {
    messages.BatchOp: V2Connection._batch,
    messages.CancelOp: V2Connection._cancel,
    messages.HeartbeatOp: lambda connection, message: connection.answer(message.id, None, connection.protocol.ok({})),
    messages.SchemaOp: lambda connection, message: connection.answer(
        message.id, None, connection.protocol.ok({"schemas": connection._contract.schemas})
    ),
}
