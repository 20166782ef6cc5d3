"""Large arrays beside the connection: a reply names their places in memory that client and server share."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from .arrays import array_parts, copy_of, unpack_array, unpack_header
from .buffers import Block, BlockAllocator, ReadBuffers
from .codecs import ARRAY, Body, MsgpackCodec, Result, read_extension, write_placing

# The extension type of an array in shared memory: its offset, then the header of an array.
SHARED_ARRAY = 2
MIN_SHARED_BYTES = 16 * 1024
"""Smaller arrays travel in their frames. Of two processes that exchange 16 arrays, memory is faster from 8 KiB on."""
_OFFSET = struct.Struct("<Q")


class _Copies:
    """Copies arrays out of shared memory. Not part of its codec: the decoder would then be part of a cycle."""

    def __init__(self) -> None:
        self.data = memoryview(b"")
        self.count = 0
        self.has_large = False
        self.borrow = False
        self.borrowed = 0
        self.copy = ReadBuffers().copy

    def read(self, code: int, packed: memoryview) -> Any:
        """The value of an extension type. Raises `ValueError` if it cannot be read, or is outside of the memory."""
        if code != SHARED_ARRAY:
            if code != ARRAY or len(packed) < MIN_SHARED_BYTES:
                return read_extension(code, packed)
            self.has_large = True
            return unpack_array(packed, self._take)
        if len(packed) < _OFFSET.size:
            raise ValueError("the place of an array in shared memory cannot be read")
        (start,) = _OFFSET.unpack_from(packed)
        dtype, shape, size, _ = unpack_header(packed[_OFFSET.size :])
        end = start + size
        if end > len(self.data):
            raise ValueError(f"an array from {start} to {end} is outside the {len(self.data)} bytes of shared memory")
        array = copy_of(dtype, shape, size, self.data[start:end], self._take)
        self.count += 1
        return array

    def _take(self, array: Any) -> Any:
        if not self.borrow:
            return self.copy(array)
        self.borrowed += 1
        array.flags.writeable = False
        return array


class SharedArrayReader(MsgpackCodec):
    """The codec of a client: it may have shared memory, and large arrays reuse the memory of earlier ones."""

    def __init__(self) -> None:
        self._copies = _Copies()
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._copies.read)

    @property
    def copied(self) -> int:
        """The number of arrays that it has copied out of the memory."""
        return self._copies.count

    @property
    def has_large(self) -> bool:
        """Whether a frame had an array that the server would put into shared memory."""
        return self._copies.has_large

    def borrow(self) -> None:
        """From now on, large arrays refer to the memory of their frame or the shared memory, and are read-only.

        The caller must copy them (`owned`) before the frame is let go of and `copied` is sent.
        """
        self._copies.borrow = True

    @property
    def has_borrowed(self) -> bool:
        """Whether the last frame had such arrays."""
        return self._copies.borrowed > 0

    def owned(self, value: Any) -> Any:
        """The value, with copies in place of borrowed arrays: its maps and lists are changed."""
        if type(value) is dict:
            for key, part in value.items():
                value[key] = self.owned(part)
        elif type(value) is list:
            value[:] = map(self.owned, value)
        elif hasattr(value, "flags") and not value.flags.writeable:
            return self._copies.copy(value)
        return value

    def use(self, data: memoryview) -> None:
        """Reads arrays in this memory from now on; with an empty one, lets go of the one before."""
        self._copies.data = data

    def decode(self, frame: bytes | memoryview | str) -> Any:
        self._copies.borrowed = 0
        return self._decode(frame, self._decoder.decode)


class _Places:
    """Copies arrays into shared memory. Not part of its codec, as `_Copies`."""

    def __init__(self, data: memoryview):
        self.allocator = BlockAllocator(len(data))
        self.blocks: list[Block] = []
        """Of the body that is being encoded."""
        self._data = data

    def write(self, array: Any) -> Ext | None:
        """The place of an array, which is copied there; None if it is small, or there is none. Raises `TypeError`."""
        if array.nbytes < MIN_SHARED_BYTES:
            return None
        header, elements = array_parts(array)
        block = self.allocator.allocate(elements.nbytes)
        if block is None:
            return None
        self._data[block.offset : block.offset + block.size] = elements.data.cast("B")
        self.blocks.append(block)
        return Ext(SHARED_ARRAY, _OFFSET.pack(block.offset) + header)


class SharedArrayWriter(MsgpackCodec):
    """The codec of a connection with shared memory that its client has opened: large arrays of replies go there.

    An array that finds no place there travels in its frame, as to any other client. A place stays taken while a
    stored reply has it, and until the client has copied each array that was sent from it.

    Args:
        data: The memory.
    """

    def __init__(self, data: memoryview):
        self._data = data
        self._places = _Places(data)
        # Sent and not copied yet, in the order of the frames; and the number of all that were copied before.
        self._sent: deque[Block] = deque()
        self._copied = 0

    def note_copied(self, count: int) -> None:
        """The client has copied this many arrays, of all that were sent. A false number harms only that client."""
        while self._sent and self._copied < count:
            self._sent.popleft()
            self._copied += 1

    def end(self) -> None:
        """The connection has ended. No place is used again: its client may still read what was sent to it."""
        self._places.allocator = BlockAllocator(0)
        self._sent.clear()

    def fields(self, body: Body) -> dict[str, Any]:
        reader = SharedArrayReader()
        reader.use(self._data)
        fields: dict[str, Any] = reader.decode(super().reply(1, body))
        del fields["id"]
        return fields

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002
        self._sent += body.blocks
        return super().reply(id, body)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        items = list(items)
        for _, _, body in items:
            self._sent += body.blocks
        return super().results(id, items, more)

    def _body(self, count: int, fields: Any, header: int) -> Body:
        places = self._places
        places.blocks = []
        encoded = write_placing(fields, header, places.write)
        blocks, places.blocks = tuple(places.blocks), []
        return Body(count, encoded, blocks)
