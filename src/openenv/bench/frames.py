"""WebSocket frames as bytes, as far as a load needs them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from ..errors import ProtocolViolation

__all__ = ["FrameReader", "Opcode", "client_frame"]


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
            message = self._message(first, payload)
            if message is not None:
                # The caller may stop here: what was read is not read again.
                self._rest = rest
                yield message
        self._rest = rest

    def _message(self, first: int, payload: bytes) -> tuple[Opcode, bytes] | None:
        """A frame as a message; None for a part that is not the last."""
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError:
            raise ProtocolViolation(f"the server sent a frame of unknown kind {first & 0x0F}") from None
        if opcode >= Opcode.CLOSE or (opcode and first & _FINAL):
            return opcode, payload
        if opcode:
            self._opcode, self._parts = opcode, b""
        self._parts += payload
        return (self._opcode, self._parts) if first & _FINAL else None


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
