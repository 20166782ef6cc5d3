"""One connection on the fast path: frames between picows and a conversation, with nothing in between."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from functools import partial

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    picows,
)

from ..errors import SlowReader, UsageError
from ..logs import about
from ..metrics import METER, Gauge
from ..protocol.codec import codec_of
from .connection import CLOSE_INTERNAL_ERROR, CLOSE_SLOW_READER, Connection
from .heartbeat import Words
from .linger import LingeringTransport
from .multi_connection import MultiConnection
from .picows_log import PicowsLog
from .site import Site
from .turn import Taker
from .upgrade import Upgrade
from .visitor import Visitor

__all__ = ["PicowsChannel", "serve"]

logger = logging.getLogger("openenv.server")

# The least that picows takes; it grows with the messages.
READ_BUFFER_BYTES = 2048
CLOSE_GOING_AWAY = 1012
CLOSE_PROTOCOL_ERROR = 1002
# Looking a member up on its Enum class costs as much as sending a byte string.
_TEXT, _BINARY, _PONG, _CLOSE = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.PONG, WSMsgType.CLOSE
# Who has not yet asked whether something was heard: pings and words are watched at paces of their own.
_FOR_PINGS, _FOR_WORDS = 1, 2
_HEARD = _FOR_PINGS | _FOR_WORDS
_SIZE = re.compile(r"(\d+) > \d+")


def serve(site: Site, transport: asyncio.Transport, upgrade: Upgrade, visitor: Visitor) -> None:
    """Serves a connection from its upgrade request on, of a client that was let in."""
    lingering = LingeringTransport(transport)
    channel = PicowsChannel(site, lingering, upgrade.subprotocol, visitor)
    protocol = picows.WSProtocol(  # type: ignore[attr-defined]  # not in picows' stubs
        None,  # host and port: client only
        None,  # path: client only
        False,  # is_client_side
        channel.accept,
        PicowsLog(channel),
        True,  # disconnect_on_exception
        None,  # handshake timeout: the request is here
        False,  # auto ping, with its idle and reply times: the heartbeat does it for all connections
        20.0,
        20.0,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        True,  # auto pong
        site.max_bytes,
        None,  # extra headers
        READ_BUFFER_BYTES,
    )
    transport.set_protocol(protocol)
    protocol.connection_made(lingering)
    request = upgrade.canonical()
    protocol.get_buffer(-1)[: len(request)] = request
    protocol.buffer_updated(len(request))


class PicowsChannel(WSListener):
    """The channel of a `Connection` or a `MultiConnection`, under the watch of a `Heartbeat`.

    Args:
        site: What it shares with the others of its server.
        lingering: The connection below picows.
        subprotocol: What was negotiated; None: v1.
        visitor: Who is at its other end.
    """

    def __init__(self, site: Site, lingering: LingeringTransport, subprotocol: str | None, visitor: Visitor):
        self._site = site
        self._lingering = lingering
        self._subprotocol = subprotocol
        self._visitor = visitor
        self._connection: Connection | MultiConnection | None = None
        self._kind = _BINARY if subprotocol is not None and codec_of(subprotocol).binary else _TEXT
        self._whole: WSMsgType | None = self._kind
        self._parts = bytearray()
        self._part_type: WSMsgType | None = None
        self._holds: set[str] = set()
        # Bytes given to a client that is behind, and how many of them it had taken at the last beat.
        self._given = 0
        self._taken: int | None = None
        self.heard = _HEARD
        self._over = False
        self._words: Words | None = Words(self._wordless, self._cut_wordless)

    @property
    def session_id(self) -> str:
        return self._connection.session_id if self._connection is not None else "-"

    # What picows calls.

    def accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        """Answers the upgrade request."""
        if self._subprotocol is None:
            return self
        headers = {"Sec-WebSocket-Protocol": self._subprotocol}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), self)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        self._site.connections.add(self)
        METER.add(Gauge.CONNECTIONS, 1)
        self._site.heartbeat.watch(self)
        if self._subprotocol is not None and self._words is not None:
            self._site.server.words.watch(self._words)
        try:
            self._converse()
        except UsageError as error:
            logger.error("%s", error.message)
            self.close(CLOSE_INTERNAL_ERROR)

    def _converse(self) -> None:
        server, reply = self._site.server, self._site.turn.reply
        # Not methods: a frame more on the path of every step.
        self._transmit: Callable[[bytes], None] = partial(self._ws.send, self._kind)
        self._send: Callable[[bytes], None] = partial(reply, self._transmit)
        self.send: Callable[[bytes], None] = self._send
        connection = self._connection = server.connect(self, self._subprotocol, self._visitor)
        self._taker: Taker = connection if self._kind is _TEXT else _BinaryTaker(connection)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard = _HEARD
        kind = frame.msg_type
        if self._connection is None or kind is _PONG:
            return
        if kind is self._whole and frame.fin and not frame.rsv1:
            self._site.turn.request(self._taker, frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            self._site.turn.finish()
            self._connection.disconnected()
            transport.send_close(WSCloseCode.OK)
            self._lingering.finish()
        else:
            self._assemble(kind, frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._site.connections.discard(self)
        METER.add(Gauge.CONNECTIONS, -1)
        self._site.heartbeat.forget(self)
        if self._words is not None:
            self._site.server.words.forget(self._words)
        if self._connection is not None:
            self._connection.disconnected()
        self._let_go()

    def _let_go(self) -> None:
        """Keeps nothing of the connection: what knows one another waits for a garbage collection, which is rare.

        That would be 9 KB for each connection, for hours.
        """
        self._over = True
        self._connection = self._words = None
        self.send = self._send = self._transmit = _unsent
        self._taker = _NOBODY
        del self._ws

    def pause_writing(self) -> None:
        # A client that does not read its replies is not asked for more requests.
        self._given, self._taken = 0, None
        self.send = partial(self._site.turn.reply, self._transmit_slowly)
        self._hold("client")

    def resume_writing(self) -> None:
        self.send = self._send
        self._release("client")

    # What the connection asks of its channel.

    def close(self, code: int, reason: str = "") -> None:
        self._site.turn.finish()
        if self._over:
            return
        self._ws.send_close(WSCloseCode(code), reason)
        self._ws.disconnect()

    def pause(self) -> None:
        self._hold("session")

    def resume(self) -> None:
        self._release("session")

    # What the heartbeat asks for.

    def silent(self) -> bool:
        return not self._has_been_heard(_FOR_PINGS) and (not self._holds or self._takes_nothing())

    def ping(self) -> None:
        if not self._holds:
            self._ws.send_ping()

    def cut(self) -> None:
        self._give_up("ping_interval_s")

    def _wordless(self) -> bool:
        if self._has_been_heard(_FOR_WORDS):
            return False
        return not self._holds or (not self._site.heartbeat.watches and self._takes_nothing())

    def _cut_wordless(self) -> None:
        self._give_up("heartbeat_s")

    def _has_been_heard(self, since: int) -> bool:
        heard = self.heard & since
        self.heard &= ~since
        if heard and self._connection is not None:
            self._connection.life.heard_at = time.monotonic()
        return bool(heard)

    def _takes_nothing(self) -> bool:
        """Of a client whose words are not read now: whether it takes nothing of what it was sent."""
        if "client" not in self._holds:
            return False
        before, self._taken = self._taken, self._given - self._lingering.get_write_buffer_size()
        return before is not None and self._taken <= before

    def _give_up(self, setting: str) -> None:
        if "client" in self._holds:
            self._leave_behind(f"nothing was taken for two periods of {setting}")
            return
        session = self.session_id
        logger.warning(
            "session %s: no sign of life from its client (%s): cut", session, setting, extra=about(session)
        )
        self._ws.disconnect(graceful=False)

    def shutdown(self) -> None:
        """What uvicorn calls on every connection when it stops."""
        if self._connection is not None:
            self._connection.stop()
        self.close(CLOSE_GOING_AWAY)

    def broken(self, code: WSCloseCode, explanation: str) -> None:
        """picows found a frame that it will not read, and closes; before that, the client is told why."""
        if self._connection is None:
            return
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            size = _SIZE.search(explanation)
            self._connection.oversized(int(size[1]) if size else None)
        else:
            logger.warning("session %s: %s", self.session_id, explanation, extra=about(self.session_id))

    def _assemble(self, kind: WSMsgType, frame: WSFrame) -> None:
        """Collects the fragments of a message, and takes whole ones of the other type (RFC 6455, section 5.4)."""
        assert self._connection is not None
        if frame.rsv1:
            self._violated("a frame with RSV1: no extension was agreed on")
            return
        if kind == WSMsgType.CONTINUATION:
            if self._part_type is None:
                self._violated("a continuation frame without a message to continue")
                return
        elif self._part_type is not None:
            self._violated("a new message before the last fragment of the one before")
            return
        else:
            self._part_type, self._whole = kind, None
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._site.max_bytes:
            self._connection.oversized(len(self._parts))
        elif frame.fin:
            message, self._parts = bytes(self._parts), bytearray()
            binary, self._part_type, self._whole = self._part_type == WSMsgType.BINARY, None, self._kind
            self._site.turn.finish()
            if binary:
                self._connection.receive_binary(message)
            else:
                self._connection.receive(message)

    def _violated(self, what: str) -> None:
        """Ends the connection with a client that does not keep to RFC 6455."""
        assert self._connection is not None
        session = self.session_id
        logger.warning("session %s: %s: closed", session, what, extra=about(session))
        self._connection.disconnected()
        self._connection = None
        self.close(CLOSE_PROTOCOL_ERROR, what)

    def _transmit_slowly(self, frame: bytes) -> None:
        """Sends to a client that is behind with its reading, as long as that is within bounds."""
        size = len(frame)
        waiting = self._lingering.get_write_buffer_size() + size
        if waiting > self._site.max_unsent:
            limit = f"{self._site.max_unsent} bytes (max_unsent_mb, OPENENV_MAX_UNSENT_MB)"
            self._leave_behind(f"{waiting} bytes wait for it, over the limit of {limit}")
        else:
            self._given += size + (2 if size < 126 else 4 if size < 65536 else 10)
            self._transmit(frame)

    def _leave_behind(self, why: str) -> None:
        """Ends the connection with a client that does not read."""
        if self._connection is None:
            return
        error = SlowReader(f"the client does not read its replies: {why}; read while you wait, or ask for less")
        METER.failed(error)
        told = about(self.session_id)
        logger.warning("session %s: %s: %s", self.session_id, type(error).__name__, error.message, extra=told)
        self._connection.disconnected()
        self._connection = None
        self.close(CLOSE_SLOW_READER, f"{type(error).__name__}: the client does not read its replies")

    def _hold(self, reason: str) -> None:
        self._holds.add(reason)
        if not self._over and not self._ws.underlying_transport.is_closing():
            self._ws.underlying_transport.pause_reading()

    def _release(self, reason: str) -> None:
        self._holds.discard(reason)
        if not self._holds:
            # It was neither read nor pinged until now: its silence begins here.
            self.heard = _HEARD
        if not self._over and not self._holds and not self._ws.underlying_transport.is_closing():
            self._ws.underlying_transport.resume_reading()


def _unsent(frame: bytes) -> None:
    """Nobody is there any more."""


class _Nobody:
    """Takes what was read when the connection was already over."""

    def receive(self, frame: bytes) -> None:
        pass

    def failed(self) -> None:
        pass


_NOBODY = _Nobody()


class _BinaryTaker:
    """A connection whose requests come in binary frames."""

    __slots__ = ("failed", "receive")

    def __init__(self, connection: Connection | MultiConnection):
        self.receive = connection.receive_binary
        self.failed = connection.failed
