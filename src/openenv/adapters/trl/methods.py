"""Python methods made from tools, with the signature and docstring from which a trainer builds a JSON Schema."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any, Literal, NamedTuple, Union

from ...errors import UsageError
from ...rollouts.function_tools import resolved
from .tools import Doc, EpisodeTool, write_doc

Schema = Mapping[str, Any]

# Recursive schemas are described down to this level.
MAX_DEPTH = 6

_SCALARS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_LITERALS = frozenset({str, int, float, bool, type(None)})
# Phrases for restrictions that a type cannot express.
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
    "format": "format {}",
}


def annotation_of(schema: Any, root: Schema, depth: int = 0) -> Any:
    """The Python type of a JSON Schema: scalars, `Literal`, `list`, `tuple`, `dict`, unions, or `Any`.

    Objects with named fields are `dict`, since readers of signatures know no more. `facts_of` describes the fields.
    """
    schema = resolved(schema, root)
    if depth > MAX_DEPTH:
        return Any
    if values := _values(schema):
        return Literal[tuple(values)] if all(type(value) in _LITERALS for value in values) else Any
    if _parts(schema):
        parts = [annotation_of(part, root, depth + 1) for part in _parts(schema)]
        return Any if Any in parts else Union[tuple(parts)]  # noqa: UP007 - the members are known at run time alone
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](schema, root, depth)
    return _SCALARS.get(str(kind), Any)


def is_nullable(schema: Any, root: Schema) -> bool:
    """Whether a schema names null as an allowed type."""
    schema = resolved(schema, root)
    return (
        schema.get("type") == "null"
        or None in _values(schema)
        or any(is_nullable(part, root) for part in _parts(schema))
    )


def facts_of(schema: Any, root: Schema) -> list[str]:
    """Short phrases for facts beyond the type: fields of objects, bounds, the default."""
    schema = resolved(schema, root)
    facts = [f"JSON: {_shape(schema, root)}"] if _has_fields(schema, root) else []
    for part in (schema, *(resolved(part, root) for part in schema.get("anyOf") or [])):
        facts += [words.format(part[key]) for key, words in _BOUNDS.items() if key in part]
    if schema.get("default") is not None:
        facts.append(f"default {json.dumps(schema['default'], ensure_ascii=False, default=str)}")
    return facts


def _values(schema: Schema) -> list[Any]:
    """The values of a schema's `const` or `enum`, if any."""
    return [schema["const"]] if "const" in schema else list(schema.get("enum", []))


def _parts(schema: Schema) -> list[Any]:
    """The alternatives of a schema, if any."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return [{**schema, "type": each} for each in kind]
    return list(schema.get("anyOf") or schema.get("oneOf") or [])


def _array(schema: Schema, root: Schema, depth: int) -> Any:
    places = schema.get("prefixItems")
    if places and len(places) > 1:
        return GenericAlias(tuple, tuple(annotation_of(place, root, depth + 1) for place in places))
    item = places[0] if places else schema.get("items")
    return GenericAlias(list, (annotation_of(item, root, depth + 1),)) if isinstance(item, Mapping) else list


def _object(schema: Schema, root: Schema, depth: int) -> Any:
    contents = schema.get("additionalProperties")
    if "properties" in schema or not isinstance(contents, Mapping) or not contents:
        return dict
    return GenericAlias(dict, (str, annotation_of(contents, root, depth + 1)))


_CONTAINERS: dict[Any, Any] = {"array": _array, "object": _object}


def _has_fields(schema: Any, root: Schema, depth: int = 0) -> bool:
    schema = resolved(schema, root)
    if depth > MAX_DEPTH:
        return False
    inner = [schema.get("items"), schema.get("additionalProperties"), *(schema.get("prefixItems") or [])]
    return bool(schema.get("properties")) or any(
        _has_fields(part, root, depth + 1) for part in inner + _parts(schema) if isinstance(part, Mapping)
    )


def _shape(schema: Any, root: Schema, depth: int = 0) -> str:
    """The shape of a value as JSON, with types in place of values and a question mark at optional fields."""
    schema = resolved(schema, root)
    if depth > MAX_DEPTH:
        return "..."
    if _values(schema):
        return " | ".join(json.dumps(value, ensure_ascii=False, default=str) for value in _values(schema))
    if _parts(schema):
        return " | ".join(dict.fromkeys(_shape(part, root, depth + 1) for part in _parts(schema)))
    if schema.get("properties"):
        needed = schema.get("required", [])
        fields = (
            f'"{name}"{"" if name in needed else "?"}: {_shape(field, root, depth + 1)}'
            for name, field in schema["properties"].items()
        )
        return "{" + ", ".join(fields) + "}"
    places = [_shape(place, root, depth + 1) for place in schema.get("prefixItems") or []]
    if not places and isinstance(schema.get("items"), Mapping):
        places = [_shape(schema["items"], root, depth + 1), "..."]
    return f"[{', '.join(places)}]" if places else str(schema.get("type", "any"))


_RECEIVER = "_episode"
_RETURNS = "What the environment answers."


class _Argument(NamedTuple):
    """One argument of a tool.

    Attributes:
        key: Name in the tool.
        parameter: Parameter of the signature.
        droppable: Whether None leaves the argument out.
        words: Description.
    """

    key: str
    parameter: Parameter
    droppable: bool
    words: str


def method_of(tool: EpisodeTool, use: Callable[[Any, EpisodeTool, dict[str, Any]], Any]) -> Callable[..., Any]:
    """Makes a method that calls a tool.

    Args:
        tool: The tool.
        use: Called with the instance, the tool and the given arguments under the tool's names.

    Raises:
        UsageError: Two arguments would have the same name in Python.
    """
    arguments = _arguments(tool)
    receiver = Parameter(_RECEIVER, Parameter.POSITIONAL_ONLY)
    signature = Signature([receiver, *(each.parameter for each in arguments.values())], return_annotation=str)

    def method(episode: Any, /, *given: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(episode, *given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{tool.name}: {error}") from None
        sent = {
            argument.key: bound[name]
            for name, argument in arguments.items()
            if name in bound and not (argument.droppable and bound[name] is None)
        }
        return use(episode, tool, sent)

    method.__name__ = tool.name
    vars(method)["__signature__"] = signature
    method.__annotations__ = {name: each.parameter.annotation for name, each in arguments.items()} | {"return": str}
    summary = tool.doc.summary or f"Does the action {tool.name}."
    described = {name: each.words for name, each in arguments.items()}
    method.__doc__ = write_doc(Doc(summary, described, tool.doc.returns or _RETURNS))
    return method


def _arguments(tool: EpisodeTool) -> dict[str, _Argument]:
    """The arguments of a tool by their names in Python, the required ones first."""
    schema = resolved(tool.schema, tool.schema)
    required = set(schema.get("required", []))
    properties: dict[str, Any] = schema.get("properties", {})
    arguments: dict[str, _Argument] = {}
    for key in sorted(properties, key=lambda key: key not in required):
        name = re.sub(r"\W", "_", key)
        if keyword.iskeyword(name) or name in {"return", _RECEIVER}:
            name += "_"
        if not name.isidentifier():
            name = f"_{name}"
        if name in arguments:
            raise UsageError(f"tool {tool.name!r}: {arguments[name].key!r} and {key!r} are both {name!r} in Python")
        part = resolved(properties[key], tool.schema)
        parameter = Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if key in required else part.get("default"),
            annotation=annotation_of(part, tool.schema),
        )
        said = (str(part.get("description") or ""), tool.doc.arguments.get(key, ""), f"The {key.replace('_', ' ')}.")
        words = next(words for words in said if words.strip())
        if facts := facts_of(part, tool.schema):
            words = f"{words} ({'; '.join(facts)})"
        droppable = key not in required and not is_nullable(part, tool.schema)
        arguments[name] = _Argument(key, parameter, droppable, words)
    return arguments
