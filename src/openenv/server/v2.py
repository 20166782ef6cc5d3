"""One connection of protocol v2: many sessions, single requests and batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import compare_digest
from typing import TYPE_CHECKING, Any

from .._shared_memory import SharedSegment
from ..errors import InvalidMessage, OpenEnvError, SessionLost, TooManyCalls
from ..protocol import messages
from ..protocol.codecs import Body
from ..protocol.sequence import Asker
from ..protocol.server import ServerProtocolV2
from ..protocol.shared_arrays import SharedArrayWriter
from ..runtime.manager import close_session
from ..runtime.session import LastSeen
from ..settings import ServerSettings
from .auth import Principal
from .session_table import SESSION_CALLS, SESSION_REQUESTS, SessionTable
from .v1 import CLOSE_INTERNAL_ERROR, CLOSE_TOO_BIG, Channel, oversized_message

if TYPE_CHECKING:
    from .server import EnvironmentServer

# A large batch is answered in frames of about this many bytes, so that the client can process the first one early.
FRAME_BYTES = 1024 * 1024
# Bytes around each result in a frame: its index, its session, and the map itself.
RESULT_OVERHEAD_BYTES = 100
# Only the number of smaller requests is limited (`max_connection_in_flight`).
LARGE_BYTES = 4096


@dataclass(slots=True, eq=False)
class BatchReplies:
    """The unsent results of a batch, in the order in which they were ready.

    Attributes:
        id: The id of its request.
        left: Calls without a result.
        enough: Number of results that fill a frame (`min_ready`).
        ready: Number of results that the next frame waits for.
        size: Bytes of the results.
        flush: Sends them in the next iteration of the event loop; None if not scheduled.
        timer: Ends the wait for `ready` results.
    """

    id: int
    left: int
    enough: int
    ready: int
    results: list[tuple[int, str | None, Body]] = field(default_factory=list)
    size: int = 0
    flush: asyncio.Handle | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class ReplySender:
    """Sends the replies of one connection, and counts the calls without a reply.

    By default one frame answers a batch, when all results are ready. With `min_ready`, a frame is sent each time that
    this many results are ready. After `wait_s`, a frame has the results that are ready then (or the first one after
    that). Results of the same iteration of the event loop share a frame, so it may have more than `min_ready`.

    Attributes:
        protocol: Writes frames.
        channel: Sends frames to the client. It is paused while the requests without a reply have too many bytes.
        settings: The limits.
        ended: Whether the connection has ended, so that nothing is sent.
        unanswered: Calls without a reply.
        max_unanswered: The limit of `unanswered`.
    """

    protocol: ServerProtocolV2
    channel: Channel
    settings: ServerSettings
    ended: bool = False
    unanswered: int = 0
    max_unanswered: int = field(init=False)
    _max_frame_bytes: int = field(init=False)
    _batches: dict[int, BatchReplies] = field(default_factory=dict)
    # Sizes of requests over `LARGE_BYTES` without a complete reply, by id. Too many bytes pause the channel.
    _large: dict[int, int] = field(default_factory=dict)
    _large_bytes: int = 0
    _paused: bool = False

    def __post_init__(self) -> None:
        self.max_unanswered = self.settings.max_connection_in_flight
        self._max_frame_bytes = min(FRAME_BYTES, self.settings.max_message_bytes)

    def note_large(self, number: int, size: int) -> None:
        """Counts the bytes of a large request until it has its reply."""
        self._large[number] = size
        self._large_bytes += size
        if self._large_bytes > self.settings.max_unsent_bytes and not self._paused:
            self._paused = True
            self.channel.pause()

    def begin_batch(self, message: messages.BatchOp) -> None:
        """Begins a batch: its calls are answered together."""
        count = len(message.calls)
        enough = min(message.min_ready or count, count)
        batch = self._batches[message.id] = BatchReplies(message.id, count, enough, enough)
        if message.wait_s is not None:
            batch.timer = asyncio.get_running_loop().call_later(message.wait_s, self._time_is_up, batch)

    def answer(self, asker: Asker, session: str | None, body: Body) -> None:
        """Sends the reply to a request, or to one call of a batch."""
        number, place = asker
        if place is None:
            self.unanswered -= 1
            if not self.ended:
                self.channel.send(self.protocol.codec.reply(number, body))
            if number in self._large:
                self._let_go(number)
            return
        batch = self._batches.get(number)
        if batch is None:  # the connection has ended
            return
        size = batch.size + len(body.fields) + RESULT_OVERHEAD_BYTES
        if size > self._max_frame_bytes and batch.results:
            self._flush(batch)
            size = len(body.fields) + RESULT_OVERHEAD_BYTES
        batch.results.append((place, session, body))
        batch.size = size
        batch.left -= 1
        batch.ready -= 1
        if not batch.left:
            self._flush(batch)
        elif batch.ready <= 0 and batch.flush is None:
            batch.flush = asyncio.get_running_loop().call_soon(self._flush_ready, batch)

    def send(self, frame: bytes) -> None:
        """Sends a frame, if the client is still there."""
        if not self.ended:
            self.channel.send(frame)

    def end(self) -> None:
        """The connection has ended: sends nothing from now on."""
        self.ended = True
        for batch in self._batches.values():
            for timer in (batch.flush, batch.timer):
                if timer is not None:
                    timer.cancel()
        self._batches.clear()

    def _flush(self, batch: BatchReplies) -> None:
        results, batch.results, batch.size = batch.results, [], 0
        self.unanswered -= len(results)
        if not self.ended:
            self.channel.send(self.protocol.codec.results(batch.id, results, batch.left > 0))
        if batch.flush is not None:
            batch.flush.cancel()
            batch.flush = None
        if not batch.left:
            if batch.timer is not None:
                batch.timer.cancel()
            self._batches.pop(batch.id, None)
            if batch.id in self._large:
                self._let_go(batch.id)

    def _flush_ready(self, batch: BatchReplies) -> None:
        batch.ready = batch.enough
        self._flush(batch)

    def _time_is_up(self, batch: BatchReplies) -> None:
        if batch.results:
            self._flush_ready(batch)
        else:
            batch.ready = 1

    def _let_go(self, number: int) -> None:
        self._large_bytes -= self._large.pop(number)
        if self._paused and self._large_bytes <= self.settings.max_unsent_bytes // 2:
            self._paused = False
            self.channel.resume()


class V2Connection:
    """The server's end of one v2 connection, from its acceptance.

    Args:
        server: Has the sessions, and lists its capabilities in the first frame.
        protocol: Reads and writes frames.
        channel: Sends frames to the client.
        principal: The client of the connection.
    """

    __slots__ = (
        "_channel",
        "_last_id",
        "_max_bytes",
        "_memory",
        "_protocol",
        "_replies",
        "_server",
        "_table",
        "_writer",
        "principal",
    )

    def __init__(self, server: EnvironmentServer, protocol: ServerProtocolV2, channel: Channel, principal: Principal):
        self._server = server
        self._protocol = protocol
        self._channel = channel
        self._max_bytes = server.settings.max_message_bytes
        self._last_id = 0
        self._memory: SharedSegment | None = None
        self._writer: SharedArrayWriter | None = None
        self.principal = principal
        self._replies = ReplySender(protocol, channel, server.settings)
        self._table: SessionTable = SessionTable(
            server.manager, protocol, server.settings, server.deadlines, principal, self._replies
        )
        channel.send(protocol.event("hello", server.hello(protocol.codec.binary)))

    @property
    def session_id(self) -> str:
        """For the log: the id of the session, or the number of sessions."""
        sessions = self._table.sessions
        return sessions[0].id if len(sessions) == 1 else f"({len(sessions)} of one connection)"

    @property
    def life(self) -> LastSeen:
        """When the client last sent a frame on this connection."""
        return self._table.life

    # What a transport calls.

    def receive(self, frame: bytes) -> None:
        """Takes one text frame."""
        if self._protocol.codec.binary:
            self._refuse(self._protocol.receive_other(frame).error)
        else:
            self._take(frame)

    def receive_binary(self, frame: bytes) -> None:
        """Takes one binary frame."""
        if self._protocol.codec.binary:
            self._take(frame)
        else:
            self._refuse(self._protocol.receive_other(frame).error)

    def oversized(self, size: int | None) -> None:
        """The client sent a frame over the limit: ends the connection."""
        self._refuse(oversized_message(size, self._max_bytes, ": send less in one message"))
        self._finish(CLOSE_TOO_BIG)

    def disconnected(self) -> None:
        """The client has disconnected or closed the connection. May be called repeatedly."""
        if self._replies.ended:
            return
        self._replies.end()
        if self._memory is not None:
            self._memory.withdraw()
            self._memory = None
        if self._writer is not None:
            self._writer.end()
        self._table.abandon()
        self._server.connections.discard(self)

    def failed(self) -> None:
        """Ends the connection after an unexpected error of the server."""
        self._finish(CLOSE_INTERNAL_ERROR)

    def stop(self) -> None:
        """The server stops now: ends the sessions and tells the client not to reconnect."""
        for session in self._table.sessions:
            session.end(SessionLost("the server was stopped"))
        self.disconnected()

    def announce(self, grace_s: float) -> None:
        """Tells the client that the server stops."""
        self._replies.send(self._protocol.event("draining", {"grace_s": grace_s}))

    async def aclose(self) -> None:
        """Ends the connection and waits until its environments are closed."""
        self.disconnected()
        remaining = self._table.remaining
        self._table.end()
        for session in remaining:
            await close_session(session)

    def _take(self, frame: bytes) -> None:
        replies = self._replies
        if replies.ended:
            return
        if len(frame) > self._max_bytes:
            self.oversized(len(frame))
            return
        message: Any = self._protocol.receive(frame)
        number = message.id
        if number is None:
            assert isinstance(message, messages.RefusedOp)
            self._refuse(message.error)
        elif number <= self._last_id:
            # With that id, the client could take the error for the reply to the earlier request.
            last = self._last_id
            self._refuse(InvalidMessage(f"id {number} is not larger than the last one, {last}: use increasing ids"))
        else:
            self._last_id = number
            if len(frame) > LARGE_BYTES:
                replies.note_large(number, len(frame))
            self._execute(message)

    def _execute(self, message: Any) -> None:
        """Executes a request with an id in order."""
        number, kind, replies = message.id, type(message), self._replies
        self._table.life.heard_at = time.monotonic()
        if self._writer is not None and kind is not messages.RefusedOp:
            self._writer.note_copied(message.copied)
        count = len(message.calls) if kind is messages.BatchOp else 1
        replies.unanswered += count
        if replies.unanswered > replies.max_unanswered and kind not in _ALWAYS:
            limit = f"{replies.max_unanswered} (max_connection_in_flight, OPENENV_MAX_CONNECTION_IN_FLIGHT)"
            waiting = f"{replies.unanswered - count} calls of this connection have no reply yet"
            crowd = f"{waiting}, and {count} more would exceed the limit of {limit}"
            replies.unanswered -= count - 1
            full = TooManyCalls(f"{crowd}: receive replies before sending more")
            replies.answer((number, None), None, self._table.refusal(None, full, str(number)))
        elif kind in SESSION_CALLS:
            self._table.call(message, (number, None), None)
        elif kind in SESSION_REQUESTS:
            self._table.request(message, (number, None))
        elif kind is messages.BatchOp:
            self._batch(message)
        else:
            fields = _ANSWERS[kind](self, message)
            replies.answer((number, None), None, self._protocol.ok(fields))

    def _batch(self, message: messages.BatchOp) -> None:
        number, due, replies, table = message.id, None, self._replies, self._table
        if message.deadline_s is not None:
            due = time.monotonic() + message.deadline_s
        replies.begin_batch(message)
        sessions = None if table.restricted else table.v2_sessions
        call: Any
        for place, call in enumerate(message.calls):
            if replies.ended:
                return
            kind = type(call)
            # `SessionTable.call`, written out: this is the path of nearly every step.
            if kind is messages.StepOp and sessions is not None and call.session in sessions:
                sessions[call.session].take(call, (number, place), due)
            elif kind in SESSION_CALLS:
                table.call(call, (number, place), due)
            else:
                table.request(call, (number, place))

    def _share_memory(self, message: messages.SharedMemoryOp) -> dict[str, Any]:
        """Makes the memory of this connection, and then uses it: the tokens prove that the client has opened it."""
        memory, probe = self._memory, self._server.memory_probe
        if memory is None and probe is not None and _is_token(message.token, probe):
            with contextlib.suppress(OSError):
                self._memory = SharedSegment(self._server.settings.shared_memory_bytes)
                return {"descriptor": self._memory.descriptor}
        elif memory is not None and self._writer is None and _is_token(message.token, memory):
            memory.withdraw()
            self._writer = SharedArrayWriter(memory.data)
            self._protocol = self._protocol.writing(self._writer)
            self._table.use_protocol(self._protocol)
        return {"descriptor": None}

    def _refuse(self, error: OpenEnvError) -> None:
        """Answers a request without a usable id."""
        self._replies.send(self._protocol.reply(None, self._table.refusal(None, error)))

    def _finish(self, code: int) -> None:
        if not self._replies.ended:
            self.disconnected()
            self._channel.close(code)


def _is_token(token: str, memory: SharedSegment) -> bool:
    return compare_digest(token.encode(), memory.token.encode())


# Requests that are answered at once, and requests that free resources.
_ALWAYS = (messages.CancelOp, messages.CloseOp, messages.HeartbeatOp)
# Requests about the connection or the server, and the fields of their replies.
_ANSWERS: dict[type[Any], Callable[[V2Connection, Any], dict[str, Any]]] = {
    messages.CancelOp: lambda connection, message: {"cancelled": connection._table.cancel(message.target)},
    messages.HeartbeatOp: lambda connection, message: {},
    messages.SchemaOp: lambda connection, message: {"schemas": connection._server.contract.schemas},
    messages.SharedMemoryOp: V2Connection._share_memory,
}
