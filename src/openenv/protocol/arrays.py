"""Arrays and tensors as bytes with a header, and back."""

from __future__ import annotations

import struct
import sys
from math import prod
from typing import Any

# Bytes per element for each type that can be sent: no objects, no strings, no type that differs between machines.
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
    "bfloat16": 2,
}
MAX_DIMENSIONS = 32


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array or a torch tensor. Imports neither: such a value has loaded its library."""
    numpy = sys.modules.get("numpy")
    return (numpy is not None and isinstance(value, numpy.ndarray)) or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy_scalar(value: Any) -> bool:
    """Whether a value is a single numpy number."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def write_array(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Element type, shape and elements of an array or a tensor on any device.

    Raises:
        TypeError: Its element type cannot be sent, it has too many dimensions, or it is not a plain array.
    """
    if is_tensor(array):
        return _write_tensor(array)
    little = array.dtype.newbyteorder("<")
    if little.str not in ELEMENT_SIZES:
        raise TypeError(f"an array of {array.dtype} cannot be sent: its elements must be numbers of a fixed size")
    if array.ndim > MAX_DIMENSIONS:
        raise TypeError(f"an array of {array.ndim} dimensions cannot be sent: at most {MAX_DIMENSIONS}")
    if hasattr(array, "mask"):
        raise TypeError("an array with a mask cannot be sent: send filled() and mask as separate arrays")
    return little.str, array.shape, array.astype(little, copy=False).tobytes()


def list_of(array: Any) -> Any:
    """The elements of an array or a tensor in nested lists, for JSON without marks; for zero dimensions, the element.

    Raises:
        TypeError: As `write_array`, and for complex numbers, which JSON lacks.
    """
    dtype, *_ = write_array(array)
    if "c" in dtype:
        raise TypeError("an array of complex numbers cannot be sent in protocol v1: send two arrays, or use v2")
    plain = array.detach().cpu() if is_tensor(array) else array
    return plain.tolist()


def _write_tensor(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(f"a tensor of layout {tensor.layout} on {tensor.device} cannot be sent: make it dense first")
    here = tensor.detach().cpu().resolve_conj().resolve_neg()
    if here.dtype is torch.bfloat16:  # numpy has no such type
        _, _, data = write_array(here.contiguous().view(torch.int16).numpy())
        return "bfloat16", tuple(here.shape), data
    try:
        return write_array(here.numpy())
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"a tensor of {tensor.dtype} cannot be sent: {error}") from error


def read_array(dtype: Any, shape: Any, data: bytes) -> Any:
    """The array of an element type, shape and elements; without numpy, a mapping of these three.

    Raises:
        ValueError: They are inconsistent, or have the wrong types.
    """
    size = ELEMENT_SIZES.get(dtype) if isinstance(dtype, str) else None
    if size is None:
        raise ValueError(f"an array of unknown element type {dtype!r:.50}: known are {' '.join(ELEMENT_SIZES)}")
    known = isinstance(shape, (list, tuple)) and len(shape) <= MAX_DIMENSIONS
    if not known or not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"the shape of an array must be a list of at most {MAX_DIMENSIONS} lengths")
    if prod(shape) * size != len(data):
        raise ValueError(f"an array whose shape needs {prod(shape) * size} bytes has {len(data)}")
    if dtype == "bfloat16":
        return _read_bfloat16(shape, data)
    try:
        import numpy
    except ImportError:
        return {"dtype": dtype, "shape": list(shape), "data": data}
    # A copy, since the caller may write to the array, but the frame's bytes are read-only.
    return numpy.ndarray(tuple(shape), numpy.dtype(dtype), buffer=data).copy()


def _read_bfloat16(shape: Any, data: bytes) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return {"dtype": "bfloat16", "shape": list(shape), "data": data}
    words = torch.frombuffer(bytearray(data), dtype=torch.int16) if data else torch.empty(0, dtype=torch.int16)
    return words.view(torch.bfloat16).reshape(tuple(shape))


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
        raise ValueError("the header of an array cannot be read") from error
    return read_array(dtype, shape, packed[start + 1 + 8 * len(shape) :])
