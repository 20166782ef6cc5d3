"""Methods made from tools, with the signature and docstring that a trainer makes a JSON Schema of."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from ...errors import UsageError
from .docstring import Doc, write_doc
from .schema import annotation_of, facts_of, is_nullable, resolved
from .tool import Tool

__all__ = ["method_of"]

_RECEIVER = "_episode"
_RETURNS = "What the environment answers."


class _Argument(NamedTuple):
    """One argument of a tool.

    Attributes:
        key: What it is called where it is sent to.
        parameter: As it stands in the signature.
        droppable: Whether None means that it is left out.
        words: Its description.
    """

    key: str
    parameter: Parameter
    droppable: bool
    words: str


def method_of(tool: Tool, use: Callable[[Any, Tool, dict[str, Any]], Any]) -> Callable[..., Any]:
    """A method that calls a tool.

    Args:
        tool: The tool.
        use: Called with the instance, the tool and the arguments that were given, under the tool's own names.

    Raises:
        UsageError: Two of its arguments would have the same name in Python.
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


def _arguments(tool: Tool) -> dict[str, _Argument]:
    """By their names in Python, the required ones first."""
    schema = resolved(tool.schema, tool.schema)
    required = set(schema.get("required", []))
    properties: dict[str, Any] = schema.get("properties", {})
    arguments: dict[str, _Argument] = {}
    for key in sorted(properties, key=lambda key: key not in required):
        name = _python_name(key)
        if name in arguments:
            raise UsageError(f"tool {tool.name!r}: {arguments[name].key!r} and {key!r} are both {name!r} in Python")
        arguments[name] = _argument(tool, name, key, properties[key], key in required)
    return arguments


def _argument(tool: Tool, name: str, key: str, declared: Any, required: bool) -> _Argument:
    root = tool.schema
    schema = resolved(declared, root)
    default = Parameter.empty if required else schema.get("default")
    parameter = Parameter(
        name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation_of(schema, root)
    )
    told = (str(schema.get("description") or ""), tool.doc.arguments.get(key, ""), f"The {key.replace('_', ' ')}.")
    words = next(words for words in told if words.strip())
    facts = facts_of(schema, root)
    if facts:
        words = f"{words} ({'; '.join(facts)})"
    return _Argument(key, parameter, not required and not is_nullable(schema, root), words)


def _python_name(key: str) -> str:
    name = re.sub(r"\W", "_", key)
    if keyword.iskeyword(name) or name in {"return", _RECEIVER}:
        name += "_"
    return name if name.isidentifier() else f"_{name}"
