"""JSON Schemas of types, in a normal form in which equivalent schemas are equal."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from traceback import format_exception_only
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ..telemetry.logs import warn_once

Schema = dict[str, Any]
ANYTHING: Schema = {}
"""Accepts any value."""
OPAQUE: Schema = {"$comment": "opaque"}
"""The schema of a type that has none. It compares equal to anything."""
BESIDE = "x-"
"""The prefix of keys for other programs. They are kept, and do not restrict values."""
# The hash does not distinguish types that are nested deeper.
MOST_DEPTH = 12
HASH_DIGITS = 16
_VALUES = (
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "uniqueItems",
)
# The beginning of the pattern that some versions of pydantic write for a Decimal.
_DECIMAL = "^(?!^[-+.]*$)"
_SCHEMAS = ("additionalProperties", "items", "propertyNames")
# Keys with contents that are hashed separately.
_APART = ("anyOf", "properties")


class NormalSchema:
    """A schema in normal form.

    Args:
        schema: A JSON Schema as pydantic writes it.

    Raises:
        ValueError: It is not such a schema.

    Attributes:
        root: The schema itself.
        definitions: The targets of references in it, by name.
    """

    def __init__(self, schema: Mapping[str, Any]):
        definitions = schema.get("$defs", {})
        if not isinstance(definitions, Mapping):
            raise ValueError(f"$defs must be an object, got {definitions!r:.100}")
        try:
            self.definitions = {name: _normal(value) for name, value in definitions.items()}
            self.root = self.resolve(_normal(schema))
        except RecursionError:
            raise ValueError("the schema is nested too deeply") from None
        self._digests: dict[tuple[str, int], str] = {}

    def resolve(self, node: Schema) -> Schema:
        """A node, or the definition that it refers to; always the same object for the same node.

        Raises:
            ValueError: The definition is missing.
        """
        seen = 0
        while "$ref" in node:
            name, seen = node["$ref"], seen + 1
            if name not in self.definitions or seen > len(self.definitions):
                raise ValueError(f"the referenced definition {name!r:.100} is missing in $defs")
            node = self.definitions[name]
        return node

    def digest(self, node: Schema) -> str:
        """A string that is equal for equivalent nodes, also of different schemas."""
        return self._digest(node, MOST_DEPTH)

    @property
    def hash(self) -> str:
        """A short hash of the schema."""
        return self.digest(self.root)

    def schema(self) -> Schema:
        """The JSON Schema."""
        return {**self.root, "$defs": self.definitions} if self.definitions else self.root

    def _digest(self, node: Any, depth: int) -> str:
        written = json.dumps(self._unfold(node, depth), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()[:HASH_DIGITS]

    def _unfold(self, node: Any, depth: int) -> Any:
        """A node in which digests replace references, and alternatives, which are sorted by their digests."""
        if isinstance(node, list):
            return [self._unfold(each, depth) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return self._digest_named(node["$ref"], depth)
        unfolded = {
            key: self._unfold(value, depth)
            for key, value in node.items()
            if key not in _APART and not key.startswith(BESIDE)
        }
        if "properties" in node:
            unfolded["properties"] = {name: self._unfold(each, depth) for name, each in node["properties"].items()}
        if "anyOf" in node:
            unfolded["anyOf"] = sorted(
                {
                    self._digest_named(each["$ref"], depth) if "$ref" in each else self._digest(each, depth)
                    for each in node["anyOf"]
                }
            )
        return unfolded

    def _digest_named(self, name: str, depth: int) -> str:
        if depth == 0:
            return "deeper"
        key = (name, depth)
        if key not in self._digests:
            self._digests[key] = self._digest(self.resolve({"$ref": name}), depth - 1)
        return self._digests[key]


def accepts_all(node: Schema) -> bool:
    """Whether a node accepts every value."""
    return node in (ANYTHING, OPAQUE)


def _normal(schema: Any) -> Schema:
    meant = _meant(schema)
    if accepts_all(meant) or not isinstance(schema, Mapping):
        return meant
    beside = {key: value for key, value in schema.items() if isinstance(key, str) and key.startswith(BESIDE)}
    return {**meant, **beside} if beside else meant


def _meant(schema: Any) -> Schema:
    if isinstance(schema, bool):
        return ANYTHING if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise ValueError(f"{schema!r:.100} is not a schema")
    if schema.get("$comment") == OPAQUE["$comment"]:
        return OPAQUE
    if "$ref" in schema:
        return {"$ref": str(schema["$ref"]).removeprefix("#/$defs/")}
    whole = schema.get("allOf")
    # Older versions of pydantic write a reference in this form.
    if isinstance(whole, list) and len(whole) == 1 and isinstance(whole[0], Mapping):
        return _normal({**whole[0], **{key: value for key, value in schema.items() if key != "allOf"}})
    variants = _variants(schema)
    if variants is not None:
        return {"anyOf": variants} if len(variants) > 1 else variants[0]
    return _plain(schema)


def _variants(schema: Mapping[str, Any]) -> list[Schema] | None:
    """The alternatives of a schema without duplicates; None if it has no alternatives."""
    given = schema.get("anyOf", schema.get("oneOf"))
    if given is None and isinstance(schema.get("type"), list):
        given = [{**schema, "type": kind} for kind in schema["type"]]
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise ValueError(f"alternatives must be a list, got {given!r:.100}")
    flat = [each for variant in map(_meant, given) for each in variant.get("anyOf", [variant])]
    free = next((each for each in (OPAQUE, ANYTHING) if each in flat), None)
    if free is not None:
        return [free]
    return [each for place, each in enumerate(flat) if each not in flat[:place]]


def _plain(schema: Mapping[str, Any]) -> Schema:
    if "const" in schema or "enum" in schema:
        values = _list(schema, "enum") if "enum" in schema else [schema["const"]]
        words = [value if isinstance(value, (str, int, float, bool, type(None))) else str(value) for value in values]
        return {"enum": sorted(words, key=lambda value: (type(value).__name__, str(value)))}
    plain: Schema = {"type": str(schema["type"])} if "type" in schema else {}
    for key in _VALUES:
        value = schema.get(key)
        if _counts(value):
            plain[key] = int(value) if isinstance(value, float) and value.is_integer() else value
    return plain | _contents(schema)


def _contents(schema: Mapping[str, Any]) -> Schema:
    """The schemas of the values in a list or object, without those that accept anything."""
    plain: Schema = {key: _normal(schema[key]) for key in _SCHEMAS if key in schema}
    if schema.get("additionalProperties") is False:
        plain["additionalProperties"] = False
    if "patternProperties" in schema:  # a dict with a pattern for its keys: its values count
        plain["additionalProperties"] = _normal({"anyOf": list(_map(schema, "patternProperties").values())})
    plain = {key: value for key, value in plain.items() if value != ANYTHING}
    if "prefixItems" in schema:
        plain["prefixItems"] = [_normal(each) for each in _list(schema, "prefixItems")]
    if "properties" in schema:
        plain["properties"] = {str(name): _normal(value) for name, value in _map(schema, "properties").items()}
        # Unknown fields are accepted, kept and sent.
        if schema.get("additionalProperties") in (True, ANYTHING):
            plain["additionalProperties"] = ANYTHING
    if schema.get("required"):
        plain["required"] = sorted(map(str, _list(schema, "required")))
    return plain


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(schema[key], list):
        raise ValueError(f"{key} must be a list, got {schema[key]!r:.100}")
    return list(schema[key])


def _map(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not isinstance(schema[key], Mapping):
        raise ValueError(f"{key} must be an object, got {schema[key]!r:.100}")
    found: Mapping[str, Any] = schema[key]
    return found


def _counts(value: Any) -> bool:
    """Whether a bound restricts values. Infinite bounds, and bounds that some versions of pydantic add, do not."""
    if isinstance(value, str):
        return not value.startswith(_DECIMAL)
    return isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


_BOUNDS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "multipleOf": "a multiple of",
    "minLength": "length >=",
    "maxLength": "length <=",
    "minItems": "length >=",
    "maxItems": "length <=",
    "pattern": "matching",
    "format": "as",
}
MOST_VALUES = 8
MOST_VARIANTS = 5


def describe_schema(schema: NormalSchema, node: Schema, depth: int = 3) -> str:
    """Describes a node in words: `integer >= 0`, `list of string`, `string or null`."""
    node = schema.resolve(node)
    if "anyOf" in node:
        variants = [describe_schema(schema, each, depth - 1) for each in node["anyOf"][:MOST_VARIANTS]]
        more = [] if len(node["anyOf"]) <= MOST_VARIANTS else ["..."]
        return " or ".join(dict.fromkeys([*variants, *more]))
    if "enum" in node:
        if not node["enum"]:
            return "nothing"
        values = [repr(value) if value is not None else "null" for value in node["enum"][:MOST_VALUES]]
        more = [] if len(node["enum"]) <= MOST_VALUES else ["..."]
        return values[0] if len(node["enum"]) == 1 else f"one of {', '.join([*values, *more])}"
    kind = node.get("type", "anything")
    bounds = [f"{sign} {node[key]}" for key, sign in _BOUNDS.items() if key in node]
    return " ".join([_shape(schema, node, kind, depth), ", ".join(bounds)]).strip()


def _shape(schema: NormalSchema, node: Schema, kind: str, depth: int) -> str:
    if kind == "array" and depth > 0:
        if "prefixItems" in node:
            return f"list of ({', '.join(describe_schema(schema, each, depth - 1) for each in node['prefixItems'])})"
        return f"list of {describe_schema(schema, node['items'], depth - 1)}" if "items" in node else "list"
    if kind == "object" and "properties" not in node and isinstance(node.get("additionalProperties"), dict):
        inner = node["additionalProperties"]
        return f"object of {describe_schema(schema, inner, depth - 1)}" if depth > 0 else "object"
    if kind == "object" and "properties" in node:
        return f"object with {', '.join(list(node['properties'])[:MOST_VALUES])}"
    return {"array": "list"}.get(kind, str(kind))


logger = logging.getLogger("openenv.contract")


class _Lenient(GenerateJsonSchema):
    """Accepts any value for a type without a JSON Schema (a numpy array, a callable)."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Silently omits alternatives without a schema, and defaults that cannot be encoded."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return dict(OPAQUE)


def schema_of(kind: Any) -> Schema | None:
    """The JSON Schema of a type.

    Args:
        kind: A model, another type that pydantic supports, or a `TypeAdapter`.

    Returns:
        The schema. A part of the type without a schema is `{"$comment": "opaque"}`, which accepts anything. None for
        a type without any schema.
    """
    try:
        adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return adapter.json_schema(schema_generator=_Lenient)
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: types bring their own schema functions
        name = getattr(kind, "__qualname__", repr(kind))
        (fault,) = format_exception_only(error)[-1:]
        warn_once(logger, "%s has no JSON Schema, so values are not checked against it: %s", name, fault.strip())
        return None
