"""The environment endpoint for any ASGI server; `fastpath` serves the same one inside uvicorn."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from ..errors import SlowReader, UsageError
from ..protocol.codec import codec_of
from ..protocol.negotiation import choose
from .connection import CLOSE_INTERNAL_ERROR, CLOSE_SLOW_READER, Connection
from .environment_server import HTTPEnvServer
from .multi_connection import MultiConnection

__all__ = ["environment_socket"]

logger = logging.getLogger("openenv.server")

# Bytes unsent over which a client is not asked for more, as asyncio's transports have it.
HIGH_WATER_BYTES = 64 * 1024
LAST_WORDS_S = 2.0


async def environment_socket(websocket: WebSocket) -> None:
    """Serves one connection: v2 where the client offers it, else one session of the app's environment."""
    server = websocket.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    subprotocol = choose(websocket.scope.get("subprotocols", ()))
    await websocket.accept(subprotocol=subprotocol)
    channel = _AsgiChannel(subprotocol is not None and codec_of(subprotocol).binary, server.max_unsent_bytes)
    sender = asyncio.create_task(channel.deliver(websocket))
    listener: asyncio.Task[None] | None = None
    connection = None
    try:
        connection = server.connect(channel, subprotocol)
        listener = asyncio.create_task(_listen(websocket, channel, connection))
        waiting: list[asyncio.Future[Any]] = [listener, channel.overflow]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if listener.done():
            listener.result()
        else:
            await _leave_behind(channel, connection, sender)
    except UsageError as error:
        channel.close(CLOSE_INTERNAL_ERROR, error.message)
        await sender
    finally:
        if connection is not None:
            connection.disconnected()
        if listener is not None:
            listener.cancel()
        sender.cancel()


async def _listen(websocket: WebSocket, channel: _AsgiChannel, connection: Connection | MultiConnection) -> None:
    while True:
        await channel.readable.wait()
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text, data = message.get("text"), message.get("bytes")
        if text is not None:
            connection.receive(text)
        else:
            connection.receive_binary(data or b"")


async def _leave_behind(
    channel: _AsgiChannel, connection: Connection | MultiConnection, sender: asyncio.Task[None]
) -> None:
    """Ends the connection with a client that does not read."""
    error = SlowReader(f"the client does not read its replies: {channel.overflow.result()} bytes wait for it")
    logger.warning("session %s: %s: %s", connection.session_id, type(error).__name__, error.message)
    connection.disconnected()
    channel.close(CLOSE_SLOW_READER, f"{type(error).__name__}: the client does not read its replies")
    await asyncio.wait([sender], timeout=LAST_WORDS_S)


class _AsgiChannel:
    """Sends in the order of the calls, from a task of its own: ASGI can only be awaited.

    Args:
        binary: Whether frames are binary.
        max_unsent: Bytes that may wait for the client to read.

    Attributes:
        readable: Set while the client is to be asked for more.
        overflow: How many bytes wait, once that is more than may.
    """

    def __init__(self, binary: bool, max_unsent: int):
        self._binary = binary
        self._max_unsent = max_unsent
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._unsent = 0
        self._paused = False
        self.readable = asyncio.Event()
        self.readable.set()
        self.overflow: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def send(self, frame: bytes) -> None:
        if self.overflow.done():
            return
        self._unsent += len(frame)
        if self._unsent > self._max_unsent:
            self.overflow.set_result(self._unsent)
            return
        self._outbox.put_nowait(frame)
        if self._unsent > HIGH_WATER_BYTES:
            self.readable.clear()

    def close(self, code: int, reason: str = "") -> None:
        self._outbox.put_nowait((code, reason))

    def pause(self) -> None:
        self._paused = True
        self.readable.clear()

    def resume(self) -> None:
        self._paused = False
        self._may_read()

    async def deliver(self, websocket: WebSocket) -> None:
        try:
            while isinstance(frame := await self._outbox.get(), bytes):
                if self._binary:
                    await websocket.send_bytes(frame)
                else:
                    await websocket.send_text(frame.decode())
                self._unsent -= len(frame)
                self._may_read()
            await websocket.close(*frame)
        except (WebSocketDisconnect, RuntimeError):
            # The client is gone. The reader sees it too, and ends the session.
            self._unsent = 0
            self._may_read()

    def _may_read(self) -> None:
        if not self._paused and self._unsent <= HIGH_WATER_BYTES:
            self.readable.set()
