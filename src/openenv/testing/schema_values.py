"""Values that a JSON Schema allows: actions to play with, made up from what an environment says it takes."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from random import Random
from typing import Any

from .patterns import text_of

__all__ = ["NoValue", "SchemaValues"]

Schema = Mapping[str, Any]

# What comes of a schema that somebody wrote by hand, and of odd values.
_ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# From here on the shortest that a schema allows: one that contains itself must come to an end.
DEEP = 4
# Bounds that are not there, for numbers and lengths.
SPREAD = 10
LONGER = 3
_WORDS = ("hello", "go north", "1", "a", "yes", "look around", "42")
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "somebody@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "http://example.com/",
    "uuid": "12345678-1234-4234-8234-123456789abc",
}


class NoValue(ValueError):
    """No value can be made; the message says of what part, and why."""


class SchemaValues:
    """Makes values of a schema. The same seed makes the same values.

    Args:
        schema: A JSON Schema as pydantic writes it.
        seed: Of its random numbers.
        skipped: Names of properties of the schema itself that are left out where they are not required.
    """

    def __init__(self, schema: Schema, seed: int = 0, skipped: frozenset[str] = frozenset()):
        self._schema = schema
        self._definitions = schema.get("$defs", {})
        self._random = Random(seed)  # noqa: S311 - no secrets
        self._skipped = skipped

    def value(self) -> Any:
        """One value.

        Raises:
            NoValue: There is none that this class knows how to make.
        """
        try:
            found = self._value(self._schema, "", 0)
            required = self._schema.get("required", ())
            if isinstance(found, dict):
                return {name: part for name, part in found.items() if name in required or name not in self._skipped}
            return found
        except NoValue:
            raise
        except _ODD as error:
            raise NoValue(f"its schema cannot be read: {type(error).__name__}: {error}") from None

    def _value(self, schema: Any, place: str, depth: int) -> Any:
        if schema is True or schema == {}:
            return self._random.choice(_WORDS)
        if not isinstance(schema, Mapping):
            raise NoValue(f"nothing is allowed at {place or 'the top'}")
        schema = self._merged(schema, place, depth)
        if "const" in schema:
            return schema["const"]
        for named in ("examples", "enum"):
            if schema.get(named):
                return self._random.choice(list(schema[named]))
        variants = schema.get("anyOf") or schema.get("oneOf")
        if variants:
            return self._variant(variants, place, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._random.choice([each for each in kind if each != "null"] or kind)
        if kind is None:
            kind = _implied(schema)
        make = getattr(self, f"_{kind}", None)
        if make is None:
            raise NoValue(f"{place or 'the action'} is of type {kind!r}, of which no value can be made")
        return make(schema, place, depth)

    def _merged(self, schema: Schema, place: str, depth: int) -> Schema:
        """The schema with what it refers to, and with all of what it is made of."""
        if depth > 50:
            raise NoValue(f"{place or 'the action'} contains itself without end")
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name not in self._definitions:
                raise NoValue(f"{place or 'the action'} refers to {schema['$ref']}, which is not there")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self._merged({**self._definitions[name], **rest}, place, depth + 1)
        if "allOf" in schema:
            merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged = _joined(merged, self._merged(part, place, depth + 1))
            return merged
        return schema

    def _variant(self, variants: list[Any], place: str, depth: int) -> Any:
        some = [each for each in variants if each != {"type": "null"}]
        if not some or (len(some) < len(variants) and (depth >= DEEP or self._random.random() < 0.2)):
            return None
        if depth >= DEEP:  # what contains nothing else, if there is such a thing
            plain = [each for each in some if isinstance(each, Mapping) and "$ref" not in each]
            some = plain or some
        return self._value(self._random.choice(some), place, depth + 1)

    def _null(self, schema: Schema, place: str, depth: int) -> None:
        return None

    def _boolean(self, schema: Schema, place: str, depth: int) -> bool:
        return self._random.random() < 0.5

    def _integer(self, schema: Schema, place: str, depth: int) -> int:
        low, high = _bounds(schema)
        least = math.ceil(low) + ("exclusiveMinimum" in schema and low == math.ceil(low))
        most = math.floor(high) - ("exclusiveMaximum" in schema and high == math.floor(high))
        step = int(schema.get("multipleOf", 1)) or 1
        first = -(-least // step)
        if first > most // step:
            raise NoValue(f"no integer is allowed at {place or 'the top'}")
        return self._random.randint(first, most // step) * step

    def _number(self, schema: Schema, place: str, depth: int) -> float:
        low, high = _bounds(schema)
        if low > high:
            raise NoValue(f"no number is allowed at {place or 'the top'}")
        if "multipleOf" in schema:
            step = float(schema["multipleOf"])
            return step * self._random.randint(math.ceil(low / step), math.floor(high / step))
        value = self._random.uniform(low, high)
        return round(value, 3) if low <= round(value, 3) <= high else value

    def _string(self, schema: Schema, place: str, depth: int) -> str:
        least = int(schema.get("minLength", 0))
        most = int(schema.get("maxLength", max(least, 40)))
        if "pattern" in schema:
            try:
                return text_of(str(schema["pattern"]), self._random)
            except ValueError as error:
                raise NoValue(f"{place or 'the action'} has the pattern {schema['pattern']!r}: {error}") from None
        kind = schema.get("format")
        if kind in _FORMATS:
            return _FORMATS[kind]
        text = self._random.choice(_WORDS)
        if kind in {"binary", "base64", "base64url"} or "contentEncoding" in schema:
            text = base64.b64encode(text.encode()).decode()
        return text[:most].ljust(least, "a")

    def _array(self, schema: Schema, place: str, depth: int) -> list[Any]:
        fixed = [self._value(part, f"{place}[{index}]", depth + 1) for index, part in enumerate(_prefix(schema))]
        least = max(int(schema.get("minItems", 0)) - len(fixed), 0)
        most = int(schema.get("maxItems", len(fixed) + least + LONGER)) - len(fixed)
        items = schema.get("items", True)
        if items is False or most <= 0:
            return fixed
        count = least if depth >= DEEP else self._random.randint(least, max(least, min(most, least + LONGER)))
        if not schema.get("uniqueItems"):
            return fixed + [self._value(items, f"{place}[]", depth + 1) for _ in range(count)]
        different: list[Any] = []
        for _ in range(20 * count):
            value = self._value(items, f"{place}[]", depth + 1)
            if value not in different and len(different) < count:
                different.append(value)
        return fixed + different

    def _object(self, schema: Schema, place: str, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made: dict[str, Any] = {}
        for name, part in schema.get("properties", {}).items():
            if name in required or (depth < DEEP and self._random.random() < 0.5):
                made[name] = self._value(part, f"{place}.{name}" if place else name, depth + 1)
        more = schema.get("additionalProperties", False)
        least = int(schema.get("minProperties", 0)) - len(made)
        if isinstance(more, Mapping) and depth < DEEP:
            least = max(least, self._random.randint(0, 1))
        for number in range(least):
            made[f"key{number}"] = self._value(more, f"{place}.key{number}", depth + 1)
        return made


def _bounds(schema: Schema) -> tuple[float, float]:
    """The least and the largest number; where one is not given, one not far from the other."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max(lows) if lows else None
    high = min(highs) if highs else None
    if low is None:
        low = min(0, high - SPREAD) if high is not None else 0
    if high is None:
        high = low + SPREAD
    return low, high


def _implied(schema: Schema) -> str:
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _prefix(schema: Schema) -> list[Any]:
    return list(schema.get("prefixItems", ()))


def _joined(one: Schema, other: Schema) -> dict[str, Any]:
    joined = {**other, **one}
    if "properties" in one and "properties" in other:
        joined["properties"] = {**other["properties"], **one["properties"]}
    if "required" in one and "required" in other:
        joined["required"] = sorted({*one["required"], *other["required"]})
    return joined
