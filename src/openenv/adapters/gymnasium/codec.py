"""Gymnasium spaces as pydantic types: the values that are sent for a space's members, converted both ways."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, Literal, Union

import numpy as np
from annotated_types import Predicate
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from pydantic import ConfigDict, Discriminator, Field, Tag, with_config
from typing_extensions import TypedDict  # typing's own cannot be read by pydantic before Python 3.12

from ...arrays import LISTED_ELEMENTS, Array
from ...errors import InvalidAction, UsageError
from .description import KEYWORD, describe, dtype_of, limits_of

# Called as a function, since the keys are known only at run time.
_typed_dict: Any = TypedDict


@dataclass(frozen=True, slots=True)
class SpaceCodec:
    """Converts members of one space.

    Attributes:
        type: Annotation for pydantic. For Gymnasium's own spaces, it accepts only the values of members.
        encode: Converts a member, as an environment returns it, to a value of that type: numbers, lists and dicts,
            and arrays for arrays. Does not check membership.
        decode: Converts a validated value, or its JSON form, to a member of the type that `space.sample()` returns.
    """

    type: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def codec_of(space: Space[Any]) -> SpaceCodec:
    """The codec of a space.

    For a subclass of one of Gymnasium's spaces, `decode` also checks `contains()`, and raises `InvalidAction`.

    Raises:
        UsageError: A space of this kind cannot be served; the message names it.
    """
    codec = _codec(space)
    if type(space) in _codec.registry:
        return codec

    def decode(value: Any) -> Any:
        member = codec.decode(value)
        if not space.contains(member):
            raise InvalidAction(f"{value!r} is outside of the space {space}")
        return member

    return SpaceCodec(codec.type, codec.encode, decode)


@functools.singledispatch
def _codec(space: Space[Any]) -> SpaceCodec:
    describe(space)  # raises `UsageError`, since it supports the same kinds
    raise AssertionError(space)


@_codec.register
def _discrete(space: spaces.Discrete) -> SpaceCodec:
    first = int(space.start)
    bounded = Annotated[int, Field(ge=first, le=first + int(space.n) - 1)]
    if space.n > LISTED_ELEMENTS:
        return SpaceCodec(bounded, int, space.dtype.type)
    # Looking a member up takes a quarter of the time of making it.
    members = {value: space.dtype.type(value) for value in range(first, first + int(space.n))}
    return SpaceCodec(bounded, int, members.__getitem__)


@_codec.register(spaces.Box)
@_codec.register(spaces.MultiBinary)
@_codec.register(spaces.MultiDiscrete)
def _array(space: Space[Any]) -> SpaceCodec:
    low, high = limits_of(space)
    dtype_of(space)  # refuses types that JSON cannot carry
    dtype, shape = np.dtype(space.dtype), low.shape

    def encode(member: Any) -> Any:
        array = np.asarray(member, dtype=dtype)
        # For few numbers, a list takes less time on both sides than an array.
        return array.tolist() if array.size <= LISTED_ELEMENTS else array

    return SpaceCodec(
        Annotated[np.ndarray, Array(dtype, shape, low, high)],
        encode,
        lambda value: np.asarray(value, dtype=dtype).reshape(shape),
    )


@_codec.register
def _text(space: spaces.Text) -> SpaceCodec:
    # Sorted, so that no two characters form a regex operator such as "&&".
    characters = "".join(f"\\{c}" if c in "\\[]^-" else c for c in sorted(space.character_set))
    pattern = f"^[{characters}]*$" if characters else "^$"
    bounded = Field(min_length=space.min_length, max_length=space.max_length, pattern=pattern)
    return SpaceCodec(Annotated[str, bounded], str, str)


@_codec.register
def _dict(space: spaces.Dict) -> SpaceCodec:
    describe(space)  # raises if a key is not a string
    codecs = {key: codec_of(part) for key, part in space.spaces.items()}
    fields = object_type("Dict", {key: codec.type for key, codec in codecs.items()})
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


@_codec.register
def _sequence(space: spaces.Sequence) -> SpaceCodec:
    codec = codec_of(space.feature_space)
    several = GenericAlias(list, (codec.type,))
    if space.stack:
        if not _counts(space.feature_space):
            raise UsageError(f"{space} cannot be served: the number of parts in a stack of empty parts is not known")
        stack = _Stack(space.feature_space, codec)
        return SpaceCodec(several, stack.encode, stack.decode)
    encode, decode = codec.encode, codec.decode
    return SpaceCodec(
        several,
        lambda member: [encode(part) for part in member],
        lambda value: tuple([decode(part) for part in value]),
    )


@_codec.register(spaces.OneOf)
def _one_of(space: spaces.OneOf[Any]) -> SpaceCodec:
    codecs = [codec_of(part) for part in space.spaces]
    variants = tuple(
        Annotated[GenericAlias(tuple, (Literal[index], codec.type)), Tag(str(index))]
        for index, codec in enumerate(codecs)
    )
    # Discriminated by its number, so that an error is about the chosen space and not about each.
    by_number = Discriminator(
        _number_of_variant,
        custom_error_type="one_of",
        custom_error_message=f"Input should be [number, member]: the number of a space, 0 to {len(codecs) - 1}",
    )
    return SpaceCodec(
        Annotated[Union[variants], by_number],  # noqa: UP007 - known when it runs
        lambda member: (int(member[0]), codecs[member[0]].encode(member[1])),
        lambda value: (np.int64(value[0]), codecs[value[0]].decode(value[1])),
    )


def _counts(space: Space[Any]) -> bool:
    """Whether a stack of members of the space shows how many they are."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)
        return bool(parts) and all(map(_counts, parts))
    return True


def _number_of_variant(value: Any) -> str | None:
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return str(value[0]) if is_pair and type(value[0]) is int else None


@_codec.register
def _graph(space: spaces.Graph) -> SpaceCodec:
    nodes = _Stack(space.node_space, codec_of(space.node_space))
    edges = None if space.edge_space is None else _Stack(space.edge_space, codec_of(space.edge_space))
    place = Annotated[int, Field(ge=0, le=np.iinfo(np.int32).max)]
    ends = Annotated[list[place], Field(min_length=2, max_length=2)]
    fields: dict[str, Any] = {"nodes": nodes.type, "edges": None, "edge_links": None}
    if edges is not None:
        fields |= {"edges": edges.type | None, "edge_links": list[ends] | None}

    def encode(member: Any) -> dict[str, Any]:
        links = None if member.edge_links is None else np.asarray(member.edge_links).tolist()
        joined = None if edges is None or member.edges is None else edges.encode(member.edges)
        return {"nodes": nodes.encode(member.nodes), "edges": joined, "edge_links": links}

    def decode(value: Any) -> spaces.GraphInstance:
        joined, links = value["edges"], value["edge_links"]
        if edges is None or joined is None:
            return spaces.GraphInstance(nodes.decode(value["nodes"]), None, None)
        pairs = np.asarray(links, dtype=np.int32).reshape(-1, 2)
        return spaces.GraphInstance(nodes.decode(value["nodes"]), edges.decode(joined), pairs)

    return SpaceCodec(Annotated[object_type("Graph", fields), Predicate(_check_edges)], encode, decode)


def _check_edges(graph: Any) -> bool:
    """True, or a `ValueError` that names an edge to a node that does not exist."""
    edges, links, count = graph["edges"], graph["edge_links"], len(graph["nodes"])
    if (edges is None) != (links is None) or len(edges or ()) != len(links or ()):
        raise ValueError("edges and edge_links are not of the same length")
    for index, ends in enumerate(links or ()):
        if max(ends) >= count:
            raise ValueError(f"edge_links[{index}] is {list(ends)}, and there are {count} nodes")
    return True


class _Stack:
    """Any number of members of one space, stacked as Gymnasium does it: an array of arrays, a dict of arrays.

    Attributes:
        type: Annotation for pydantic: a list of members.
    """

    def __init__(self, space: Space[Any], codec: SpaceCodec):
        self.type: Any = GenericAlias(list, (codec.type,))
        self._space = space
        self._codec = codec
        self._stacked = batch_space(space, 1)

    def encode(self, members: Any) -> list[Any]:
        if isinstance(members, np.ndarray):
            # In one call, which is many times as fast for arrays and numbers.
            listed: list[Any] = members.tolist()
            return listed
        return [self._codec.encode(member) for member in iterate(self._stacked, members)]

    def decode(self, values: Any) -> Any:
        members = [self._codec.decode(value) for value in values]
        empty: Any = create_empty_array(self._space, len(members))
        return concatenate(self._space, members, empty) if members else empty


def object_type(name: str, fields: dict[str, Any], total: bool = True) -> Any:
    """A type of JSON objects with these fields, which may have any names. Without `total`, each is optional."""
    made = _typed_dict(name, fields, total=total)
    with_config(ConfigDict(extra="forbid"))(made)
    return made


def field_of(space: Space[Any]) -> Any:
    """The pydantic field for members of a space, with its description."""
    words = " ".join(str(space).split())
    return Field(description=words, json_schema_extra={KEYWORD: describe(space)})
