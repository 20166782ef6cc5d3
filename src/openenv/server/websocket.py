"""The environment endpoint for any ASGI server; `fastpath` serves the same one inside uvicorn."""

from __future__ import annotations

import asyncio

from fastapi import WebSocket, WebSocketDisconnect

from ..errors import UsageError
from .connection import CLOSE_INTERNAL_ERROR
from .environment_server import HTTPEnvServer

__all__ = ["environment_socket"]


async def environment_socket(websocket: WebSocket) -> None:
    """Serves one connection: one session of the app's environment."""
    server = websocket.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    await websocket.accept()
    channel = _AsgiChannel()
    sender = asyncio.create_task(channel.deliver(websocket))
    connection = None
    try:
        connection = server.connect(channel)
        while True:
            await channel.readable.wait()
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            text, data = message.get("text"), message.get("bytes")
            if text is not None:
                connection.receive(text)
            else:
                connection.receive_binary(data or b"")
    except UsageError as error:
        channel.close(CLOSE_INTERNAL_ERROR, error.message)
        await sender
    finally:
        if connection is not None:
            connection.disconnected()
        sender.cancel()


class _AsgiChannel:
    """Sends in the order of the calls, from a task of its own: ASGI can only be awaited."""

    def __init__(self) -> None:
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self.readable = asyncio.Event()
        self.readable.set()

    def send(self, frame: bytes) -> None:
        self._outbox.put_nowait(frame)

    def close(self, code: int, reason: str = "") -> None:
        self._outbox.put_nowait((code, reason))

    def pause(self) -> None:
        self.readable.clear()

    def resume(self) -> None:
        self.readable.set()

    async def deliver(self, websocket: WebSocket) -> None:
        try:
            while isinstance(frame := await self._outbox.get(), bytes):
                await websocket.send_text(frame.decode())
            await websocket.close(*frame)
        except (WebSocketDisconnect, RuntimeError):
            # The client is gone. The reader sees it too, and ends the session.
            return
