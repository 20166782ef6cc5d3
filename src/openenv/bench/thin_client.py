"""A WebSocket session that costs the load generator as little CPU as possible."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from ..client.endpoints import websocket_url
from ..errors import ConnectionFailed, ConnectionLost, ConnectTimeout, OpenEnvError, ProtocolViolation, StepTimeout
from ..protocol import ClientProtocol
from ..providers.gateway import HEADER


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


# A mask is due from every client; this one leaves the bytes as they are.
_MASK = bytes(4)
_FINAL, _MASKED = 0x80, 0x80


def client_frame(opcode: Opcode, payload: bytes) -> bytes:
    """One whole message as a client sends it."""
    size = len(payload)
    if size < 126:
        head = bytes((_FINAL | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big")
    return head + _MASK + payload


class FrameReader:
    """What a server sends, cut into messages."""

    __slots__ = ("_opcode", "_parts", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._parts = b""
        self._opcode = Opcode.TEXT

    def feed(self, data: bytes) -> Iterator[tuple[Opcode, bytes]]:
        """The messages that are whole now, each with its kind; the rest waits for more.

        Raises:
            ProtocolViolation: This is not what a server may send.
        """
        rest = self._rest + data if self._rest else data
        while (bounds := _bounds(rest)) is not None:
            begin, end = bounds
            first, payload, rest = rest[0], rest[begin:end], rest[end:]
            try:
                opcode = Opcode(first & 0x0F)
            except ValueError:
                raise ProtocolViolation(f"the server sent a frame of unknown kind {first & 0x0F}") from None
            if opcode < Opcode.CLOSE and not (opcode and first & _FINAL):  # a part of a message
                if opcode:
                    self._opcode, self._parts = opcode, b""
                self._parts += payload
                opcode, payload = self._opcode, self._parts
            if opcode >= Opcode.CLOSE or first & _FINAL:
                # The caller may stop here: what was read is not read again.
                self._rest = rest
                yield opcode, payload
        self._rest = rest


def _bounds(data: bytes) -> tuple[int, int] | None:
    """Where the payload of the first frame begins and ends; None if it is not whole yet."""
    if len(data) < 2:
        return None
    size, begin = data[1], 2
    if size & _MASKED:
        raise ProtocolViolation("the server sent a masked frame: is it a WebSocket server?")
    if size >= 126:
        begin = 4 if size == 126 else 10
        if len(data) < begin:
            return None
        size = int.from_bytes(data[2:begin], "big")
    return (begin, begin + size) if len(data) >= begin + size else None


# An address has about 28,000 ports for one destination, and one that was used rests for a minute. So few of them
# leave room for many storms a minute, and the kernel finds a free one at its first look.
SESSIONS_PER_SOURCE = 1024
_SOURCES_PER_NET = 250


@dataclass(frozen=True, slots=True)
class Destination:
    """A server's environment endpoint, ready for connections.

    Attributes:
        url: In its full form.
        host, port: Where to connect.
        handshake: The request that asks for a WebSocket; the key is in it.
        tls: For `wss`.
        sources: Whether connections may come from any address 127.x.y.z, as they may to such an address on Linux.
    """

    url: str
    host: str
    port: int
    handshake: bytes = field(repr=False)
    tls: ssl.SSLContext | None
    sources: bool

    def source(self, number: int) -> tuple[str, int] | None:
        """The local address for a session, by its number within the storm; None leaves it to the system."""
        if not self.sources:
            return None
        net, place = divmod(number // SESSIONS_PER_SOURCE, _SOURCES_PER_NET)
        return f"127.0.{1 + net}.{1 + place}", 0


@lru_cache
def destination_of(url: str, api_key: str | None = None) -> Destination:
    """Reads an address in any form that `EnvClient` takes. Proxies of the environment are not used.

    Args:
        url: The address.
        api_key: The key that the server asks for.

    Raises:
        UsageError: It is none.
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


# Seconds for the server to end a connection after our close frame.
CLOSE_TIMEOUT_S = 2.0
_ROUTE = re.compile(rb"(?i)\r\n%s: *([^\r\n]+)" % HEADER.encode())
_GOODBYE = client_frame(Opcode.CLOSE, b"\x03\xe8")


class ThinClient(asyncio.Protocol):
    """One session over one connection, in protocol v1, which servers of every version speak. One call at a time.

    It has no pings, no proxies and no limits, and uses asyncio's own transport: half the CPU time of `EnvClient`
    from connecting to closing, and no caller waits for the connection and could give up.

    Attributes:
        route: What a gateway calls the server that it has chosen, once there is a connection.
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
        # What the next call will raise: a server that is full says so unasked.
        self._error: OpenEnvError | None = None

    @classmethod
    async def connect(cls, destination: Destination, number: int, timeout_s: float) -> ThinClient:
        """Opens a connection.

        Args:
            destination: Where to.
            number: Of the session within its storm: says which local address it comes from.
            timeout_s: Seconds for TCP, TLS and WebSocket handshake together.

        Raises:
            ConnectTimeout: No connection in time.
            ConnectionFailed: Refused, not reachable, or no WebSocket there (`ConnectionLost`: it hung up).
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
            raise ConnectionFailed(f"cannot connect to {destination.url}: {error}; is the server up?") from error
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
            OpenEnvError: What the server reported, or `StepTimeout`, or `ConnectionLost`.
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
            if isinstance(error, OpenEnvError):  # the server's own
                raise
            raise StepTimeout(f"no answer to {kind} within {timeout_s:g} s") from None
        observation = payload.get("observation")
        if not isinstance(observation, dict):
            raise ProtocolViolation(f"the server answered {kind} without an observation")
        return observation

    async def close(self) -> None:
        """Says goodbye and waits for the server to do so, two seconds at most."""
        if not self._ended.done():
            self._write(_GOODBYE)
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._ended)
            except TimeoutError:
                self._abort()

    # What asyncio calls.

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
        """Reads the server's part of the handshake. Returns what came after it."""
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
            self._answer.exception()  # read, in case that no caller waits
        elif self._error is None:
            self._error = error

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
