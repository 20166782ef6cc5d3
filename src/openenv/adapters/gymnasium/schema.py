"""Convert JSON Schemas to Gymnasium spaces, for trainers that work with arrays only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces

from ...arrays import KEYWORD as ARRAY_KEYWORD
from ...errors import UnmappableSpace, UsageError
from ...images import decode_pixels
from .codec import codec_of
from .description import KEYWORD, NUMBERS, rebuild


@dataclass(frozen=True, slots=True)
class MappedSpace:
    """A JSON Schema mapped to a space.

    Attributes:
        space: Space of the values that the schema allows.
        encode: Converts a member to its JSON value. Does not check membership.
        decode: Converts a JSON value to a member. Raises LookupError, TypeError or ValueError for an invalid value.
        field: The only field of an object that has one; otherwise None.
        single: Whether the value is a single number, which is an array of one element in the space.
        plain: Whether the value is the member as nested lists, so that a batch converts to one array at once.
        described: Whether the schema describes a space of Gymnasium (`x-gymnasium`).
        fields: The spaces of the fields of an object; None for any other value.
    """

    space: Space[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    field: str | None = None
    single: bool = False
    plain: bool = False
    described: bool = False
    fields: Mapping[str, MappedSpace] | None = None


# Errors of `encode` and `decode` for an invalid value.
MISFITS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


def choice(values: Sequence[Any]) -> MappedSpace:
    def encode(member: Any) -> Any:
        index = int(member)
        if index != member or not 0 <= index < len(values):
            raise ValueError(f"{member!r:.80} is not the number of one of {len(values)} values")
        return values[index]

    def decode(value: Any) -> np.int64:
        for index, each in enumerate(values):
            if each == value and isinstance(each, bool) == isinstance(value, bool):  # True is not 1 in JSON
                return np.int64(index)
        raise ValueError(f"{value!r:.80} is not one of {values!r:.200}")

    return MappedSpace(spaces.Discrete(len(values)), encode, decode)


def first_fit(parts: Sequence[MappedSpace], value: Any) -> tuple[np.int64, Any]:
    """The number of the first alternative that accepts a value, and the member."""
    for number, part in enumerate(parts):
        try:
            member = part.decode(value)
        except MISFITS:
            continue
        if part.space.contains(member):
            return np.int64(number), member
    raise ValueError(f"{value!r:.80} fits none of {len(parts)} alternatives")


def tuple_of(parts: Sequence[MappedSpace]) -> MappedSpace:
    encoders, decoders = [part.encode for part in parts], [part.decode for part in parts]
    return MappedSpace(
        spaces.Tuple([part.space for part in parts]),
        lambda member: [encode(part) for encode, part in zip(encoders, member, strict=True)],
        lambda value: tuple([decode(part) for decode, part in zip(decoders, value, strict=True)]),
    )


def numbers(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{value!r:.80} does not consist of numbers")
    return array.astype(dtype, copy=False).reshape(shape)


def only(member: Any) -> Any:
    return np.asarray(member).item()


def listed(member: Any) -> Any:
    return np.asarray(member).tolist()


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value


Role = Literal["action", "observation"]
Schema = Mapping[str, Any]

# Fields of results that are not observations, and fields of actions that no agent decides.
_BESIDE = {"observation": {"done", "reward", "metadata", "terminated", "truncated"}, "action": {"metadata"}}
# Keywords that would let the space offer actions that the server refuses.
_NARROWING = ("pattern", "format", "multipleOf", "uniqueItems", "contains")
# Limits for schemas from a server: their parts and elements take memory in the client.
MOST_PARTS = 1024
MOST_ELEMENTS = 2**24
# Longest sample, in characters, of a space without a limit.
SAMPLE_LENGTH = 64
_INT64 = np.iinfo(np.int64)
_PRINTABLE = "".join(map(chr, range(32, 127)))


class FreeText(spaces.Text):
    """A space of all strings; samples are printable ASCII.

    Args:
        min_length: Shortest member.
        max_length: Longest member; None for any.
    """

    def __init__(self, min_length: int = 0, max_length: int | None = None):
        self._limit = max_length
        longest = max(SAMPLE_LENGTH, min_length) if max_length is None else max_length
        super().__init__(longest, min_length=min_length, charset=_PRINTABLE)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) and (self._limit is None or len(x) <= self._limit)


def space_of_fields(schema: Schema, role: Role) -> MappedSpace:
    """The space of an action's or an observation's fields.

    Fields that Gymnasium returns separately (reward, done, metadata) are left out. A single field has its own space;
    several fields are a `Dict`.

    Args:
        schema: Schema of the action or observation, as `GET /schema` returns it.
        role: `action` or `observation`.

    Raises:
        UnmappableSpace: The schema has no equivalent space; the message names the part and the next step.
    """
    mapper = _Mapper(schema.get("$defs", {}), role)
    try:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return mapper.space(schema, role, ())
        fields = {name: part for name, part in properties.items() if name not in _BESIDE[role]}
        if len(fields) != 1:
            return mapper.object({**schema, "properties": fields}, role, ())
        ((name, part),) = fields.items()
        inner = mapper.space(part, f"{role}.{name}", ())
        encode, decode = inner.encode, inner.decode
        return replace(
            inner, encode=lambda member: {name: encode(member)}, decode=lambda value: decode(value[name]), field=name
        )
    except (TypeError, ValueError, AttributeError, AssertionError, OverflowError, RecursionError) as error:
        why = f"its schema makes no sense ({type(error).__name__}: {error!s:.200})"
        raise mapper.refusal(role, why) from error


class _Mapper:
    """Walks through one schema; `trail` has the names of the definitions around the current part."""

    def __init__(self, definitions: Any, role: Role):
        self._definitions = definitions if isinstance(definitions, Mapping) else {}
        self._role = role
        self._kinds: dict[Any, Callable[[Schema, str, tuple[str, ...]], MappedSpace]] = {
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda schema, place, trail: choice([False, True]),
            "string": lambda schema, place, trail: MappedSpace(
                FreeText(schema.get("minLength", 0), schema.get("maxLength")), str, text
            ),
            "null": lambda schema, place, trail: choice([None]),
            "array": self._array,
            "object": self.object,
        }

    def space(self, schema: Any, place: str, trail: tuple[str, ...]) -> MappedSpace:
        """The space of a schema, or of a part of one."""
        if not isinstance(schema, Mapping):
            raise self.refusal(place, "its schema allows anything")
        if KEYWORD in schema:
            try:
                space = rebuild(schema[KEYWORD])
                codec = codec_of(space)
            except UsageError as error:
                raise UnmappableSpace(error.message) from error
            return MappedSpace(space, codec.encode, codec.decode, plain=isinstance(space, NUMBERS), described=True)
        if "$ref" in schema:
            return self._reference(schema, place, trail)
        if "enum" in schema or "const" in schema:
            values = list(schema["enum"]) if "enum" in schema else [schema["const"]]
            if not values:
                raise self.refusal(place, "its schema allows no value")
            return choice(values)
        alternatives = _alternatives(schema)
        if alternatives is not None:
            return self._one_of(alternatives, place, trail)
        kind = schema.get("type")
        if kind not in self._kinds:
            raise self.refusal(place, "its schema allows anything" if kind is None else f"its type is {kind!r:.50}")
        narrowing = [word for word in _NARROWING if schema.get(word)]
        if narrowing and self._role == "action":
            raise self.refusal(place, f"no space says what its {' and '.join(narrowing)} means")
        return self._kinds[kind](schema, place, trail)

    def object(self, schema: Schema, place: str, trail: tuple[str, ...]) -> MappedSpace:
        properties = schema.get("properties")
        if not properties:
            raise self.refusal(place, "it is an object, and the schema does not name its fields")
        if len(properties) > MOST_PARTS:
            raise self.refusal(place, f"it has more than {MOST_PARTS} fields")
        parts = {str(name): self.space(part, f"{place}.{name}", trail) for name, part in properties.items()}
        encoders = [(name, part.encode) for name, part in parts.items()]
        decoders = [(name, part.decode) for name, part in parts.items()]
        return MappedSpace(
            spaces.Dict([(name, part.space) for name, part in parts.items()]),
            lambda member: {name: encode(member[name]) for name, encode in encoders},
            lambda value: {name: decode(value[name]) for name, decode in decoders},
            fields=parts,
        )

    def _reference(self, schema: Schema, place: str, trail: tuple[str, ...]) -> MappedSpace:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        if name in trail:
            raise self.refusal(place, f"{name} contains itself, to any depth")
        if name not in self._definitions:
            raise self.refusal(place, f"its schema refers to {name!r:.80}, which is missing")
        return self.space(self._definitions[name], place, (*trail, name))

    def _one_of(self, alternatives: Any, place: str, trail: tuple[str, ...]) -> MappedSpace:
        parts = [self.space(each, place, trail) for each in alternatives]
        if len(parts) == 1:
            return parts[0]
        if not parts or len(parts) > MOST_PARTS:
            raise self.refusal(place, f"its schema has {len(parts)} alternatives")
        return MappedSpace(
            spaces.OneOf([part.space for part in parts]),
            lambda member: parts[int(member[0])].encode(member[1]),
            lambda value: first_fit(parts, value),
        )

    def _integer(self, schema: Schema, place: str, trail: tuple[str, ...]) -> MappedSpace:
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        least = schema.get("minimum") if above is None else int(np.floor(above)) + 1
        most = schema.get("maximum") if below is None else int(np.ceil(below)) - 1
        low = None if least is None else int(np.ceil(least))
        high = None if most is None else int(np.floor(most))
        if low is None or high is None or low < _INT64.min or high > _INT64.max or high - low >= _INT64.max:
            return self._box(_within(low, -np.inf), _within(high, np.inf), np.dtype(np.int64), place)
        if high < low:
            raise self.refusal(place, f"no integer is between {low} and {high}")
        return MappedSpace(spaces.Discrete(high - low + 1, start=low), int, np.int64, single=True, plain=True)

    def _number(self, schema: Schema, place: str, trail: tuple[str, ...]) -> MappedSpace:
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        low = float(schema.get("minimum", -np.inf)) if above is None else float(np.nextafter(above, np.inf))
        high = float(schema.get("maximum", np.inf)) if below is None else float(np.nextafter(below, -np.inf))
        return self._box(low, high, np.dtype(np.float64), place)

    def _box(self, low: float, high: float, dtype: np.dtype[Any], place: str) -> MappedSpace:
        if high < low:
            raise self.refusal(place, f"no number is between {low} and {high}")
        box = spaces.Box(low, high, (1,), dtype.type)
        return MappedSpace(box, only, lambda value: numbers([value], dtype, (1,)), single=True, plain=True)

    def _array(self, schema: Schema, place: str, trail: tuple[str, ...]) -> MappedSpace:
        declared = _declared_array(schema)
        if declared is not None:
            return declared
        positions, least, most = schema.get("prefixItems"), schema.get("minItems", 0), schema.get("maxItems")
        if positions is not None and "items" not in schema:
            parts = [self.space(part, f"{place}[{index}]", trail) for index, part in enumerate(positions)]
            return tuple_of(parts)
        item = self.space(schema.get("items"), f"{place}[]", trail)
        if least == most:
            elements = int(np.prod(item.space.shape)) if item.space.shape else 1
            space = _stack(item, least) if least * elements <= MOST_ELEMENTS else None
            if space is not None:
                dtype, shape = np.dtype(space.dtype), space.shape or ()
                return MappedSpace(space, listed, lambda value: numbers(value, dtype, shape), plain=True)
            if least > MOST_PARTS:
                raise self.refusal(place, f"it is a list of {least} elements that are not numbers")
            return tuple_of([item] * least)
        if self._role == "action" and (least or most is not None):
            raise self.refusal(place, f"no space has lists of {least} to {most or 'any number of'} elements")
        return MappedSpace(
            spaces.Sequence(item.space),
            lambda member: [item.encode(part) for part in member],
            lambda value: tuple([item.decode(part) for part in value]),
        )

    def refusal(self, place: str, why: str) -> UnmappableSpace:
        """The error for a schema without a space."""
        function = "encode_action" if self._role == "action" else "decode_observation"
        return UnmappableSpace(
            f"no Gymnasium space can be made of {place}: {why}; give {self._role}_space=... and {function}=..., "
            "which says how its members travel"
        )


def _declared_array(schema: Schema) -> MappedSpace | None:
    """The space of a field with an `openenv.Array` of a fixed shape; None for another field."""
    facts = schema.get(ARRAY_KEYWORD)
    if not isinstance(facts, Mapping) or None in facts["shape"]:
        return None
    shape = tuple(facts["shape"])
    dtype: np.dtype[Any] = np.dtype("float32" if facts["dtype"] == "bfloat16" else facts["dtype"])
    if dtype.kind not in "biuf" or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"it is an array of {math.prod(shape)} elements of {dtype}")
    element: Any = schema
    for _ in shape:
        element = element["items"]
    each = schema.get("prefixItems") or [element]
    limits = (-np.inf, np.inf) if dtype.kind == "f" else (False, True)
    if dtype.kind in "iu":
        limits = (int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max))
    with np.errstate(over="ignore"):
        low = np.array([part.get("minimum", limits[0]) for part in each], dtype)
        high = np.array([part.get("maximum", limits[1]) for part in each], dtype)
    box = spaces.Box(np.broadcast_to(low, shape).copy(), np.broadcast_to(high, shape).copy(), shape, dtype.type)
    encoding: Any = facts.get("encoding")

    def decode(value: Any) -> Any:
        return numbers(decode_pixels(value, encoding, shape) if isinstance(value, bytes) else value, dtype, shape)

    return MappedSpace(box, listed, decode, plain=encoding is None)


def _alternatives(schema: Schema) -> list[Any] | None:
    """The alternatives of a schema; None if it has no alternatives."""
    given = schema.get("anyOf", schema.get("oneOf"))
    if given is not None:
        return list(given)
    rest = {name: value for name, value in schema.items() if name not in {"allOf", "type"}}
    whole, kind = schema.get("allOf"), schema.get("type")
    if isinstance(whole, list) and len(whole) == 1:  # a reference with further keywords
        return [{**whole[0], **rest}]
    return [{**rest, "type": each} for each in kind] if isinstance(kind, list) else None


def _stack(item: MappedSpace, length: int) -> Space[Any] | None:
    """A space of `length` members in one array; None if they are not numbers."""
    space = item.space
    if item.single and isinstance(space, spaces.Discrete):
        start = np.full(length, space.start, np.int64)
        return spaces.MultiDiscrete(np.full(length, space.n, np.int64), start=start) if length else None
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.stack([space.nvec] * length), start=np.stack([space.start] * length))
    if isinstance(space, spaces.Box) and length:
        shape = (length,) if item.single else (length, *space.shape)
        low, high = (np.array(np.broadcast_to(bound, shape)) for bound in (space.low, space.high))
        return spaces.Box(low, high, shape, space.dtype.type)
    return None


def _within(bound: int | None, infinite: float) -> float:
    """A bound that fits into int64, otherwise `infinite`."""
    return infinite if bound is None or not _INT64.min <= bound <= _INT64.max else bound
