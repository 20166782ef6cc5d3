"""One v2 conversation: many sessions on one connection, each reply when its call has ended.

Driven by callbacks as `Connection` is, and by the same transports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..contract import Contract
from ..errors import InvalidMessage, MessageTooLarge, OpenEnvError, SessionLost, TooManyCalls
from ..metrics import METER
from ..protocol import messages
from ..protocol.codec import Body
from ..protocol.report import error_facts
from ..protocol.server_v2 import ServerProtocolV2
from ..sessions import SessionManager
from ..sessions.life import Life
from ..sessions.waiting import close_session
from ..settings import ServerSettings
from .batch import FRAME_BYTES, Batch
from .connection import CLOSE_INTERNAL_ERROR, CLOSE_TOO_BIG, Channel
from .deadlines import Deadlines
from .seating import SESSION_REQUESTS, Seating
from .visitor import Visitor

__all__ = ["MultiConnection"]


class MultiConnection:
    """The server's end of one v2 connection, from its acceptance.

    Args:
        manager: Where sessions are opened.
        protocol: Reads and writes frames.
        channel: The way to the client.
        settings: The limits.
        hello: What the server says of itself, first of all.
        deadlines: Watches over calls.
        visitor: Whose connection it is.
        on_end: Told once, when the connection has ended.
        contract: What the environment takes and gives, for clients who ask.

    Attributes:
        due: When calls that come alone must be answered, if they do not say: never.
        id: None: such calls have ids of their own.
        visitor: Whose connection it is.
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
        "_seating",
        "_unanswered",
        "max_frame_bytes",
        "protocol",
        "visitor",
    )

    def __init__(
        self,
        manager: SessionManager,
        protocol: ServerProtocolV2,
        channel: Channel,
        settings: ServerSettings,
        hello: dict[str, Any],
        deadlines: Deadlines,
        visitor: Visitor,
        on_end: Callable[[MultiConnection], None],
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
        self.visitor = visitor
        self._seating = Seating(manager, protocol, settings, deadlines, visitor, self._tell_loss)
        self._batches: dict[int, Batch] = {}
        channel.send(protocol.event("hello", hello))

    @property
    def session_id(self) -> str:
        """For the log: the session, or how many there are."""
        sessions = self._seating.sessions
        return sessions[0].id if len(sessions) == 1 else f"({len(sessions)} of one connection)"

    @property
    def life(self) -> Life:
        """When something was last heard on this connection."""
        return self._seating.life

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
        found = "a message" if size is None else f"a message of {size} bytes"
        limit = f"{self._max_bytes} bytes (max_message_mb, OPENENV_MAX_MESSAGE_MB)"
        self._refuse(MessageTooLarge(f"{found} is over the limit of {limit}: send less in one message"))
        self._finish(CLOSE_TOO_BIG)

    def disconnected(self) -> None:
        """The client is gone, or has closed. May be called repeatedly."""
        if self._ended:
            return
        self._ended = True
        for batch in self._batches.values():
            batch.drop()
        self._batches.clear()
        self._seating.abandon()
        self._on_end(self)

    def failed(self) -> None:
        """Something of ours raised what nobody expected: the conversation cannot go on."""
        self._finish(CLOSE_INTERNAL_ERROR)

    def stop(self) -> None:
        """The server ends now: so do the sessions here, and the client is told that it need not come back."""
        for session in self._seating.sessions:
            session.end(SessionLost("the server was stopped"))
        self.disconnected()

    def announce(self, grace_s: float) -> None:
        """Tells the client that the server stops."""
        self.send(self.protocol.event("draining", {"grace_s": grace_s}))

    async def aclose(self) -> None:
        """Ends the conversation and waits until its environments are closed."""
        self.disconnected()
        remaining = self._seating.remaining
        self._seating.end()
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

    def completed(self, batch: Batch) -> None:
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
            assert isinstance(message, messages.Refused)
            self._refuse(message.error)
        elif number <= self._last_id:
            # Under that id it could be taken for the reply to the earlier request.
            last = self._last_id
            self._refuse(InvalidMessage(f"id {number} is not larger than the last one, {last}: count ids upwards"))
        else:
            self._last_id = number
            self._seating.life.heard_at = time.monotonic()
            self._unanswered += 1
            if len(frame) > _LARGE_BYTES:
                self._hold(number, len(frame))
            if self._unanswered > self._max_unanswered and type(message) not in _ALWAYS:
                self._refuse_more(number, 1)
                return
            handle = SESSION_REQUESTS.get(type(message))
            if handle is not None:
                handle(self._seating, message, self, number)
            else:
                _REQUESTS[type(message)](self, message)

    def _batch(self, message: messages.Batch) -> None:
        count = len(message.calls)
        self._unanswered += count - 1  # the request itself was counted as one
        if self._unanswered > self._max_unanswered:
            self._refuse_more(message.id, count)
            return
        batch = self._batches[message.id] = Batch(self, message)
        for place, call in enumerate(message.calls):
            if self._ended:
                return
            SESSION_REQUESTS[type(call)](self._seating, call, batch, place)

    def _hold(self, number: int, size: int) -> None:
        """Counts a large request until it has its reply."""
        self._large[number] = size
        self._large_bytes += size
        if self._large_bytes > self._max_held and not self._paused:
            self._paused = True
            self._channel.pause()

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
        self.answer(number, None, self._seating.refusal(None, full, str(number)))

    def _cancel(self, message: messages.Cancel) -> None:
        batch = self._batches.get(message.target)
        asker, key = (self, message.target) if batch is None else (batch, None)
        self.answer(message.id, None, self.protocol.ok({"cancelled": self._seating.cancel(asker, key)}))

    def _heartbeat(self, message: messages.Heartbeat) -> None:
        self.answer(message.id, None, self.protocol.ok({}))

    def _schema(self, message: messages.Schema) -> None:
        self.answer(message.id, None, self.protocol.ok({"schemas": self._contract.schemas}))

    def _refuse(self, error: OpenEnvError) -> None:
        """Answers what cannot be answered under an id."""
        if not self._ended:
            self._channel.send(self.protocol.reply(None, self._seating.refusal(None, error)))

    def _tell_loss(self, session: str, error: OpenEnvError) -> None:
        lost = error if isinstance(error, SessionLost) else SessionLost(error.message)
        METER.failed(lost)
        facts = error_facts(lost)
        told = {"session": session, "reason": facts["message"], "error": facts}
        self.send(self.protocol.event("session_lost", told))

    def _finish(self, code: int) -> None:
        if not self._ended:
            self.disconnected()
            self._channel.close(code)


# Smaller requests are bounded by their number alone (`max_connection_in_flight`).
_LARGE_BYTES = 4096
# Answered at once, and what makes room.
_ALWAYS = (messages.Cancel, messages.Close, messages.Heartbeat)
_REQUESTS: dict[type[Any], Callable[[MultiConnection, Any], None]] = {
    messages.Batch: MultiConnection._batch,
    messages.Cancel: MultiConnection._cancel,
    messages.Heartbeat: MultiConnection._heartbeat,
    messages.Schema: MultiConnection._schema,
}
