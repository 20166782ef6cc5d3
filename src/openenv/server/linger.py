"""Closing a TCP connection so that the last words arrive.

A socket closed with unread input answers with a reset, and a reset makes the peer drop what it has not
read yet: the error frame that says why. So the sending half is closed first, and what still arrives is
thrown away until the peer closes too (RFC 6455, section 7.1.1; RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

__all__ = ["LingeringTransport"]

LINGER_S = 2.0


class LingeringTransport:
    """A transport whose `close` lingers; everything else goes to the transport it wraps.

    Args:
        transport: The connection. Its protocol must already be the one that shall hear `connection_lost`.
    """

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._lingering = False
        # Bound here so that a write costs no detour.
        self.write = transport.write
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.abort = transport.abort

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Writes a frame in parts."""
        # picows lends the header out of a buffer that it uses again for the next frame, which may be long before a
        # slow reader makes room for this one.
        self._transport.writelines([bytes(part) for part in parts])

    def close(self) -> None:
        """Closes after the peer has, or after two seconds. May be called repeatedly."""
        transport = self._transport
        if self._lingering or transport.is_closing():
            return
        self._lingering = True
        if not transport.can_write_eof():  # TLS closes with a message of its own
            transport.close()
            return
        transport.set_protocol(_Drain(transport, transport.get_protocol()))
        transport.resume_reading()
        transport.write_eof()

    def finish(self) -> None:
        """Closes now: the peer has said that it is done."""
        self._transport.close()


class _Drain(asyncio.Protocol):
    """Reads and forgets until the peer closes, then tells the protocol it stands in for."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol):
        self._transport = transport
        self._protocol = protocol
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
