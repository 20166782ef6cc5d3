"""Passes bytes between two connections: so one whose TLS ends here is served by another process."""

from __future__ import annotations

import asyncio
import logging
import socket

__all__ = ["relay"]

logger = logging.getLogger("openenv.server")

_running: set[asyncio.Task[None]] = set()


def relay(transport: asyncio.Transport, far: socket.socket) -> None:
    """Joins a connection with a socket until either of them ends, and closes both.

    Args:
        transport: The connection, of which nothing is read yet.
        far: Where its bytes go; belongs to the relay from here on.
    """
    transport.pause_reading()
    far.setblocking(False)
    task = asyncio.get_running_loop().create_task(_join(transport, far))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _join(near: asyncio.Transport, connection: socket.socket) -> None:
    try:
        far, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: _End(near), connection)
    except OSError as error:
        logger.warning("a connection for another worker process is given up: %s", error.strerror or error)
        connection.close()
        near.abort()
        return
    if near.is_closing():
        far.close()
        return
    near.set_protocol(_End(far))
    near.resume_reading()


class _End(asyncio.Protocol):
    """Hears one connection and tells the other."""

    def __init__(self, other: asyncio.Transport):
        self._other = other

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        # What is not taken here is not read there.
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()
