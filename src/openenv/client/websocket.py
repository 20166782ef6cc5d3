"""Frames over a WebSocket, by picows."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSProtocolError,
    WSTransport,
    ws_connect,
)
from python_socks import ProxyError

from ..errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
)
from ..settings import proxy_for
from .transport import Receiver
from .url import is_loopback

__all__ = ["Options", "WebSocketTransport", "connect"]

# An adapter, since picows makes a child of a plain logger for every connection and keeps it.
_picows_log = logging.LoggerAdapter(logging.getLogger("openenv.client.picows"))
_picows_log.setLevel(logging.CRITICAL)
# Seconds for the closing handshake; a server that does not answer is left.
CLOSE_TIMEOUT_S = 2.0
_TEXT, _PONG, _CLOSE = WSMsgType.TEXT, WSMsgType.PONG, WSMsgType.CLOSE


@dataclass(frozen=True, slots=True)
class Options:
    """How to connect.

    Attributes:
        connect_timeout_s: Seconds for TCP, TLS and WebSocket handshake together.
        max_message_bytes: Largest message accepted.
        ping_interval_s: Seconds of silence before a ping; None sends none.
        ping_timeout_s: Seconds without an answer to a ping before the connection counts as lost.
        headers: Further HTTP headers of the handshake.
    """

    connect_timeout_s: float
    max_message_bytes: int
    ping_interval_s: float | None
    ping_timeout_s: float | None
    headers: tuple[tuple[str, str], ...] = ()


async def connect(url: str, receiver: Receiver, options: Options) -> WebSocketTransport:
    """Opens a connection.

    Raises:
        ConnectTimeout: No connection within `connect_timeout_s`.
        ConnectionFailed: Refused, not reachable, or the server does not speak WebSocket there.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = None if is_loopback(host) else proxy_for("https" if parts.scheme == "wss" else "http", host)
    interval = options.ping_interval_s or 0.0
    made: list[WebSocketTransport] = []

    unwanted = asyncio.Event()

    def transport() -> WebSocketTransport:
        made.append(WebSocketTransport(url, receiver, options, unwanted))
        return made[0]

    def leave() -> None:
        unwanted.set()
        for transport_made in made:
            transport_made.drop()

    try:
        async with asyncio.timeout(options.connect_timeout_s):
            await ws_connect(
                transport,
                url,
                ssl_context=ssl.create_default_context() if parts.scheme == "wss" else None,
                # Also ends what was left in the middle, by a caller who was cancelled.
                websocket_handshake_timeout=options.connect_timeout_s,
                enable_auto_ping=interval > 0,
                auto_ping_idle_timeout=interval,
                auto_ping_reply_timeout=min(options.ping_timeout_s or interval, interval),
                max_frame_size=options.max_message_bytes,
                extra_headers=options.headers or None,
                proxy=proxy,
                logger_name=_picows_log,
                read_buffer_init_size=4096,
            )
    except TimeoutError as error:
        leave()
        raise ConnectTimeout(
            f"no connection to {url} within {options.connect_timeout_s:g} s (connect_timeout_s): is the server up?"
        ) from error
    except WSHandshakeError as error:
        status = f" (HTTP {error.response.status})" if error.response is not None else ""
        raise ConnectionFailed(
            f"{url} does not speak WebSocket{status}: is this the address of an openenv server? {error}"
        ) from error
    except (OSError, WSError, ProxyError) as error:
        raise ConnectionFailed(f"cannot connect to {url}: {error}; is the server up?") from error
    except asyncio.CancelledError:
        leave()
        raise
    if not made:
        raise ConnectionFailed(f"{url} closed the connection during the handshake: is it an openenv server?")
    return made[0]


class WebSocketTransport(WSListener):
    """One connection. Made by `connect`, which returns it when the handshake is done.

    Args:
        url: Where it leads, for messages.
        receiver: Gets the frames, and the reason when the connection ends.
        options: Its limits.
        unwanted: Set when its maker was cancelled, perhaps before the handshake is done.
    """

    def __init__(self, url: str, receiver: Receiver, options: Options, unwanted: asyncio.Event):
        self._url = url
        self._receiver = receiver
        self._max_bytes = options.max_message_bytes
        self._unwanted = unwanted
        self._parts = bytearray()
        self._ended = asyncio.Event()
        self._end: asyncio.Task[None] | None = None

    def send(self, frame: bytes) -> None:
        """Sends one text frame."""
        self._ws.send(_TEXT, frame)

    def drop(self) -> None:
        self._ws.send_close(WSCloseCode.OK)
        self._ws.disconnect()

    async def aclose(self) -> None:
        """Says goodbye and waits for the server to do so, two seconds at most."""
        self._ws.send_close(WSCloseCode.OK)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()
        except TimeoutError:
            self._ws.disconnect(graceful=False)
            await self._ended.wait()

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        if self._unwanted.is_set():
            self.drop()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is _TEXT and frame.fin:
            self._receiver.received(frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif kind is not _PONG:
            self._assemble(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._end = asyncio.get_running_loop().create_task(self._explain_end(transport))

    def _assemble(self, frame: WSFrame) -> None:
        """Collects the fragments of a message."""
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._max_bytes:
            raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, f"{len(self._parts)} > {self._max_bytes}")
        if frame.fin:
            message, self._parts = bytes(self._parts), bytearray()
            self._receiver.received(message)

    async def _explain_end(self, transport: WSTransport) -> None:
        error: OpenEnvError
        try:
            # Ends at once, with the exception that picows closed the connection for, if there was one.
            await transport.wait_disconnected()
        except WSProtocolError as cause:
            if cause.code == WSCloseCode.MESSAGE_TOO_BIG:
                error = MessageTooLarge(
                    f"the server sent a message over the limit of {self._max_bytes} bytes "
                    f"(max_message_size_mb): {cause}"
                )
            else:
                error = ProtocolViolation(f"{self._url}: {cause}")
        else:
            error = ConnectionLost(f"the connection to {self._url} has ended{_farewell(transport)}")
        self._receiver.lost(error)
        self._ended.set()


def _farewell(transport: WSTransport) -> str:
    handshake = transport.close_handshake
    if handshake is None or handshake.recv is None:
        return " without a word"
    reason = f": {handshake.recv.reason}" if handshake.recv.reason else ""
    return f" (the server closed it with code {handshake.recv.code.value}{reason})"
