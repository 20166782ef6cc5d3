"""Memory of large arrays: blocks of memory that client and server share, and buffers that a client uses again."""

from __future__ import annotations

import sys
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Sequence
from ctypes import addressof, c_char
from math import prod
from typing import Any

from ..errors import ProtocolViolation

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


# References to a buffer that no array uses: of the deque, and of the argument of `getrefcount`. That must be no local
# variable, which has a reference of its own before Python 3.14 alone.
_UNUSED = 2
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
            unused = sys.getrefcount(buffers[0]) == _UNUSED
            buffers.rotate(-1)
            if unused:
                return buffers[-1]
        return None


class ArrayRows:
    """Copies the arrays of several observations into one array for each place in them.

    Args:
        count: How many observations.
        buffers: Has the memory.
        forms: Element type and shape of the first array in each place, by the keys and indices that lead to it.
    """

    def __init__(self, count: int, buffers: ReadBuffers, forms: dict[tuple[Any, ...], tuple[Any, Any]]):
        self._count, self._buffers, self._forms = count, buffers, forms
        self._rows: dict[tuple[Any, ...], list[Any]] = {}

    def take(self, row: int, value: Any, place: tuple[Any, ...] = ()) -> None:
        """Puts rows in place of the arrays of one observation.

        Args:
            row: Its number.
            value: The observation, or a dict or list in it, which is changed.
            place: The keys and indices that lead to `value`.

        Raises:
            ProtocolViolation: An array has another type or shape than the first one in its place had.
        """
        import numpy

        for key, part in value.items() if type(value) is dict else enumerate(value):
            kind = type(part)
            if kind is numpy.ndarray and part.ndim:
                where = (*place, key)
                rows = self._rows.get(where)
                if rows is None:
                    dtype, shape = self._forms.setdefault(where, (part.dtype, part.shape))
                    memory = self._buffers.take(self._count * prod(shape) * dtype.itemsize)
                    rows = self._rows[where] = list(numpy.ndarray((self._count, *shape), dtype, memory))
                mine = rows[row]
                if part.dtype != mine.dtype or part.shape != mine.shape:
                    raise ProtocolViolation(
                        f"the observation's {'.'.join(map(str, where))} is {part.dtype.name} of shape {part.shape}, "
                        f"and was {mine.dtype.name} of shape {mine.shape} at first: "
                        'arrays="batch" needs one form, arrays="each" does not'
                    )
                mine[...] = part
                value[key] = mine
            elif kind is dict or (kind is list and any(type(each) in (dict, list, numpy.ndarray) for each in part)):
                self.take(row, part, (*place, key))


def array_of_rows(rows: Sequence[Any]) -> Any:
    """The array of which numpy arrays are the rows, in this order, in the same memory; None if they are not.

    It finds no read-only arrays, and none without elements.
    """
    import numpy

    first, kind = rows[0], numpy.ndarray
    base = first.base if type(first) is kind and first.nbytes and first.flags.carray else None
    if type(base) is not kind or not base.flags.carray:
        return None
    dtype, shape, size = first.dtype, first.shape, first.nbytes
    begin = place = _address(first)
    for row in rows:
        if type(row) is not kind or row.base is not base or row.dtype != dtype or row.shape != shape:
            return None
        if not row.flags.carray or _address(row) != place:
            return None
        place += size
    return numpy.ndarray((len(rows), *shape), dtype, base, begin - _address(base))


def _address(array: Any) -> int:
    # numpy's own ways to the address take three to six times as long.
    return addressof(c_char.from_buffer(array))
