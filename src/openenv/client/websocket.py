"""The WebSocket transport, on picows."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

import picows
from python_socks import ProxyError

from .. import errors
from .._backoff import jittered_pause
from .._http import reason_of
from ..protocol.codecs import SUBPROTOCOLS, codec_of
from ..settings import is_loopback, proxy_for
from .connection import Receiver
from .endpoints import ANY_SERVER, Affinity, Headers
from .handshake_errors import handshake_error, redirect_target

# An adapter, since picows makes a child of a plain logger for every connection and keeps it. Its logger is not
# registered, so that a configuration of this package's loggers does not turn it on.
_picows_log = logging.LoggerAdapter(logging.Logger("openenv.client.picows", logging.CRITICAL))
# Seconds for the closing handshake; then the connection is dropped.
CLOSE_TIMEOUT_S = 2.0
_TEXT, _BINARY = picows.WSMsgType.TEXT, picows.WSMsgType.BINARY
_PONG, _CLOSE = picows.WSMsgType.PONG, picows.WSMsgType.CLOSE
_SUBPROTOCOL, _ROUTE = "Sec-WebSocket-Protocol", "X-OpenEnv-Route"
# Seconds between attempts, after an interrupted handshake.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class WebSocketOptions:
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
    headers: Headers = field(default=(), repr=False)  # a key may be among them


async def connect(
    url: str, receiver: Callable[[str | None], Receiver], options: WebSocketOptions
) -> WebSocketTransport:
    """Opens a connection, and offers every version of the protocol.

    Args:
        url: Address.
        receiver: Makes the receiver of its frames when the handshake has shown the subprotocol.
        options: How.

    Raises:
        ConnectTimeout: No connection within `connect_timeout_s`.
        ProtocolViolation: The server chose a subprotocol that was not offered.
        Unauthorized: The server needs a valid API key.
        ProviderFailed: The gateway reports that the server's provider has lost it.
        ConnectionFailed: Refused, not reachable, or the server does not speak WebSocket there.
    """
    attempt = _Attempt(url, receiver, options)
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            await attempt.run()
    except errors.ProtocolViolation:
        raise
    except TimeoutError as error:
        attempt.leave()
        raise errors.ConnectTimeout(
            f"no connection to {url} within {options.connect_timeout_s:g} s (connect_timeout_s): is the server up?"
        ) from error
    except picows.WSHandshakeError as error:
        refusal = handshake_error(url, error)
        if refusal is not None:
            raise refusal from None
        status = f" (HTTP {error.response.status})" if error.response is not None else ""
        raise errors.ConnectionFailed(
            f"{url} does not speak WebSocket{status}: is this the address of an openenv server? {error}"
        ) from error
    except (OSError, picows.WSError, ProxyError) as error:
        raise errors.ConnectionFailed(f"cannot connect to {url}: {reason_of(error)}; is the server up?") from error
    except asyncio.CancelledError:
        attempt.leave()
        raise
    if not attempt.made:
        raise errors.ConnectionFailed(
            f"{url} closed the connection during the handshake, again and again: is it an openenv server?"
        )
    return attempt.made[0]


class _Attempt:
    """One attempt to connect, until a handshake is done.

    Attributes:
        made: The transport, when there is one.
    """

    def __init__(self, url: str, receiver: Callable[[str | None], Receiver], options: WebSocketOptions):
        self.made: list[WebSocketTransport] = []
        self._url = url
        self._receiver = receiver
        self._options = options
        self._unwanted = asyncio.Event()

    async def run(self) -> None:
        for longest in _PAUSES_S:
            await self._shake_hands()
            if self.made:
                return
            # Interrupted by a bad network, or by a server that is starting.
            await asyncio.sleep(jittered_pause(longest))
        await self._shake_hands()

    async def _shake_hands(self) -> None:
        try:
            await self._connect((*self._options.headers, (_SUBPROTOCOL, ", ".join(SUBPROTOCOLS))))
        except picows.WSHandshakeError as error:
            # Some servers refuse a request that offers subprotocols that they do not know.
            if error.response is None or error.response.status != HTTPStatus.BAD_REQUEST:
                raise
            await self._connect(self._options.headers)

    def leave(self) -> None:
        """Closes the connection, also one that is still being made."""
        self._unwanted.set()
        for transport in self.made:
            transport.drop()

    async def _connect(self, headers: Headers) -> None:
        url = self._url
        for _ in range(MOST_REDIRECTS):
            try:
                await self._connect_to(url, headers)
            except picows.WSHandshakeError as error:
                url, headers = redirect_target(url, headers, error)
            else:
                return
        await self._connect_to(url, headers)

    async def _connect_to(self, url: str, headers: Headers) -> None:
        options = self._options
        parts = urlsplit(url)
        host = parts.hostname or ""
        interval = options.ping_interval_s or 0.0
        await picows.ws_connect(
            self._transport,
            url,
            ssl_context=ssl.create_default_context() if parts.scheme == "wss" else None,
            # Also ends a handshake after its caller was cancelled.
            websocket_handshake_timeout=options.connect_timeout_s,
            enable_auto_ping=interval > 0,
            auto_ping_idle_timeout=interval,
            auto_ping_reply_timeout=min(options.ping_timeout_s or interval, interval),
            max_frame_size=options.max_message_bytes,
            extra_headers=headers or None,
            max_redirects=0,  # picows would show the key to every server that it is redirected to
            proxy=None if is_loopback(host) else proxy_for("https" if parts.scheme == "wss" else "http", host),
            logger_name=_picows_log,
            read_buffer_init_size=4096,
            # It reads by `loop.add_reader`, and leaves readers of closed sockets behind: asyncio then does not read
            # the next socket with that descriptor. uvloop does not tell it of a reset amid a frame.
            use_aiofastnet=False,
        )

    def _transport(self, _: picows.WSUpgradeRequest, response: picows.WSUpgradeResponse) -> WebSocketTransport:
        """Called by picows when the server has agreed to speak WebSocket."""
        subprotocol = response.headers.get(_SUBPROTOCOL)
        if subprotocol is not None and subprotocol not in SUBPROTOCOLS:
            raise errors.ProtocolViolation(
                f"{self._url} chose the subprotocol {subprotocol!r}, which was not offered"
            )
        transport = WebSocketTransport(
            self._url, self._receiver(subprotocol), self._options, self._unwanted, subprotocol
        )
        transport.affinity = Affinity(route=response.headers.get(_ROUTE))
        self.made.append(transport)
        return transport


class WebSocketTransport(picows.WSListener):
    """One connection. Made by `connect`, which returns it when the handshake is done.

    Args:
        url: Its address, for messages.
        receiver: Gets the frames, and the reason when the connection ends.
        options: Its limits.
        unwanted: Set when its maker was cancelled, perhaps before the handshake is done.
        subprotocol: Agreed on; None for protocol v1.
    """

    def __init__(
        self,
        url: str,
        receiver: Receiver,
        options: WebSocketOptions,
        unwanted: asyncio.Event,
        subprotocol: str | None,
    ):
        self.subprotocol = subprotocol
        self.affinity = ANY_SERVER
        self._gone = False
        self._on_closed: Callable[[], None] | None = None
        self._url = url
        self._receiver = receiver
        self._max_bytes = options.max_message_bytes
        self._unwanted = unwanted
        self._kind = _BINARY if subprotocol is not None and codec_of(subprotocol).binary else _TEXT
        self._parts = bytearray()
        self._ended = asyncio.Event()
        self._end: asyncio.Task[None] | None = None

    def on_closed(self, call: Callable[[], None]) -> None:
        """Sets the function to call once when the connection ends; calls it now if it has ended."""
        if self._gone:
            call()
        else:
            self._on_closed = call

    def send(self, frame: bytes) -> None:
        """Sends one frame."""
        self._ws.send(self._kind, frame)

    def drop(self) -> None:
        self._ws.send_close(picows.WSCloseCode.OK)
        self._ws.disconnect()

    async def aclose(self) -> None:
        """Sends a close frame and waits for the server's, two seconds at most."""
        self._ws.send_close(picows.WSCloseCode.OK)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()
        except TimeoutError:
            self._ws.disconnect(graceful=False)
            await self._ended.wait()

    # Called by picows.

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._ws = transport
        if self._unwanted.is_set():
            self.drop()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        kind = frame.msg_type
        if kind is self._kind and frame.fin:
            # Binary frames are decoded in this call: what remains of them is copied.
            binary = kind is _BINARY
            self._receiver.received(frame.get_payload_as_memoryview() if binary else frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            transport.send_close(picows.WSCloseCode.OK)
            transport.disconnect()
        elif kind is not _PONG:
            self._parts += frame.get_payload_as_memoryview()
            if len(self._parts) > self._max_bytes:
                said = f"{len(self._parts)} > {self._max_bytes}"
                raise picows.WSProtocolError(picows.WSCloseCode.MESSAGE_TOO_BIG, said)
            if frame.fin:
                message, self._parts = bytes(self._parts), bytearray()
                self._receiver.received(message)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._gone = True
        if self._on_closed is not None:
            self._on_closed()
        self._end = asyncio.get_running_loop().create_task(self._explain_end(transport))

    async def _explain_end(self, transport: picows.WSTransport) -> None:
        error: errors.OpenEnvError
        try:
            # Ends at once, with the exception for which picows closed the connection, if any.
            await transport.wait_disconnected()
        except picows.WSProtocolError as cause:
            if cause.code == picows.WSCloseCode.MESSAGE_TOO_BIG:
                error = errors.MessageTooLarge(
                    f"the server sent a message over the limit of {self._max_bytes} bytes "
                    f"(max_message_size_mb): {cause}"
                )
            else:
                error = errors.ProtocolViolation(f"{self._url}: {cause}")
        except Exception as fault:  # noqa: BLE001 - an edge: after any exception, no caller may wait forever
            error = errors.ProtocolViolation(
                f"a message from {self._url} could not be handled ({type(fault).__name__}: {fault}): "
                "are client and server of one version?"
            )
            error.__cause__ = fault
        else:
            close = None if transport.close_handshake is None else transport.close_handshake.recv
            how = " without a word"
            if close is not None:
                reason = f": {close.reason}" if close.reason else ""
                how = f" (the server closed it with code {close.code.value}{reason})"
            error = errors.ConnectionLost(f"the connection to {self._url} has ended{how}")
        self._receiver.lost(error)
        self._ended.set()
