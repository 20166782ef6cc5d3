"""Servers that say on a real socket what a test wants them to say, right or wrong."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic_core import from_json, to_json

from ..asynchronous import PATIENCE_S

__all__ = ["BINARY", "CLOSE", "CONTINUATION", "PING", "PONG", "TEXT", "Peer", "Place", "observation", "serving"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Peer:
    """The server's end of one connection, with nothing but its own two hands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self.request = b""

    async def read_request(self) -> None:
        """Reads the client's HTTP request."""
        self.request = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)

    def header(self, name: str) -> str | None:
        """A header of the client's request."""
        for line in self.request.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    async def accept(self, subprotocol: str | None = None) -> None:
        """Reads the request and agrees to speak WebSocket, in the subprotocol if one is given."""
        await self.read_request()
        key = (self.header("Sec-WebSocket-Key") or "").encode()
        answer = base64.b64encode(hashlib.sha1(key + _GUID).digest())
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + answer + b"\r\n"
        )
        if subprotocol is not None:
            self.writer.write(f"Sec-WebSocket-Protocol: {subprotocol}\r\n".encode())
        self.writer.write(b"\r\n")

    async def refuse(self, status: str, *headers: str) -> None:
        """Reads the request and answers with another status."""
        await self.read_request()
        lines = [f"HTTP/1.1 {status}", "Content-Length: 0", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode())

    def send(self, kind: int, payload: bytes = b"", fin: bool = True) -> None:
        """Sends one frame."""
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", fin << 7 | kind, length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", fin << 7 | kind, 126, length)
        else:
            head = struct.pack("!BBQ", fin << 7 | kind, 127, length)
        self.writer.write(head + payload)

    def reply(self, message: Any) -> None:
        """Sends one message."""
        self.send(TEXT, to_json(message))

    def close(self, code: int, reason: str = "") -> None:
        """Says goodbye."""
        self.send(CLOSE, struct.pack("!H", code) + reason.encode())

    async def receive(self) -> tuple[int, bytes]:
        """The next frame of the client, as its kind and payload."""
        async with asyncio.timeout(PATIENCE_S):
            first, second = await self.reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
            mask = await self.reader.readexactly(4)
            masked = await self.reader.readexactly(length)
        return first & 0x0F, bytes(byte ^ mask[place % 4] for place, byte in enumerate(masked))

    async def message(self) -> Any:
        """The next message of the client."""
        kind, payload = await self.receive()
        assert kind == TEXT
        return from_json(payload)

    async def ended(self) -> None:
        """The client has closed its end of the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:  # a hard end is an end
                return


Behaviour = Callable[[Peer], Awaitable[None]]


class Place:
    """Where a server is.

    Attributes:
        url: Its address.
        peers: The connections it has had.
    """

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"
        self.peers: list[Peer] = []
        self._conversations: list[asyncio.Task[None]] = []

    async def finish(self) -> None:
        """Waits until every conversation is over; an assertion that failed in one fails here."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._conversations)


@asynccontextmanager
async def serving(behave: Behaviour) -> AsyncIterator[Place]:
    """A server on a free port; every connection does what `behave` says, and is cut when that returns."""

    async def converse(peer: Peer) -> None:
        try:
            await behave(peer)
        finally:
            peer.writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        place.peers.append(peer)
        place._conversations.append(asyncio.create_task(converse(peer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    place = Place(server.sockets[0].getsockname()[1])
    try:
        yield place
        await place.finish()
    finally:
        for conversation in place._conversations:
            conversation.cancel()
        await asyncio.gather(*place._conversations, return_exceptions=True)
        server.close()


def observation(reward: float | None = None, **fields: Any) -> dict[str, Any]:
    """A reply to reset or step."""
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": False}}
