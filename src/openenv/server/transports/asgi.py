"""The environment endpoint for any ASGI server; `transports.uvicorn` has the faster one."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from ...errors import ConnectionLost, OpenEnvError, SlowReader, UsageError
from ...protocol.codecs import choose, codec_of
from ...runtime.session import LastSeen
from ...telemetry.logs import log_extra
from ...telemetry.metrics import METER, Gauge, Phase
from ..middleware import principal_of, server_of
from ..server import EnvironmentServer
from ..timers import AppKeepalive
from ..v1 import CLOSE_INTERNAL_ERROR, CLOSE_SLOW_READER, V1Connection
from ..v2 import V2Connection

logger = logging.getLogger("openenv.server")

# Unsent bytes above which the client's frames are not read; the same limit as in asyncio's transports.
HIGH_WATER_BYTES = 64 * 1024
LAST_WORDS_S = 2.0


async def environment_socket(websocket: WebSocket) -> None:
    """Serves one connection: v2 where the client offers it, else one session of the app's environment."""
    server = server_of(websocket)
    subprotocol = choose(websocket.scope.get("subprotocols", ()))
    wanted = websocket.query_params
    principal = principal_of(websocket.scope, server)
    if "session_id" in wanted:
        principal = principal._replace(session=wanted["session_id"], token=wanted.get("token"))
        subprotocol = None  # only v1 connections are attached
    await websocket.accept(subprotocol=subprotocol)
    binary = subprotocol is not None and codec_of(subprotocol).binary
    channel = ASGIChannel(binary, server.settings.max_unsent_bytes)
    app_keepalive = AppKeepalive(channel.silent, channel.give_up)
    METER.add(Gauge.CONNECTIONS, 1)
    sender = asyncio.create_task(channel.deliver(websocket))
    listener: asyncio.Task[None] | None = None
    connection = None
    try:
        connection = server.connect(channel, subprotocol, principal)
        channel.life = connection.life
        if subprotocol is not None:
            server.app_keepalive.watch(app_keepalive)
        listener = asyncio.create_task(_listen(websocket, channel, connection))
        waiting: list[asyncio.Future[Any]] = [listener, channel.verdict]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if listener.done():
            listener.result()
        else:
            await _end_unresponsive(server, channel, connection, sender)
    except UsageError as error:
        channel.close(CLOSE_INTERNAL_ERROR, error.message)
        await sender
    finally:
        server.app_keepalive.forget(app_keepalive)
        METER.add(Gauge.CONNECTIONS, -1)
        if connection is not None:
            connection.disconnected()
        if listener is not None:
            listener.cancel()
        sender.cancel()


async def _listen(websocket: WebSocket, channel: ASGIChannel, connection: V1Connection | V2Connection) -> None:
    while True:
        await channel.readable.wait()
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        channel.heard = True
        text, data = message.get("text"), message.get("bytes")
        if text is not None:
            connection.receive(text)
        else:
            connection.receive_binary(data or b"")


async def _end_unresponsive(
    server: EnvironmentServer,
    channel: ASGIChannel,
    connection: V1Connection | V2Connection,
    sender: asyncio.Task[None],
) -> None:
    """Ends the connection of a client that does not read, or has disconnected."""
    error = channel.verdict.result()
    METER.failed(error)
    session = connection.session_id
    logger.warning("session %s: %s: %s", session, type(error).__name__, error.message, extra=log_extra(session))
    connection.disconnected()
    channel.close(CLOSE_SLOW_READER, f"{type(error).__name__}: {error.message.partition(':')[0]}")
    await asyncio.wait([sender], timeout=LAST_WORDS_S)
    server.memory_release.soon()


class ASGIChannel:
    """Sends frames in order, from a separate task, because ASGI's `send` must be awaited.

    Args:
        binary: Whether frames are binary.
        max_unsent: Most bytes that may wait for the client to read.

    Attributes:
        readable: Set while frames of the client may be read.
        verdict: A future that gets the error for which the connection must end.
        heard: Whether the client sent a frame since the last call of `silent`.
        life: Gets the time of each frame.
    """

    life: LastSeen

    def __init__(self, binary: bool, max_unsent: int):
        self._binary = binary
        self._max_unsent = max_unsent
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._unsent = 0
        self._paused = False
        self.readable = asyncio.Event()
        self.readable.set()
        self.verdict: asyncio.Future[OpenEnvError] = asyncio.get_running_loop().create_future()
        self.heard = True

    def send(self, frame: bytes) -> None:
        if self.verdict.done():
            return
        self._unsent += len(frame)
        if self._unsent > self._max_unsent:
            limit = f"{self._max_unsent} bytes (max_unsent_mb, OPENENV_MAX_UNSENT_MB)"
            waiting = f"{self._unsent} bytes wait for it, over the limit of {limit}"
            self.verdict.set_result(SlowReader(f"the client does not read its replies: {waiting}"))
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

    def silent(self) -> bool:
        """Whether the client sent nothing since the last call, though its frames were read."""
        heard, self.heard = self.heard, False
        if heard:
            self.life.heard_at = time.monotonic()
        return not heard and self.readable.is_set()

    def give_up(self) -> None:
        """Ends the connection: the client was silent for too long."""
        if not self.verdict.done():
            self.verdict.set_result(ConnectionLost("no sign of life from the client: two periods of heartbeat_s"))

    async def deliver(self, websocket: WebSocket) -> None:
        try:
            while isinstance(frame := await self._outbox.get(), bytes):
                began = time.monotonic()
                if self._binary:
                    await websocket.send_bytes(frame)
                else:
                    await websocket.send_text(frame.decode())
                if METER.on:
                    METER.observe(Phase.SEND, time.monotonic() - began)
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
