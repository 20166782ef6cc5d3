"""Arrays as bytes with a header: element type, shape, then the elements in C order.

The header is one byte for the length of the element type's name, the name, one byte for the number of
dimensions and 8 bytes, little-endian, for each dimension. numpy is optional: without it an array is read as
a mapping of `dtype`, `shape` and `data`.
"""

from __future__ import annotations

import struct
import sys
from math import prod
from typing import Any

__all__ = ["ELEMENT_SIZES", "is_array", "is_numpy_scalar", "pack_array", "read_array", "unpack_array", "write_array"]

# Bytes an element takes, for each type that may travel: no objects, no texts, nothing that differs by machine.
ELEMENT_SIZES = {
    "|b1": 1,
    "|i1": 1,
    "|u1": 1,
    "<i2": 2,
    "<u2": 2,
    "<f2": 2,
    "<i4": 4,
    "<u4": 4,
    "<f4": 4,
    "<i8": 8,
    "<u8": 8,
    "<f8": 8,
    "<c8": 8,
    "<c16": 16,
}
MAX_DIMENSIONS = 32


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array. Never imports numpy: who has an array has imported it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_numpy_scalar(value: Any) -> bool:
    """Whether a value is a single numpy number."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def write_array(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Element type, shape and elements of an array.

    Raises:
        TypeError: Its elements are of a type that does not travel, or it has too many dimensions.
    """
    little = array.dtype.newbyteorder("<")
    if little.str not in ELEMENT_SIZES:
        raise TypeError(f"an array of {array.dtype} cannot be sent: its elements must be numbers of a fixed size")
    if array.ndim > MAX_DIMENSIONS:
        raise TypeError(f"an array of {array.ndim} dimensions cannot be sent: at most {MAX_DIMENSIONS}")
    return little.str, array.shape, array.astype(little, copy=False).tobytes()


def read_array(dtype: Any, shape: Any, data: bytes) -> Any:
    """The array of an element type, shape and elements; without numpy, a mapping of these three.

    Raises:
        ValueError: They do not fit one another, or are none.
    """
    size = ELEMENT_SIZES.get(dtype) if isinstance(dtype, str) else None
    if size is None:
        raise ValueError(f"an array of unknown element type {dtype!r:.50}: known are {' '.join(ELEMENT_SIZES)}")
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_DIMENSIONS or not all(map(_is_length, shape)):
        raise ValueError(f"the shape of an array is a list of at most {MAX_DIMENSIONS} lengths")
    if prod(shape) * size != len(data):
        raise ValueError(f"an array whose shape needs {prod(shape) * size} bytes comes with {len(data)}")
    try:
        import numpy
    except ImportError:
        return {"dtype": dtype, "shape": list(shape), "data": data}
    # A copy, since the frame's bytes cannot be written to and whoever gets an array may well do that.
    return numpy.ndarray(tuple(shape), numpy.dtype(dtype), buffer=data).copy()


def pack_array(array: Any) -> bytes:
    """Header and elements. Raises `TypeError` as `write_array` does."""
    dtype, shape, data = write_array(array)
    name = dtype.encode()
    return b"".join((struct.pack(f"<B{len(name)}sB{len(shape)}Q", len(name), name, len(shape), *shape), data))


def unpack_array(packed: bytes | memoryview) -> Any:
    """The array of header and elements. Raises `ValueError` as `read_array` does."""
    packed = bytes(packed)
    try:
        start = 1 + packed[0]
        dtype = packed[1:start].decode("ascii")
        shape = struct.unpack_from(f"<{packed[start]}Q", packed, start + 1)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise ValueError("an array whose header cannot be read") from error
    return read_array(dtype, shape, packed[start + 1 + 8 * len(shape) :])


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
