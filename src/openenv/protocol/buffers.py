"""Memory of arrays that a client no longer uses, for the next ones: the pages of new memory cost more than a copy."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from typing import Any

# References to a buffer that no array uses: of the deque, of a local variable, and of the argument of `getrefcount`.
_UNUSED = 3
# Buffers to look at, the oldest first, before another one is made.
_LOOKS = 4


class ReadBuffers:
    """Buffers for the elements of arrays, each of which is used again when the array and all views of it are gone.

    Args:
        most_bytes: Bytes of all buffers that are kept.
    """

    def __init__(self, most_bytes: int = 64 * 1024 * 1024):
        self._most = most_bytes
        self._bytes = 0
        # By their size, the least used size first; in each, the oldest first.
        self._buffers: OrderedDict[int, deque[Any]] = OrderedDict()

    def copy(self, array: Any) -> Any:
        """A writable copy of a C-contiguous numpy array."""
        import numpy

        buffer = self._find(array.nbytes)
        if buffer is None:
            buffer = numpy.empty(array.nbytes, numpy.uint8)
            self._keep(buffer)
        copy = numpy.ndarray(array.shape, array.dtype, buffer)
        copy[...] = array
        return copy

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

    def _keep(self, buffer: Any) -> None:
        self._buffers.setdefault(buffer.nbytes, deque()).append(buffer)
        self._bytes += buffer.nbytes
        while self._bytes > self._most:
            size, buffers = next(iter(self._buffers.items()))
            buffers.popleft()
            self._bytes -= size
            if not buffers:
                del self._buffers[size]
