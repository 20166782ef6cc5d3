"""Batches of members of a space, as Gymnasium's vector environments hold them, to arrays for a message, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from ...protocol.arrays import is_array, to_numpy
from .codec import codec_of
from .description import NUMBERS
from .schema import MappedSpace


@dataclass(frozen=True, slots=True)
class BatchCodec:
    """Converts a batch of members of one space. Neither direction loops over members that are numbers.

    Attributes:
        encode: Converts a member of the batched space, in which arrays may be of any library and on any device, to
            an array of shape (num_envs, ...); for a `Dict` or `Tuple` to a dict of these, of a `Tuple` under the
            numbers of its parts; for any other space to a list of num_envs members as JSON.
        decode: The reverse. Its arrays are numpy arrays that may be written to. Raises LookupError, TypeError or
            ValueError for an invalid value.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def batch_codec_of(space: Space[Any], num_envs: int) -> BatchCodec:
    """The codec of num_envs members of a space. Raises `UsageError` for a space that cannot be served."""
    if isinstance(space, NUMBERS):
        shape, dtype = (num_envs, *(space.shape or ())), np.dtype(space.dtype)
        return BatchCodec(lambda batch: host_array(batch, shape, dtype), lambda value: _own(value, shape, dtype))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named, inner = isinstance(space, spaces.Dict), space.spaces
        parts: dict[Any, Any] = dict(inner) if isinstance(inner, dict) else dict(enumerate(inner))
        codecs = [(str(key), key, batch_codec_of(part, num_envs)) for key, part in parts.items()]

        def decode(value: Any) -> Any:
            names = [name for name, *_ in codecs]
            if not isinstance(value, Mapping) or value.keys() != set(names):
                found = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                raise ValueError(f"it must be an object of {', '.join(names)}, and is {found:.200}")
            members = {key: codec.decode(value[name]) for name, key, codec in codecs}
            return members if named else tuple(members.values())

        return BatchCodec(lambda batch: {name: codec.encode(batch[key]) for name, key, codec in codecs}, decode)
    codec = codec_of(space)
    return BatchCodec(
        lambda batch: [codec.encode(member) for member in batch],
        lambda value: tuple([codec.decode(each) for each in _counted(value, num_envs)]),
    )


def column_codec_of(mapped: MappedSpace, num_envs: int) -> BatchCodec:
    """The codec of num_envs values of one field, of an environment that may not be Gymnasium's.

    Args:
        mapped: The field's schema as a space.
        num_envs: Number of values.
    """
    space = mapped.space
    if mapped.described:
        return batch_codec_of(space, num_envs)

    name = mapped.field  # the conversions of a single field are those of an object with this field

    def encode_list(members: Any) -> Any:
        values = [mapped.encode(member) for member in members]
        return values if name is None else [value[name] for value in values]

    def decode_list(value: Any) -> Any:
        members = [mapped.decode(each if name is None else {name: each}) for each in _counted(value, num_envs)]
        empty: Any = create_empty_array(space, n=num_envs, fn=np.zeros)
        return concatenate(space, members, empty)

    if not isinstance(space, NUMBERS):
        batched = batch_space(space, num_envs)
        return BatchCodec(lambda batch: encode_list(iterate(batched, batch)), decode_list)
    shape, dtype = (num_envs, *(space.shape or ())), np.dtype(space.dtype)
    sent = shape[:1] if mapped.single else shape

    def encode(batch: Any) -> Any:
        array = host_array(batch, shape, dtype)
        return array.reshape(sent) if mapped.plain else encode_list(array)

    def decode(value: Any) -> Any:
        return _own(value, sent, dtype).reshape(shape) if isinstance(value, np.ndarray) else decode_list(value)

    return BatchCodec(encode, decode)


def member_at(space: Space[Any], batch: Any, index: int) -> Any:
    """One member of a batch.

    Args:
        space: The space of the member.
        batch: A member of the batched space.
        index: Its place.
    """
    if isinstance(space, spaces.Dict):
        return {name: member_at(part, batch[name], index) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(member_at(part, each, index) for part, each in zip(space.spaces, batch, strict=True))
    return batch[index]


def host_array(value: Any, shape: tuple[int, ...] | None = None, dtype: Any = None) -> NDArray[Any]:
    """An array of any library (numpy, torch, jax, ...) on any device as a numpy array, without a copy if possible.

    Args:
        value: The array.
        shape: The shape that it must have; None for any.
        dtype: The type of its elements, to which others are converted; None for any.

    Raises:
        ValueError: It has another shape.
    """
    value = to_numpy(value) if is_array(value) else np.asarray(value)
    if shape is not None and value.shape != shape:
        raise ValueError(f"an array of shape {value.shape} in place of {shape}")
    array: NDArray[Any] = value if dtype is None else value.astype(dtype, copy=False)
    return array


def _own(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that its holder may write to."""
    array = host_array(value, shape)
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"an array of {array.dtype} in place of {dtype}")
    return np.require(array, dtype, "W")


def _counted(value: Any, num_envs: int) -> Any:
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != num_envs:
        found = len(value) if isinstance(value, list | tuple | np.ndarray) else type(value).__name__
        raise ValueError(f"a list of {num_envs} values is needed, one for each episode, and got {found}")
    return value
