"""Schemas in a few words, for messages."""

from __future__ import annotations

from .normal import Normal, Schema

__all__ = ["described"]

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


def described(schema: Normal, node: Schema, depth: int = 3) -> str:
    """What a value must be: `integer >= 0`, `list of string`, `string or null`."""
    node = schema.resolve(node)
    if "anyOf" in node:
        variants = [described(schema, each, depth - 1) for each in node["anyOf"][:MOST_VARIANTS]]
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


def _shape(schema: Normal, node: Schema, kind: str, depth: int) -> str:
    if kind == "array" and depth > 0:
        if "prefixItems" in node:
            return f"list of ({', '.join(described(schema, each, depth - 1) for each in node['prefixItems'])})"
        return f"list of {described(schema, node['items'], depth - 1)}" if "items" in node else "list"
    if kind == "object" and "properties" not in node and isinstance(node.get("additionalProperties"), dict):
        inner = node["additionalProperties"]
        return f"object of {described(schema, inner, depth - 1)}" if depth > 0 else "object"
    if kind == "object" and "properties" in node:
        return f"object with {', '.join(list(node['properties'])[:MOST_VALUES])}"
    return {"array": "list"}.get(kind, str(kind))
