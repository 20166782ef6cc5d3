"""Gymnasium spaces as types: what a value of a space looks like in JSON, and the way there and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any

import numpy as np
from annotated_types import Predicate
from gymnasium import Space, spaces
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # typing's own cannot be read by pydantic before Python 3.12

from ..errors import InvalidAction, UsageError

__all__ = ["SpaceCodec", "codec_of", "plain"]

Array = NDArray[Any]

# Beyond this, listing the bounds of every element would make a schema that nobody reads, and a table of members
# would be long.
LISTED_ELEMENTS = 64

# As a function: here, the keys are known only when it is called.
_typed_dict: Any = TypedDict
_PLAIN = frozenset({bool, int, float, str})


@dataclass(frozen=True, slots=True)
class SpaceCodec:
    """One space, ready for use.

    Attributes:
        type: An annotation for pydantic. It accepts the JSON form of the members of the space and nothing else,
            as far as the space is one of Gymnasium's own.
        encode: From a member, as an environment returns it, to its JSON form. Does not check membership.
        decode: From a validated JSON form to a member, of the type that `space.sample()` returns.
    """

    type: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def codec_of(space: Space[Any]) -> SpaceCodec:
    """Reads a space.

    The `decode` of a class derived from one of Gymnasium's asks the space itself, and raises `InvalidAction`.

    Raises:
        UsageError: A space of this kind cannot be served; the message names it.
    """
    codec = _codec(space)
    if type(space) in _codec.registry:
        return codec
    return SpaceCodec(codec.type, codec.encode, functools.partial(_decode_member, space, codec.decode))


@functools.singledispatch
def _codec(space: Space[Any]) -> SpaceCodec:
    supported = ", ".join(sorted(kind.__name__ for kind in _codec.registry if kind is not object))
    raise UsageError(f"a space of kind {type(space).__name__} cannot be served: {space}; supported are {supported}")


@_codec.register
def _discrete(space: spaces.Discrete) -> SpaceCodec:
    first = int(space.start)
    bounded = Annotated[int, Field(ge=first, le=first + int(space.n) - 1)]
    if space.n > LISTED_ELEMENTS:
        return SpaceCodec(bounded, int, space.dtype.type)
    # Looking a member up takes a quarter of the time of making it.
    members = {value: space.dtype.type(value) for value in range(first, first + int(space.n))}
    return SpaceCodec(bounded, int, members.__getitem__)


@_codec.register
def _box(space: spaces.Box) -> SpaceCodec:
    return _array_codec(space.low, space.high, space.dtype)


@_codec.register
def _multi_discrete(space: spaces.MultiDiscrete) -> SpaceCodec:
    return _array_codec(space.start, space.start + (space.nvec - 1), space.dtype)


@_codec.register
def _multi_binary(space: spaces.MultiBinary) -> SpaceCodec:
    zeros = np.zeros(space.shape, dtype=space.dtype)
    return _array_codec(zeros, zeros + 1, zeros.dtype)


@_codec.register
def _text(space: spaces.Text) -> SpaceCodec:
    # Sorted, so that no two of them form an operator of the pattern language, such as "&&".
    characters = "".join(f"\\{c}" if c in "\\[]^-" else c for c in sorted(space.character_set))
    pattern = f"^[{characters}]*$" if characters else "^$"
    bounded = Field(min_length=space.min_length, max_length=space.max_length, pattern=pattern)
    return SpaceCodec(Annotated[str, bounded], str, str)


@_codec.register
def _dict(space: spaces.Dict) -> SpaceCodec:
    codecs = {key: codec_of(part) for key, part in space.spaces.items()}
    if not all(isinstance(key, str) for key in codecs):
        raise UsageError(f"a Dict space whose keys are not all text cannot be served: {space}")
    fields = _typed_dict("Dict", {key: codec.type for key, codec in codecs.items()})
    with_config(ConfigDict(extra="forbid"))(fields)
    encoders = tuple((key, codec.encode) for key, codec in codecs.items())
    decoders = tuple((key, codec.decode) for key, codec in codecs.items())
    return SpaceCodec(
        fields,
        lambda member: {key: encode(member[key]) for key, encode in encoders},
        lambda value: {key: decode(value[key]) for key, decode in decoders},
    )


@_codec.register(spaces.Tuple)
def _tuple(space: spaces.Tuple[Any]) -> SpaceCodec:
    codecs = [codec_of(part) for part in space.spaces]
    encoders = tuple(codec.encode for codec in codecs)
    decoders = tuple(codec.decode for codec in codecs)
    return SpaceCodec(
        GenericAlias(tuple, tuple(codec.type for codec in codecs)),
        lambda member: tuple([encode(part) for encode, part in zip(encoders, member, strict=True)]),
        lambda value: tuple([decode(part) for decode, part in zip(decoders, value, strict=True)]),
    )


def _array_codec(low: Array, high: Array, dtype: np.dtype[Any]) -> SpaceCodec:
    """Arrays with bounds, which are of the arrays' shape, as nested lists; of shape `()`, as a number."""
    shape = low.shape

    def decode(value: Any) -> Array:
        return np.asarray(value, dtype=dtype).reshape(shape)

    return SpaceCodec(_array_type(low, high, dtype), _encode_array, decode)


def _encode_array(member: Any) -> Any:
    return member.tolist() if type(member) is np.ndarray else np.asarray(member).tolist()


def _array_type(low: Array, high: Array, dtype: np.dtype[Any]) -> Any:
    nested: Any = _element_type(low, high, dtype)
    for length in reversed(low.shape):
        nested = Annotated[list[nested], Field(min_length=length, max_length=length)]
    if _says_all(low, high):
        return nested
    if low.ndim == 1 and low.size <= LISTED_ELEMENTS:
        nested = Annotated[nested, Field(json_schema_extra={"prefixItems": _listed(low, high, dtype)})]
    # Not a validator, which might change the value: servers write what is only restricted without pydantic.
    return Annotated[nested, Predicate(functools.partial(_within, low, high, dtype))]


def _element_type(low: Array, high: Array, dtype: np.dtype[Any]) -> Any:
    """A number within the widest of the bounds; those that are infinite are no part of it."""
    if dtype.kind == "b":
        return bool
    bounds = _bounds(low.min(), high.max()) if low.size else {}
    # NaN is in no bounds, and infinity in none that are finite: pydantic refuses both without being told.
    kind = int if dtype.kind in "iu" else float
    return Annotated[kind, Field(**bounds)] if bounds else kind


def _says_all(low: Array, high: Array) -> bool:
    """Whether the type of the elements alone keeps out whatever is out of bounds."""
    if low.size == 0:
        return True
    if low.dtype.kind == "b":
        return not low.any() and bool(high.all())
    same = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
    return same and bool(np.isfinite(low.flat[0]) and np.isfinite(high.flat[0]))


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    given = {"ge": low.item(), "le": high.item()}
    return {name: bound for name, bound in given.items() if np.isfinite(bound)}


def _listed(low: Array, high: Array, dtype: np.dtype[Any]) -> list[Any]:
    kind = "integer" if dtype.kind in "iu" else "number"
    names = {"ge": "minimum", "le": "maximum"}
    return [
        {"type": kind, **{names[name]: bound for name, bound in _bounds(*pair).items()}}
        for pair in zip(low, high, strict=True)
    ]


def _within(low: Array, high: Array, dtype: np.dtype[Any], value: Any) -> bool:
    """True, or a `ValueError` that names the place and its bounds."""
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype=dtype)
    outside = ~((low <= array) & (array <= high))  # not the opposite comparisons: NaN is in no bounds
    if dtype.kind == "f":
        outside |= np.isinf(array) & np.isfinite(np.asarray(value, dtype=np.float64))
    if outside.any():
        place = tuple(int(index) for index in np.argwhere(outside)[0])
        found = functools.reduce(lambda part, index: part[index], place, value)
        raise ValueError(
            f"{found} at {list(place)} is not between {low[place].item()} and {high[place].item()} ({dtype.name})"
        )
    return True


def _decode_member(space: Space[Any], decode: Callable[[Any], Any], value: Any) -> Any:
    member = decode(value)
    if not space.contains(member):
        raise InvalidAction(f"{value!r} is outside of the space {space}")
    return member


def plain(value: Any) -> Any:
    """Anything as what JSON can say: arrays as lists, numpy's numbers as Python's, unknown objects as text."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | str) else str(value)


def _plain_array(value: Array | np.generic) -> Any:
    items = value.tolist()
    if value.dtype.kind in "biuf" and not isinstance(items, np.generic):
        return items
    # The widest numbers of some machines are no Python number, and come out as themselves.
    return str(items) if isinstance(items, np.generic) else plain(items)
