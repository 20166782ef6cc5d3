"""Where a value is not what a JSON Schema says.

A part of JSON Schema: what pydantic writes. What is not known here allows anything.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .patterns import found_in

__all__ = ["first_fault", "undeclared"]

Schema = Mapping[str, Any]
MAX_DEPTH = 60

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "integer": (int,),
    "number": (int, float),
}

_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def first_fault(value: Any, schema: Schema, place: str) -> str | None:
    """The first thing that is wrong with a value, in words; None if it is as the schema says.

    Args:
        value: What was read from JSON.
        schema: The schema, with its `$defs`.
        place: What the value is called: `observation`.
    """
    try:
        return next(_Faults(schema.get("$defs", {})).of(value, schema, place, 0), None)
    except (AttributeError, LookupError, TypeError, ValueError):  # somebody wrote the schema by hand, and none
        return None


def undeclared(value: Any, schema: Schema) -> list[str]:
    """Fields of an object that its schema does not name, whether or not it allows them."""
    faults = _Faults(schema.get("$defs", {}))
    properties = faults.resolved(schema).get("properties")
    return (
        [] if properties is None or not isinstance(value, dict) else [key for key in value if key not in properties]
    )


class _Faults:
    def __init__(self, definitions: Schema):
        self._definitions = definitions

    def resolved(self, schema: Schema) -> Schema:
        for _ in range(MAX_DEPTH):
            if "$ref" not in schema:
                break
            schema = self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
        return schema

    def of(self, value: Any, schema: Any, place: str, depth: int) -> Iterator[str]:
        if schema is False:
            yield f"{place} may not be there"
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return
        schema = self.resolved(schema)
        for part in schema.get("allOf", ()):
            yield from self.of(value, part, place, depth + 1)
        variants = schema.get("anyOf") or schema.get("oneOf")
        if variants:
            yield from self._of_variants(value, variants, place, depth)
        if "const" in schema and not _same(value, schema["const"]):
            yield f"{place} is {_shown(value)}, and must be {_shown(schema['const'])}"
        if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
            yield f"{place} is {_shown(value)}, which is none of {_shown(schema['enum'])}"
        kinds = schema.get("type")
        if kinds is not None:
            kinds = [kinds] if isinstance(kinds, str) else kinds
            if not any(_is_of(value, kind) for kind in kinds):
                yield f"{place} is {_shown(value)} ({_kind(value)}), and its schema says {' or '.join(kinds)}"
                return
        yield from self._of_contents(value, schema, place, depth)

    def _of_variants(self, value: Any, variants: Any, place: str, depth: int) -> Iterator[str]:
        faults = [next(self.of(value, each, place, depth + 1), None) for each in variants]
        if None in faults:
            return
        # Of several that do not fit, the one whose type fits tells more.
        kinds = [str(self.resolved(each).get("type")) for each in variants]
        near = [
            str(fault) for fault, kind in zip(faults, kinds, strict=True) if kind in _TYPES and _is_of(value, kind)
        ]
        yield (
            near[0]
            if near
            else (f"{place} is {_shown(value)} ({_kind(value)}), and its schema says {' or '.join(kinds)}")
        )

    def _of_contents(self, value: Any, schema: Schema, place: str, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            yield from _of_text(value, schema, place)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield from _of_number(value, schema, place)
        elif isinstance(value, list):
            yield from self._of_list(value, schema, place, depth)
        elif isinstance(value, dict):
            yield from self._of_object(value, schema, place, depth)

    def _of_list(self, value: list[Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", math.inf):
            yield f"{place} has {len(value)} items, and must have {_range(schema, 'minItems', 'maxItems')}"
        if schema.get("uniqueItems") and any(each in value[:index] for index, each in enumerate(value)):
            yield f"{place} has an item twice: {_shown(value)}"
        fixed = schema.get("prefixItems", ())
        for index, each in enumerate(value):
            part = fixed[index] if index < len(fixed) else schema.get("items", True)
            yield from self.of(each, part, f"{place}[{index}]", depth + 1)

    def _of_object(self, value: dict[str, Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{place}.{name} is not there, and its schema requires it"
        patterns = schema.get("patternProperties", {})
        more = schema.get("additionalProperties", True)
        for name, each in value.items():
            matching = [part for pattern, part in patterns.items() if found_in(pattern, name)]
            if name in properties:
                yield from self.of(each, properties[name], f"{place}.{name}", depth + 1)
            elif matching:
                yield from self.of(each, matching[0], f"{place}.{name}", depth + 1)
            elif more is False:
                yield f"{place}.{name} ({_shown(each)}) is not in the schema, which allows no other fields"
            else:
                yield from self.of(each, more, f"{place}.{name}", depth + 1)


def _of_text(value: str, schema: Schema, place: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", math.inf):
        yield f"{place} has {len(value)} characters, and must have {_range(schema, 'minLength', 'maxLength')}"
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and not found_in(pattern, value):
        yield f"{place} is {_shown(value)}, which {pattern} does not match"


def _of_number(value: float, schema: Schema, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return  # another question
    for keyword, holds in _BOUNDS.items():
        bound = schema.get(keyword)
        if isinstance(bound, (int, float)) and not holds(value, bound):
            yield f"{place} is {value!r}, and its schema says {keyword} {bound!r}"


def _is_of(value: Any, kind: str) -> bool:
    if kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    # JSON has one kind of numbers: 1.0 is an integer.
    return isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: Any) -> str:
    return next((name for name in _TYPES if _is_of(value, name)), type(value).__name__)


def _range(schema: Schema, least: str, most: str) -> str:
    said = [f"{word} {schema[key]}" for word, key in (("at least", least), ("at most", most)) if key in schema]
    return " and ".join(said)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
