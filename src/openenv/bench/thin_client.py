"""A WebSocket session that costs the load generator as little CPU as possible."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from websockets.frames import Opcode

from .._asyncio import shielded
from .._http import reason_of
from ..client.endpoints import websocket_url
from ..errors import ConnectionFailed, ConnectionLost, ConnectTimeout, OpenEnvError, ProtocolViolation, StepTimeout
from ..protocol.client import ClientProtocol
from ..providers.gateway import HEADER

# Clients must mask their frames. This mask does not change the bytes.
_MASK = bytes(4)
_FINAL, _MASKED = 0x80, 0x80


def client_frame(opcode: Opcode, payload: bytes) -> bytes:
    """The frame of a whole message from a client."""
    size = len(payload)
    if size < 126:
        head = bytes((_FINAL | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big")
    return head + _MASK + payload


class FrameReader:
    """Splits the data from a server into messages."""

    __slots__ = ("_opcode", "_parts", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._parts = b""
        self._opcode = Opcode.TEXT

    def feed(self, data: bytes) -> Iterator[tuple[Opcode, bytes]]:
        """The complete messages, each with its opcode. Keeps incomplete data for the next call.

        Raises:
            ProtocolViolation: A server must not send this.
        """
        rest = self._rest + data if self._rest else data
        while (bounds := _bounds(rest)) is not None:
            begin, end = bounds
            first, payload, rest = rest[0], rest[begin:end], rest[end:]
            try:
                opcode = Opcode(first & 0x0F)
            except ValueError:
                raise ProtocolViolation(f"the server sent a frame with the unknown opcode {first & 0x0F}") from None
            if opcode < Opcode.CLOSE and not (opcode and first & _FINAL):  # a fragment of a message
                if opcode:
                    self._opcode, self._parts = opcode, b""
                self._parts += payload
                opcode, payload = self._opcode, self._parts
            if opcode >= Opcode.CLOSE or first & _FINAL:
                # The caller may stop here: this frame is then consumed.
                self._rest = rest
                yield opcode, payload
        self._rest = rest


def _bounds(data: bytes) -> tuple[int, int] | None:
    """Start and end of the payload of the first frame. None if the frame is incomplete."""
    if len(data) < 2:
        return None
    size, begin = data[1], 2
    if size & _MASKED:
        raise ProtocolViolation("the server sent a masked frame, which WebSocket servers must not do")
    if size >= 126:
        begin = 4 if size == 126 else 10
        if len(data) < begin:
            return None
        size = int.from_bytes(data[2:begin], "big")
    return (begin, begin + size) if len(data) >= begin + size else None


# Sessions per source address. An address has about 28,000 ports for one destination, and a used port is blocked
# for a minute. This number allows many batches a minute, and lets the kernel find a free port quickly.
SESSIONS_PER_SOURCE = 1024
_SOURCES_PER_NET = 250


@dataclass(frozen=True, slots=True)
class Destination:
    """A server's environment endpoint, ready for connections.

    Attributes:
        url: The full URL.
        host, port: Address to connect to.
        handshake: The HTTP request of the handshake, including the key.
        tls: TLS context for `wss`.
        sources: Whether source addresses 127.x.y.z may be used, as on Linux for a destination in that network.
    """

    url: str
    host: str
    port: int
    handshake: bytes = field(repr=False)
    tls: ssl.SSLContext | None
    sources: bool

    def source(self, number: int) -> tuple[str, int] | None:
        """The source address of a session, by its number in the batch. None for the system's choice."""
        if not self.sources:
            return None
        net, place = divmod(number // SESSIONS_PER_SOURCE, _SOURCES_PER_NET)
        return f"127.0.{1 + net}.{1 + place}", 0


@lru_cache
def destination_of(url: str, api_key: str | None = None) -> Destination:
    """Parses an address in any form that `EnvClient` takes. Ignores proxies of the environment.

    Args:
        url: The address.
        api_key: API key of the server.

    Raises:
        UsageError: The address is invalid.
    """
    full = websocket_url(url)
    parts = urlsplit(full)
    host, secure = parts.hostname or "", parts.scheme == "wss"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    key = "" if api_key is None else f"Authorization: Bearer {api_key}\r\n"
    try:
        is_loopback = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        is_loopback = False
    return Destination(
        url=full,
        host=host,
        port=parts.port or (443 if secure else 80),
        handshake=(
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: b25lIGtleSBmb3IgYWxsLg==\r\n{key}\r\n"
        ).encode(),
        tls=ssl.create_default_context() if secure else None,
        sources=sys.platform == "linux" and is_loopback,
    )


# Seconds for the server to close a connection after our close frame.
CLOSE_TIMEOUT_S = 2.0
_ROUTE = re.compile(rb"(?i)\r\n%s: *([^\r\n]+)" % HEADER.encode())
_GOODBYE = client_frame(Opcode.CLOSE, b"\x03\xe8")


class ThinClient(asyncio.Protocol):
    """One session over one connection with protocol v1, which all servers support. One call at a time.

    It has no pings, proxies or limits, and uses asyncio's transport directly. From connect to close, it needs half
    the CPU time of `EnvClient`.

    Attributes:
        route: Name of the server that a gateway has chosen, once connected.
    """

    def __init__(self, destination: Destination):
        loop = asyncio.get_running_loop()
        self._destination = destination
        self._protocol = ClientProtocol()
        self._reader = FrameReader()
        self._head: bytes | None = b""
        self._answer: asyncio.Future[Any] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self.route: str | None = None
        self._farewell = " without a word"
        # The error that the next call raises: a full server sends one without a request.
        self._error: OpenEnvError | None = None

    @classmethod
    async def connect(cls, destination: Destination, number: int, timeout_s: float) -> ThinClient:
        """Opens a connection.

        Args:
            destination: The server.
            number: Number of the session in its batch, which determines its source address.
            timeout_s: Seconds for TCP, TLS and WebSocket handshake together.

        Raises:
            ConnectTimeout: No connection in time.
            ConnectionFailed: Refused, unreachable, or not a WebSocket (`ConnectionLost`: the server closed it).
        """
        client = cls(destination)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: client,
                    destination.host,
                    destination.port,
                    ssl=destination.tls,
                    local_addr=destination.source(number),
                )
                await client._answer
        except TimeoutError:
            client._abort()
            raise ConnectTimeout(f"no connection to {destination.url} within {timeout_s:g} s") from None
        except OSError as error:
            if isinstance(error, OpenEnvError):
                raise
            reason = reason_of(error)
            raise ConnectionFailed(f"cannot connect to {destination.url}: {reason}; is the server up?") from error
        return client

    async def call(self, kind: str, data: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """Sends a request and waits for its reply.

        Args:
            kind: `reset` or `step`.
            data: The message's `data`.
            timeout_s: Seconds to wait.

        Returns:
            The observation.

        Raises:
            OpenEnvError: The server's error, `StepTimeout` or `ConnectionLost`.
        """
        if self._error is not None:
            raise self._error
        self._answer = asyncio.get_running_loop().create_future()
        frame, _ = self._protocol.send(kind, data)
        self._write(client_frame(Opcode.TEXT, frame))
        try:
            async with asyncio.timeout(timeout_s):
                payload = await self._answer
        except TimeoutError as error:
            if isinstance(error, OpenEnvError):  # an error of the server
                raise
            raise StepTimeout(f"no answer to {kind} within {timeout_s:g} s") from None
        observation = payload.get("observation")
        if not isinstance(observation, dict):
            raise ProtocolViolation(f"the server answered {kind} without an observation")
        return observation

    async def close(self) -> None:
        """Sends a close frame, and waits up to two seconds for that of the server."""
        if not self._ended.done():
            self._write(_GOODBYE)
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await shielded(self._ended)
            except TimeoutError:
                self._abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write(self._destination.handshake)

    def data_received(self, data: bytes) -> None:
        try:
            if self._head is not None:
                data = self._shake(self._head + data)
            for opcode, payload in self._reader.feed(data):
                if opcode is Opcode.TEXT:
                    reply = self._protocol.receive(payload)
                    if reply.error is not None:
                        self._fail(reply.error)
                    elif not self._answer.done():
                        self._answer.set_result(reply.payload)
                elif opcode is Opcode.PING:
                    self._write(client_frame(Opcode.PONG, payload))
                elif opcode is Opcode.CLOSE:
                    code = int.from_bytes(payload[:2], "big") or 1005
                    self._farewell = f" (the server closed it with code {code})"
                    self._write(_GOODBYE)
                    assert self._transport is not None
                    self._transport.close()
        except OpenEnvError as error:
            self._fail(error)
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)
        why = f": {exc}" if exc else self._farewell
        lost = ConnectionLost(f"the connection to {self._destination.url} has ended{why}")
        self._fail(lost)
        self._error = self._error or lost

    def _shake(self, head: bytes) -> bytes:
        """Parses the server's handshake. Returns the data after it."""
        head, end, rest = head.partition(b"\r\n\r\n")
        if not end:
            self._head = head
            return b""
        self._head = None
        status = head.split(b" ", 2)[1:2]
        if status != [b"101"]:
            first = head.partition(b"\r\n")[0][:100].decode(errors="replace")
            raise ConnectionFailed(f"{self._destination.url} does not speak WebSocket: {first!r}")
        route = _ROUTE.search(head)
        self.route = None if route is None else route[1].decode("ascii", errors="replace")
        self._answer.set_result(None)
        return rest

    def _fail(self, error: OpenEnvError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # mark as retrieved, in case no caller waits
        elif self._error is None:
            self._error = error

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
