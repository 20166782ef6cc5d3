"""One WebSocket connection on picows: from its upgrade request to a close that delivers the last frame."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

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

from ...errors import SlowReader, UsageError
from ...protocol.codecs import choose, codec_of
from ...telemetry.logs import log_extra
from ...telemetry.metrics import METER, Gauge
from ..auth import Principal, header_fields
from ..shared_sessions import worker_of
from ..timers import AppKeepalive
from ..v1 import CLOSE_INTERNAL_ERROR, CLOSE_SLOW_READER, V1Connection
from ..v2 import V2Connection
from .context import FrameHandler, ServerContext

LINGER_S = 2.0


class LingeringTransport:
    """A transport whose `close` lingers until the peer has closed. The rest is delegated to the wrapped transport.

    Args:
        transport: The connection. Its protocol must already be the one that gets `connection_lost`.
    """

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._lingering = False
        # Bound here so that a write costs no extra call.
        self.write = transport.write
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.abort = transport.abort

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Writes a frame in parts."""
        # The header is a view of a buffer that picows reuses for the next frame, perhaps long before a slow reader
        # makes room for this one.
        self._transport.writelines([bytes(part) for part in parts])

    def close(self) -> None:
        """Closes after the peer has, or after two seconds. May be called repeatedly."""
        transport = self._transport
        if self._lingering or transport.is_closing():
            return
        self._lingering = True
        if not transport.can_write_eof():  # TLS closes with a message of its own
            transport.close()
            return
        transport.set_protocol(_Drain(transport, transport.get_protocol()))
        transport.resume_reading()
        transport.write_eof()

    def finish(self) -> None:
        """Closes now: the peer has finished."""
        self._transport.close()


class _Drain(asyncio.Protocol):
    """Discards input until the peer closes, then notifies the protocol that it replaces."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol):
        self._transport = transport
        self._protocol = protocol
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


logger = logging.getLogger("openenv.server")


class PicowsLog:
    """The logger that picows uses for one connection: it logs faults, with the session's id.

    Given a `logging.Logger`, picows makes a child of it for every connection; given this, it does not.
    """

    def __init__(self, channel: PicowsChannel):
        self._channel = channel

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of logging.Logger's method
        return level >= logging.WARNING

    def log(self, *args: Any) -> None:
        """Drops records about single frames."""

    debug = info = log

    def error(self, message: str, *args: Any) -> None:
        if args and isinstance(args[0], tuple) and len(args[0]) == 2:
            self._channel.broken(*args[0])
        else:
            self.warning(message, *args)

    def exception(self, message: str, *args: Any) -> None:
        session = self._channel.session_id
        logger.exception("session %s: " + message, session, *args, extra=log_extra(session))

    def warning(self, message: str, *args: Any) -> None:
        self._channel.warn(message, *args)


_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_OFFER = b"sec-websocket-protocol"


class Upgrade(NamedTuple):
    """A well-formed upgrade request (RFC 6455, section 4.2.1).

    Attributes:
        path: The decoded path.
        query: The part after the `?` of the URL, as it was sent.
        key: The client's nonce.
        fields: The headers, as `auth.header_fields` returns them.
        subprotocol: The subprotocol chosen from the offered ones; None for protocol v1.
    """

    path: str
    query: str
    key: bytes
    fields: Mapping[bytes, bytes]
    subprotocol: str | None

    @classmethod
    def parse(cls, request: bytes) -> Upgrade | None:
        """Reads a complete request; None if it cannot be upgraded."""
        head, *lines = request.split(b"\r\n")
        parts = (line.partition(b":") for line in lines if line)
        headers = header_fields((name, value.strip()) for name, _, value in parts)
        key = headers.get(b"sec-websocket-key", b"")
        if headers.get(b"sec-websocket-version") != b"13" or not _KEY.fullmatch(key):
            return None
        subprotocol = None
        if _OFFER in headers:
            subprotocol = choose(offer.strip() for offer in headers[_OFFER].decode("latin-1").split(","))
        path, _, query = head.split(b" ")[1].decode("latin-1").partition("?")
        return cls(unquote(path), query, key, headers, subprotocol)

    @property
    def worker(self) -> str | None:
        """The key of the worker process in the client's URL, or of the worker process that has the named session."""
        named = self.parameter("worker") or None
        session = None if named is not None else self.parameter("session_id")
        return named if session is None else worker_of(session)

    def parameter(self, name: str) -> str | None:
        """A parameter of the URL: `session_id` asks to attach to a session, and `token` is the token for it."""
        return parse_qs(self.query, True).get(name, [None])[0] if f"{name}=" in self.query else None

    def canonical(self) -> bytes:
        """The request in the only form that picows accepts (one `Connection` token, no extensions)."""
        return (
            b"GET / HTTP/1.1\r\nHost: openenv\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % self.key
        )


# The smallest size that picows accepts; the buffer grows with the messages.
READ_BUFFER_BYTES = 2048
CLOSE_GOING_AWAY = 1012
CLOSE_PROTOCOL_ERROR = 1002
# Looking a member up on its Enum class costs as much as sending a byte string.
_TEXT, _BINARY, _PONG, _CLOSE = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.PONG, WSMsgType.CLOSE
# One bit for each keepalive: a frame sets both, and each keepalive clears its own at its interval.
_FOR_PINGS, _FOR_APP = 1, 2
_HEARD = _FOR_PINGS | _FOR_APP
_SIZE = re.compile(r"(\d+) > \d+")


def serve(context: ServerContext, transport: asyncio.Transport, upgrade: Upgrade, principal: Principal) -> None:
    """Serves the connection of an admitted client, from its upgrade request on."""
    lingering = LingeringTransport(transport)
    channel = PicowsChannel(context, lingering, upgrade.subprotocol, principal)
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
        context.max_bytes,
        None,  # extra headers
        READ_BUFFER_BYTES,
    )
    transport.set_protocol(protocol)
    protocol.connection_made(lingering)
    request = upgrade.canonical()
    protocol.get_buffer(-1)[: len(request)] = request
    protocol.buffer_updated(len(request))


class PicowsChannel(WSListener):
    """The channel of a `V1Connection` or a `V2Connection`, watched by a `Keepalive`.

    Args:
        context: The state that all connections of its server share.
        lingering: The connection below picows.
        subprotocol: The negotiated subprotocol; None: v1.
        principal: The client of the connection.
    """

    def __init__(
        self, context: ServerContext, lingering: LingeringTransport, subprotocol: str | None, principal: Principal
    ):
        self._context = context
        self._lingering = lingering
        self._subprotocol = subprotocol
        self._principal = principal
        self._connection: V1Connection | V2Connection | None = None
        self._kind = _BINARY if subprotocol is not None and codec_of(subprotocol).binary else _TEXT
        self._whole: WSMsgType | None = self._kind
        self._parts = bytearray()
        self._part_type: WSMsgType | None = None
        self._holds: set[str] = set()
        # Bytes sent to a slow client, and the number of them that it had received at the last beat.
        self._given = 0
        self._taken: int | None = None
        self.heard = _HEARD
        self._over = False
        self._app_keepalive: AppKeepalive | None = AppKeepalive(
            self._app_silent, partial(self._give_up, "heartbeat_s")
        )

    @property
    def session_id(self) -> str:
        return self._connection.session_id if self._connection is not None else "-"

    # Called by picows.

    def accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        """Answers the upgrade request."""
        if self._subprotocol is None:
            return self
        headers = {"Sec-WebSocket-Protocol": self._subprotocol}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), self)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        # Attributes instead of methods: a method adds a stack frame to the path of every step.
        self._transmit: Callable[[bytes], None] = partial(transport.send, self._kind)
        self._send: Callable[[bytes], None] = partial(self._context.batcher.reply, self._transmit)
        self.send: Callable[[bytes], None] = self._send
        server = self._context.server
        self._context.connections.add(self)
        METER.add(Gauge.CONNECTIONS, 1)
        self._context.keepalive.watch(self)
        if self._subprotocol is not None and self._app_keepalive is not None:
            server.app_keepalive.watch(self._app_keepalive)
        try:
            self._connection = server.connect(self, self._subprotocol, self._principal)
        except UsageError as error:
            logger.error("%s", error.message)
            self.close(CLOSE_INTERNAL_ERROR)
        else:
            connection = self._connection
            self._handler: FrameHandler = connection
            if self._kind is _BINARY:
                self._handler = _Handler(connection.receive_binary, connection.failed)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard = _HEARD
        kind = frame.msg_type
        if self._connection is None or kind is _PONG:
            return
        if kind is self._whole and frame.fin and not frame.rsv1:
            self._context.batcher.request(self._handler, frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            self._context.batcher.finish()
            self._connection.disconnected()
            transport.send_close(WSCloseCode.OK)
            self._lingering.finish()
        else:
            self._assemble(kind, frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._context.connections.discard(self)
        METER.add(Gauge.CONNECTIONS, -1)
        self._context.keepalive.forget(self)
        if self._app_keepalive is not None:
            self._context.server.app_keepalive.forget(self._app_keepalive)
        if self._connection is not None:
            self._connection.disconnected()
        if self._given or "client" in self._holds:  # it was slow, even if it read the rest at the end
            self._context.server.memory_release.soon()
        # Drops all references of the connection: objects in a reference cycle wait for a garbage collection, which is
        # rare. That would keep 9 KB for each connection, for hours.
        self._over = True
        self._connection = self._app_keepalive = None
        self.send = self._send = self._transmit = _drop
        self._handler = _NULL_HANDLER
        del self._ws

    def pause_writing(self) -> None:
        # A client that does not read its replies is not asked for more requests.
        self._given, self._taken = 0, None
        self.send = partial(self._context.batcher.reply, self._transmit_slowly)
        self._hold("client")

    def resume_writing(self) -> None:
        self.send = self._send
        self._release("client")

    # The `Channel` of the connection.

    def close(self, code: int, reason: str = "") -> None:
        self._context.batcher.finish()
        if self._over:
            return
        self._ws.send_close(WSCloseCode(code), reason)
        self._ws.disconnect()

    def pause(self) -> None:
        self._hold("session")

    def resume(self) -> None:
        self._release("session")

    # Called by the keepalive.

    def silent(self) -> bool:
        return not self._has_been_heard(_FOR_PINGS) and (not self._holds or self._takes_nothing())

    def ping(self) -> None:
        if not self._holds:
            self._ws.send_ping()

    def cut(self) -> None:
        self._give_up("ping_interval_s")

    def _app_silent(self) -> bool:
        if self._has_been_heard(_FOR_APP):
            return False
        return not self._holds or (not self._context.keepalive.watches and self._takes_nothing())

    def _has_been_heard(self, since: int) -> bool:
        heard = self.heard & since
        self.heard &= ~since
        if heard and self._connection is not None:
            self._connection.life.heard_at = time.monotonic()
        return bool(heard)

    def _takes_nothing(self) -> bool:
        """Whether a slow client received nothing since the last beat."""
        if "client" not in self._holds:
            return False
        before, self._taken = self._taken, self._given - self._lingering.get_write_buffer_size()
        return before is not None and self._taken <= before

    def _give_up(self, setting: str) -> None:
        if "client" in self._holds:
            self._leave_behind(f"it received nothing for two periods of {setting}")
            return
        self.warn("its client sent nothing for two periods (%s): the connection is cut", setting)
        self._ws.disconnect(graceful=False)

    def shutdown(self) -> None:
        """Called by uvicorn on every connection when it stops."""
        if self._connection is not None:
            self._connection.stop()
        self.close(CLOSE_GOING_AWAY)

    def broken(self, code: WSCloseCode, explanation: str) -> None:
        """Sends the client the reason before picows closes because of an invalid frame."""
        if self._connection is None:
            return
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            size = _SIZE.search(explanation)
            self._connection.oversized(int(size[1]) if size else None)
        else:
            self.warn("%s", explanation)

    def warn(self, message: str, *args: Any) -> None:
        """Logs a warning about the session."""
        session = self.session_id
        logger.warning("session %s: " + message, session, *args, extra=log_extra(session))

    def _assemble(self, kind: WSMsgType, frame: WSFrame) -> None:
        """Collects the fragments of a message, and handles whole frames of the other type (RFC 6455, section 5.4)."""
        assert self._connection is not None
        if frame.rsv1:
            self._violated("a frame has RSV1 set, but no extension was negotiated")
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
        if len(self._parts) > self._context.max_bytes:
            self._connection.oversized(len(self._parts))
        elif frame.fin:
            message, self._parts = bytes(self._parts), bytearray()
            binary, self._part_type, self._whole = self._part_type == WSMsgType.BINARY, None, self._kind
            self._context.batcher.finish()
            if binary:
                self._connection.receive_binary(message)
            else:
                self._connection.receive(message)

    def _violated(self, what: str) -> None:
        """Ends the connection of a client that violates RFC 6455."""
        assert self._connection is not None
        self.warn("%s: closed", what)
        self._connection.disconnected()
        self._connection = None
        self.close(CLOSE_PROTOCOL_ERROR, what)

    def _transmit_slowly(self, frame: bytes) -> None:
        """Sends to a slow client, as long as its unsent bytes are within the limit."""
        size = len(frame)
        waiting = self._lingering.get_write_buffer_size() + size
        if waiting > self._context.max_unsent:
            limit = f"{self._context.max_unsent} bytes (max_unsent_mb, OPENENV_MAX_UNSENT_MB)"
            self._leave_behind(f"{waiting} unsent bytes exceed the limit of {limit}")
        else:
            self._given += size + (2 if size < 126 else 4 if size < 65536 else 10)
            self._transmit(frame)

    def _leave_behind(self, why: str) -> None:
        """Ends the connection of a client that does not read."""
        if self._connection is None:
            return
        error = SlowReader(f"the client does not read its replies: {why}; read continuously, or request less data")
        METER.failed(error)
        self.warn("%s: %s", type(error).__name__, error.message)
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
            # The client was neither read nor pinged until now, so its silence is counted from here.
            self.heard = _HEARD
        if not self._over and not self._holds and not self._ws.underlying_transport.is_closing():
            self._ws.underlying_transport.resume_reading()


@dataclass(slots=True)
class _Handler:
    """A `FrameHandler` made of two functions."""

    receive: Callable[[bytes], None]
    failed: Callable[[], None]


def _drop(*_: object) -> None:
    """Drops a frame of a connection that has ended."""


_NULL_HANDLER = _Handler(_drop, _drop)
