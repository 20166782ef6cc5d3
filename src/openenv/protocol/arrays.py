"""Arrays and tensors as bytes with a header, and back."""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
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


class ArrayDeclaration:
    """The base of `openenv.Array`, for code that must not load numpy.

    Attributes:
        encoding: The image format in which msgpack has the array; None if it has the elements.
    """

    encoding: str | None = None

    def compressed(self, value: Any) -> Any:
        """The image file of an array, which has an `encoding`; any other value as it is.

        Raises:
            ValueError: The array has another type or shape than declared.
        """
        raise NotImplementedError


def is_array(value: Any) -> bool:
    """Whether a value is an array: of numpy, a torch tensor, or another one that exports its memory (DLPack).

    Imports no library: such a value has loaded its own.
    """
    numpy = sys.modules.get("numpy")
    return (numpy is not None and isinstance(value, numpy.ndarray)) or hasattr(type(value), "__dlpack__")


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def byte_size(array: Any) -> int:
    """The size of the elements of an array in bytes; 0 for one that has none, such as a sparse tensor."""
    try:
        size: int = array.nbytes
    except (AttributeError, RuntimeError):
        return 0
    return size


def is_numpy_scalar(value: Any) -> bool:
    """Whether a value is a single numpy number."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def to_numpy(array: Any) -> Any:
    """A numpy array with the elements of an array on any device; those of a `bfloat16` tensor as `float32`.

    Raises:
        TypeError: It is sparse, quantized or without elements.
    """
    import numpy

    if isinstance(array, numpy.ndarray):
        return array
    if is_tensor(array):
        here = _dense(array)
        return (here.float() if here.dtype is sys.modules["torch"].bfloat16 else here).numpy()
    return numpy.asarray(array) if hasattr(array, "__array__") else numpy.from_dlpack(array)


def plain_elements(array: Any) -> tuple[str, tuple[int, ...], Any]:
    """Element type, shape and elements of an array or a tensor on any device.

    Returns:
        The elements are a C-contiguous numpy array in little-endian order: the array itself if it is one.

    Raises:
        TypeError: Its element type cannot be sent, it has too many dimensions, or it is not a plain array.
    """
    name = _names.get(getattr(array, "dtype", None))  # that of an array of another library may be numpy's
    if not name or not isinstance(array, sys.modules["numpy"].ndarray):
        if is_tensor(array):
            here, torch = _dense(array), sys.modules["torch"]
            if here.dtype is torch.bfloat16:  # numpy has no such type
                return "bfloat16", tuple(here.shape), here.contiguous().view(torch.int16).numpy()
        try:
            array = to_numpy(array)
        except (TypeError, RuntimeError, BufferError) as error:
            kind = f"tensor of {array.dtype}" if is_tensor(array) else type(array).__name__
            raise TypeError(f"a {kind} cannot be sent: {error}") from error
        name = array.dtype.newbyteorder("<").str
        if name not in ELEMENT_SIZES:
            raise TypeError(f"an array of {array.dtype} cannot be sent: its elements must be numbers of a fixed size")
        if array.dtype.str == name:
            _names[array.dtype] = name
    if array.ndim > MAX_DIMENSIONS:
        raise TypeError(f"an array of {array.ndim} dimensions cannot be sent: at most {MAX_DIMENSIONS}")
    if hasattr(array, "mask"):
        raise TypeError("an array with a mask cannot be sent: send filled() and mask as separate arrays")
    if array.dtype not in _names or not array.flags.c_contiguous:
        array = array.astype(name, order="C", copy=False)
    return name, array.shape, array


# The names of numpy's little-endian element types. To make the name takes longer than the rest of a small array.
_names: dict[Any, str] = {}


def write_array(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Element type, shape and the bytes of the elements. Raises `TypeError` as `plain_elements` does."""
    dtype, shape, elements = plain_elements(array)
    return dtype, shape, elements.tobytes()


def list_of(array: Any) -> Any:
    """The elements of an array or a tensor in nested lists, for JSON without marks; for zero dimensions, the element.

    Raises:
        TypeError: As `plain_elements`, and for complex numbers, which JSON lacks.
    """
    dtype, _, elements = plain_elements(array)
    if "c" in dtype:
        raise TypeError("an array of complex numbers cannot be sent in protocol v1: send two arrays, or use v2")
    return (array if dtype == "bfloat16" else elements).tolist()


def _dense(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(f"a tensor of layout {tensor.layout} on {tensor.device} cannot be sent: make it dense first")
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def read_array(dtype: Any, shape: Any, data: bytes | memoryview) -> Any:
    """The array of an element type, shape and elements; without numpy, a mapping of these three.

    Returns:
        A writable copy.

    Raises:
        ValueError: They are inconsistent, or have the wrong types.
    """
    known = isinstance(shape, (list, tuple)) and len(shape) <= MAX_DIMENSIONS
    if not known or not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"the shape of an array must be a list of at most {MAX_DIMENSIONS} lengths")
    return copy_of(dtype, tuple(shape), _size_of(dtype, shape), data)


def _size_of(dtype: Any, shape: Any) -> int:
    size = ELEMENT_SIZES.get(dtype) if isinstance(dtype, str) else None
    if size is None:
        raise ValueError(f"an array of unknown element type {dtype!r:.50}: known are {' '.join(ELEMENT_SIZES)}")
    return int(prod(shape)) * size


_copy = operator.methodcaller("copy")


def copy_of(
    dtype: Any,
    shape: tuple[int, ...],
    size: int,
    data: bytes | memoryview,
    copy: Callable[[Any], Any] = _copy,
) -> Any:
    """A writable array of a known element type, as `read_array` returns it.

    Args:
        dtype, shape, data: As for `read_array`.
        size: The bytes that the shape needs.
        copy: Copies the elements, which are a numpy array.
    """
    if size != len(data):
        raise ValueError(f"an array whose shape needs {size} bytes has {len(data)}")
    if dtype == "bfloat16":  # numpy has no such type
        torch = sys.modules.get("torch")
        if torch is None:
            return {"dtype": dtype, "shape": list(shape), "data": bytes(data)}
        words = torch.frombuffer(bytearray(data), dtype=torch.int16) if data else torch.empty(0, dtype=torch.int16)
        return words.view(torch.bfloat16).reshape(shape)
    try:
        import numpy
    except ImportError:
        return {"dtype": dtype, "shape": list(shape), "data": bytes(data)}
    if dtype == "|b1":  # a peer may send other bytes than 0 and 1
        return numpy.ndarray(shape, "|u1", data).astype(numpy.bool_)
    return copy(numpy.ndarray(shape, dtype, data))


def array_parts(array: Any) -> tuple[bytes, Any]:
    """The header of an array, and its elements as `plain_elements` returns them. Raises `TypeError` as that does."""
    dtype, shape, elements = plain_elements(array)
    return _header(dtype, shape), elements


def pack_array(array: Any) -> bytes:
    """Header and elements in one copy. Raises `TypeError` as `plain_elements` does."""
    header, elements = array_parts(array)
    if elements is array and elements.nbytes < SMALL_BYTES and len(_small_headers) < MOST_HEADERS:
        _small_headers[type(array), array.dtype, array.shape] = header
    return b"".join((header, elements))


# A larger array is copied once, which costs a second pass over the encoded value.
SMALL_BYTES = 4096
MOST_HEADERS = 256
_small_headers: dict[tuple[Any, Any, Any], bytes] = {}


def small_header(value: Any) -> bytes | None:
    """The header of a small numpy array, if one of its class, element type and shape was packed before."""
    try:
        return _small_headers.get((type(value), value.dtype, value.shape))
    except (AttributeError, TypeError):
        return None


@lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    name = dtype.encode()
    return struct.pack(f"<B{len(name)}sB{len(shape)}Q", len(name), name, len(shape), *shape)


# Most connections have arrays of few shapes: reading a known header takes a tenth of the time.
@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[str, tuple[int, ...], int]:
    """Element type, shape, and size of the elements in bytes."""
    start = 1 + header[0]
    dtype = header[1:start].decode("ascii")
    shape = struct.unpack_from(f"<{header[start]}Q", header, start + 1)
    if len(shape) > MAX_DIMENSIONS or any(length >= 2**63 for length in shape):
        raise ValueError(f"the shape of an array must be a list of at most {MAX_DIMENSIONS} lengths")
    return dtype, shape, _size_of(dtype, shape)


def unpack_array(packed: bytes | memoryview, copy: Callable[[Any], Any] = _copy) -> Any:
    """The array of header and elements. Raises `ValueError` as `read_array` does. `copy`: as for `copy_of`."""
    view = memoryview(packed)
    dtype, shape, size, elements = unpack_header(view)
    return copy_of(dtype, shape, size, view[elements:], copy)


def unpack_header(packed: memoryview) -> tuple[str, tuple[int, ...], int, int]:
    """Element type, shape, bytes of the elements, and their place. Raises `ValueError` as `read_array` does."""
    try:
        elements = 2 + packed[0] + 8 * packed[1 + packed[0]]
        return *_read_header(bytes(packed[:elements])), elements
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise ValueError("the header of an array cannot be read") from error
