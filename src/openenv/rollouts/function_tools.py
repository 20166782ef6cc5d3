"""Function tools for models, in OpenAI's form: from the tools of an MCP environment, and from action schemas."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UsageError
from ..mcp.types import RESERVED_TOOL_NAMES, action_of

Schema = Mapping[str, Any]

_LONGEST_NAME = 64
# Most parts of a schema whose references are inlined; endpoints refuse far smaller ones.
_MOST_PARTS = 5000
# Most references and `allOf` from a schema to what it describes.
_LONGEST_CHAIN = 6
# Keys that a model can use, and that endpoints accept.
_KEPT = frozenset(
    {"type", "description", "enum", "default", "required", "format", "pattern", "multipleOf", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)


@dataclass(frozen=True)
class FunctionTool:
    """A tool that a model calls, and the action that a call makes.

    Attributes:
        name: Name in OpenAI's form: letters, digits, `_` and `-`, at most 64.
        description: What it does.
        parameters: JSON Schema of the arguments, an object without references.
        constants: Fields of the action that the model does not choose.
        mcp_name: Name of the tool of the MCP environment; None for a tool that is an action.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    mcp_name: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as an item of `tools` in a request."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def action(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The action of a call."""
        return {**arguments, **self.constants} if self.mcp_name is None else action_of(self.mcp_name, arguments)


def mcp_function_tools(listed: Iterable[Schema]) -> list[FunctionTool]:
    """Function tools for the tools of an MCP environment; without those with reserved names.

    Args:
        listed: Each with `name`, `description` and `input_schema` (or `inputSchema`).
    """
    found = []
    for each in listed:
        name, schema = str(each["name"]), each.get("input_schema") or each.get("inputSchema") or {}
        if name in RESERVED_TOOL_NAMES:
            continue
        found.append(
            FunctionTool(tool_name(name), str(each.get("description") or ""), _parameters(schema, schema), {}, name)
        )
    return found


def action_function_tools(schema: Schema) -> list[FunctionTool]:
    """Function tools for an action schema: one, or one for each variant of a union.

    Returns:
        Empty if the schema does not describe an object, or describes only the actions that use MCP tools.
    """
    found = []
    for variant in variants_of(schema):
        if uses_tools(variant):
            continue
        constants = constants_of(variant)
        # Each action class of Python has a title; another schema may have none.
        title = str(variant.get("title") or next(iter(constants.values()), "act"))
        name = tool_name(snake_case(title.removesuffix("Action") or title))
        if name in RESERVED_TOOL_NAMES:
            name = f"{name}_action"
        parameters = _parameters(variant, schema, {*constants, "metadata"})
        found.append(FunctionTool(name, str(variant.get("description", "")), parameters, constants))
    return found


def unique(tools: Iterable[FunctionTool]) -> dict[str, FunctionTool]:
    """Tools by name, in order; a name that is taken gets a number at its end."""
    found: dict[str, FunctionTool] = {}
    for tool in tools:
        name, number = tool.name, 2
        while name in found:
            end = f"_{number}"
            name, number = tool.name[: _LONGEST_NAME - len(end)] + end, number + 1
        found[name] = replace(tool, name=name)
    return found


def tool_name(text: str) -> str:
    """A text as the name of a function."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_LONGEST_NAME] or "unnamed"


def snake_case(name: str) -> str:
    """`SendMail` as `send_mail`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def variants_of(schema: Schema) -> list[Schema]:
    """The objects that a schema describes: itself, or the parts of a union. Their fields may have references."""

    def parts_of(part: Any, depth: int) -> Iterator[Schema]:
        found = resolved(part, schema)
        parts = found.get("anyOf") or found.get("oneOf")
        if isinstance(parts, list) and depth < _LONGEST_CHAIN:
            for each in parts:
                yield from parts_of(each, depth + 1)
        elif isinstance(found.get("properties"), Mapping):
            yield found

    return list(parts_of(schema, 0))


def uses_tools(variant: Schema) -> bool:
    """Whether an object is an action that lists or calls the tools of an MCP environment."""
    return constants_of(variant).get("type") in ("call_tool", "list_tools")


def constants_of(variant: Schema) -> dict[str, Any]:
    """The fields of an object that can have one value only."""
    fields = {name: part for name, part in variant["properties"].items() if isinstance(part, Mapping)}
    values = {name: [part["const"]] if "const" in part else part.get("enum") for name, part in fields.items()}
    return {name: each[0] for name, each in values.items() if isinstance(each, list) and len(each) == 1}


def inlined(schema: Any, root: Schema) -> dict[str, Any]:
    """A JSON Schema without references, unions of one kind, and keys that some endpoints refuse.

    A recursive schema accepts any value where it would contain itself.

    Args:
        schema: The schema.
        root: The schema that the references lead into.

    Raises:
        UsageError: It is too large.
    """
    parts = 0

    def walk(part: Any, within: frozenset[str]) -> dict[str, Any]:
        nonlocal parts
        parts += 1
        if parts > _MOST_PARTS:
            raise UsageError(f"a schema has more than {_MOST_PARTS} parts with its references inlined: simplify it")
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        if reference in within:
            return {}
        within = within | {str(reference)}
        found = resolved(part, root)
        plain = {key: value for key, value in found.items() if key in _KEPT}
        if "const" in found:
            plain["enum"] = [found["const"]]
        if isinstance(found.get("properties"), Mapping):
            plain["properties"] = {name: walk(each, within) for name, each in found["properties"].items()}
        if "additionalProperties" in found:
            further = found["additionalProperties"]
            plain["additionalProperties"] = walk(further, within) if isinstance(further, Mapping) else further
        if choices := found.get("anyOf") or found.get("oneOf"):
            plain["anyOf"] = [walk(each, within) for each in choices]
        if places := found.get("prefixItems"):  # a tuple, for which endpoints have no form
            kinds = [walk(each, within) for each in places]
            kinds = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
            plain["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        elif "items" in found or found.get("type") == "array":
            plain["items"] = walk(found.get("items"), within)
        return {key: plain[key] for key in sorted(plain)}

    return walk(schema, frozenset())


def resolved(schema: Any, root: Schema, most: int = _LONGEST_CHAIN) -> Schema:
    """A schema with its `$ref` resolved and its `allOf` merged; `{}` if it is no object, or after `most` steps."""
    for left in range(most, 0, -1):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            found: Any = root
            for part in reference.removeprefix("#").strip("/").split("/"):
                name = part.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, Mapping) else None
            schema = {**(found if isinstance(found, Mapping) else {}), **beside}
            continue
        if "allOf" not in schema:
            return schema
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged = _merged(merged, resolved(part, root, left - 1))
        schema = _merged(merged, {key: value for key, value in schema.items() if key != "allOf"})
    return {}


def _merged(one: Schema, other: Schema) -> dict[str, Any]:
    """A schema that demands what both demand; of two values of another key, the second."""
    both = {**one, **other}
    fields = [part["properties"] for part in (one, other) if isinstance(part.get("properties"), Mapping)]
    required = [part["required"] for part in (one, other) if isinstance(part.get("required"), list)]
    if len(fields) > 1:
        both["properties"] = {**fields[0], **fields[1]}
    if len(required) > 1:
        both["required"] = [*required[0], *(name for name in required[1] if name not in required[0])]
    return both


def _parameters(schema: Schema, root: Schema, omitted: Container[str] = ()) -> dict[str, Any]:
    """The schema of arguments: an object, without some fields."""
    found = inlined(schema, root)
    properties = {name: part for name, part in found.get("properties", {}).items() if name not in omitted}
    required = [name for name in found.get("required", ()) if name in properties]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    if "additionalProperties" in found:
        parameters["additionalProperties"] = found["additionalProperties"]
    return parameters
