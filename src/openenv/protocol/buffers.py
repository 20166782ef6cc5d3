"""Memory of large arrays: blocks of memory that client and server share, and buffers that a client uses again."""

from __future__ import annotations

import sys
from bisect import bisect
from collections import OrderedDict, deque
from math import prod
from typing import Any

# Blocks begin where the lines of a processor's cache do.
_ALIGNMENT = 64


class Block:
    """The place of one array. It is free again when nothing refers to this object.

    Attributes:
        offset: Its first byte.
        size: The bytes of the array.
    """

    __slots__ = ("_freed", "offset", "size")

    def __init__(self, offset: int, size: int, freed: deque[tuple[int, int]]):
        self.offset, self.size, self._freed = offset, size, freed

    def __del__(self) -> None:
        # Perhaps on another thread, in a garbage collection: appending is atomic.
        self._freed.append((self.offset, _aligned(self.size)))


class BlockAllocator:
    """Finds places. It takes the lowest one that suffices, so that little of the memory is ever touched.

    Args:
        size: Bytes of the memory.
    """

    def __init__(self, size: int):
        self._free = [(0, size)]  # offset and size, in order; no two adjoin
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, size: int) -> Block | None:
        """A block for an array of `size` bytes; None if there is no place for it."""
        needed = _aligned(size)
        if self._freed and self._freed[0][1] == needed:  # nearly always: the arrays of a connection have few sizes
            return Block(self._freed.popleft()[0], size, self._freed)
        while self._freed:
            offset, length = self._freed.popleft()
            place = bisect(self._free, (offset,))  # free places that adjoin each other become one
            if place < len(self._free) and self._free[place][0] == offset + length:
                length += self._free.pop(place)[1]
            if place and sum(self._free[place - 1]) == offset:
                place -= 1
                offset, before = self._free.pop(place)
                length += before
            self._free.insert(place, (offset, length))
        for place, (offset, length) in enumerate(self._free):
            if length >= needed:
                self._free[place : place + 1] = [(offset + needed, length - needed)] if length > needed else []
                return Block(offset, size, self._freed)
        return None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# References to a buffer that no array uses: of the deque, of a local variable, and of the argument of `getrefcount`.
_UNUSED = 3
# Buffers to look at, the oldest first, before another one is made.
_LOOKS = 4


class ReadBuffers:
    """Buffers for the elements of arrays, each of which is used again when the array and all views of it are gone.

    The pages of new memory cost more than a copy.

    Args:
        most_bytes: Bytes of all buffers that are kept.
    """

    def __init__(self, most_bytes: int = 64 * 1024 * 1024):
        self._most = most_bytes
        self._bytes = 0
        # By their size, the least used size first; in each, the oldest first.
        self._buffers: OrderedDict[int, deque[Any]] = OrderedDict()

    def copy(self, array: Any) -> Any:
        """A writable copy of a numpy array."""
        import numpy

        copy = numpy.ndarray(array.shape, array.dtype, self.take(array.nbytes))
        copy[...] = array
        return copy

    def take(self, size: int) -> Any:
        """A numpy array of this many bytes, with any contents."""
        import numpy

        buffer = self._find(size)
        if buffer is None:
            buffer = numpy.empty(size, numpy.uint8)
            self._buffers.setdefault(buffer.nbytes, deque()).append(buffer)
            self._bytes += buffer.nbytes
            while self._bytes > self._most:
                least_used, buffers = next(iter(self._buffers.items()))
                buffers.popleft()
                self._bytes -= least_used
                if not buffers:
                    del self._buffers[least_used]
        return buffer

    def _find(self, size: int) -> Any:
        buffers = self._buffers.get(size)
        if buffers is None:
            return None
        self._buffers.move_to_end(size)
        for _ in range(min(_LOOKS, len(buffers))):
            buffer = buffers[0]
            buffers.rotate(-1)
            if sys.getrefcount(buffer) == _UNUSED:
                return buffer
        return None


class ArrayRows:
    """One array for the observations of all environments. Those of a step are read into its rows.

    Args:
        field: The field of the observations that holds the array.
        shape: Number of environments, then the shape of one observation.
        dtype: Type of the elements.

    Attributes:
        rows: The rows of the array that `begin` has chosen.
    """

    def __init__(self, field: str, shape: tuple[int, ...], dtype: Any):
        import numpy

        self.field = field
        self.rows: list[Any] = []
        self._shape, self._dtype = shape, numpy.dtype(dtype)
        self._size = prod(shape) * self._dtype.itemsize
        self._buffers = ReadBuffers()
        self._buffer: Any = None

    def begin(self) -> None:
        """Takes another array, unless the caller has let go of the one before and all its views."""
        # Each row refers to the buffer, as do the attribute, `ReadBuffers` and the argument of `getrefcount`.
        if self._buffer is None or sys.getrefcount(self._buffer) > len(self.rows) + _UNUSED:
            self._buffer = self._buffers.take(self._size)
            self.rows = list(self.array())

    def array(self) -> Any:
        """The array."""
        import numpy

        return numpy.ndarray(self._shape, self._dtype, self._buffer)

    def take(self, index: int, observation: Any) -> None:
        """Copies the array of an observation into the row of its environment, if it has its type and shape."""
        array: Any = observation.get(self.field) if type(observation) is dict else None
        row = self.rows[index]
        if type(array) is type(row) and array.dtype == row.dtype and array.shape == row.shape:
            row[...] = array
            observation[self.field] = row
