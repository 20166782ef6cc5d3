"""A session that costs the load as little as can be: thousands of them share the machine with the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, cast

from ..errors import ConnectionFailed, ConnectionLost, ConnectTimeout, OpenEnvError, ProtocolViolation, StepTimeout
from ..gateway import HEADER
from ..protocol import ClientProtocol
from .destination import Destination
from .frames import FrameReader, Opcode, client_frame

__all__ = ["ThinClient"]

# Seconds for the server to end a connection that was said goodbye to.
CLOSE_TIMEOUT_S = 2.0
_ROUTE = re.compile(rb"(?i)\r\n%s: *([^\r\n]+)" % HEADER.encode())
_GOODBYE = client_frame(Opcode.CLOSE, b"\x03\xe8")


class ThinClient(asyncio.Protocol):
    """One session over one connection, in protocol v1, which servers of every version speak. One call at a time.

    It has no pings, no proxies and no limits, and uses asyncio's own transport: half the CPU time of `EnvClient`
    from connecting to closing, and there is nobody to wait for the connection who could give up.

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
                self._received(opcode, payload)
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

    def _received(self, opcode: Opcode, payload: bytes) -> None:
        if opcode is Opcode.TEXT:
            reply = self._protocol.receive(payload)
            if reply.error is not None:
                self._fail(reply.error)
            elif not self._answer.done():
                self._answer.set_result(reply.payload)
        elif opcode is Opcode.PING:
            self._write(client_frame(Opcode.PONG, payload))
        elif opcode is Opcode.CLOSE:
            self._farewell = f" (the server closed it with code {int.from_bytes(payload[:2], 'big') or 1005})"
            self._write(_GOODBYE)
            self._close()

    def _fail(self, error: OpenEnvError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # read, in case that nobody waits
        elif self._error is None:
            self._error = error

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
