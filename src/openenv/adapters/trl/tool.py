"""Tools a model may call: what each is called, what it takes, and which action a call of it becomes."""

from __future__ import annotations

import inspect
import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs, to_json

from ...errors import InvalidAction, UsageError
from .docstring import Doc, read_doc

__all__ = ["ActionTool", "FunctionTool", "ServerTool", "Tool", "check_name"]

# What trainers call themselves.
RESERVED = frozenset({"reset", "get_reward"})


@dataclass(frozen=True)
class Tool(ABC):
    """One tool. Picklable, as long as the class or function behind it can be imported.

    Attributes:
        name: The method's name.
        schema: JSON Schema of the arguments: an object.
        doc: What the model is told.
    """

    name: str
    schema: Mapping[str, Any] = field(repr=False)
    doc: Doc = field(repr=False)

    @abstractmethod
    def action(self, arguments: dict[str, Any]) -> Any:
        """The action that a call with these arguments stands for.

        Raises:
            InvalidAction: They are not what the tool takes; the message is for the model.
        """


@dataclass(frozen=True)
class ActionTool(Tool):
    """An action class: the arguments are its fields."""

    action_type: type[BaseModel]

    @classmethod
    def of(cls, name: str, action_type: type[BaseModel]) -> ActionTool:
        try:
            schema = action_type.model_json_schema(by_alias=True)
        except PydanticUserError as error:
            raise UsageError(
                f"tool {name!r}: {action_type.__name__} has a field that no model can write; "
                f"give a function that makes the action of arguments it can: {error}"
            ) from error
        fields = dict(schema.get("properties", {}))
        for each, facts in list(fields.items()):
            if each == "metadata" or ("const" in facts and "default" in facts):
                del fields[each]  # not the model's to say
        doc = read_doc(schema.get("description"))
        return cls(check_name(name), {**schema, "properties": fields}, doc, action_type)

    def action(self, arguments: dict[str, Any]) -> Any:
        try:
            return self.action_type.model_validate_json(to_json(arguments))
        except ValidationError as error:
            raise _refusal(self.name, error) from None


@dataclass(frozen=True)
class FunctionTool(Tool):
    """A function from arguments to an action (a model or a mapping)."""

    function: Callable[..., Any]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> FunctionTool:
        check_name(name)
        try:
            schema = _adapter(function).json_schema()
        except (PydanticUserError, NameError, TypeError) as error:
            raise UsageError(
                f"tool {name!r}: the arguments of {function!r} cannot be described to a model; "
                f"give each a type that JSON can say: {error}"
            ) from error
        if schema.get("type") != "object":
            raise UsageError(f"tool {name!r}: {function!r} must take its arguments by name")
        if any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values()
        ):
            raise UsageError(f"tool {name!r}: {function!r} takes **arguments, which no model can know of: name them")
        return cls(name, schema, read_doc(inspect.getdoc(function)), function)

    def action(self, arguments: dict[str, Any]) -> Any:
        try:
            return _adapter(self.function).validate_python(ArgsKwargs((), arguments))
        except ValidationError as error:
            raise _refusal(self.name, error) from None


@dataclass(frozen=True)
class ServerTool(Tool):
    """A tool of an MCP environment.

    Attributes:
        called: Its name there.
    """

    called: str

    @classmethod
    def of(cls, name: str, listed: Any) -> ServerTool:
        """From one entry of `list_tools`: a `Tool` or a mapping with the same fields."""
        check_name(name, listed_name(listed))
        schema = _entry(listed, "input_schema") or {}
        return cls(name, schema, read_doc(_entry(listed, "description")), listed_name(listed))

    def action(self, arguments: dict[str, Any]) -> Any:
        return {"type": "call_tool", "tool_name": self.called, "arguments": arguments}


def listed_name(listed: Any) -> str:
    """The name of one entry of `list_tools`."""
    return str(_entry(listed, "name"))


def check_name(name: str, called: str | None = None) -> str:
    """Returns the name of a tool if it can be a public method of what a trainer gets.

    Args:
        name: The name.
        called: What the tool is called where it is, if that is known.

    Raises:
        UsageError: It cannot; the message says how to give it another.
    """
    reason = None
    if name in RESERVED:
        reason = "trainers call a method of this name themselves"
    elif name.startswith("_"):
        reason = "trainers take no notice of private methods"
    elif not name.isidentifier() or keyword.iskeyword(name):
        reason = "it is no name for a method"
    if reason is None:
        return name
    raise UsageError(
        f"tool {name!r}: {reason}; give it another one, as in tools={{'another_name': {called or name!r}}}"
    )


def _refusal(name: str, error: ValidationError) -> InvalidAction:
    """For a model to read: where its arguments are wrong, without what it said."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    said = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults[:5])
    return InvalidAction(f"{name}: {said}")


def _entry(listed: Any, name: str) -> Any:
    return listed.get(name) if isinstance(listed, Mapping) else getattr(listed, name, None)


@cache
def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    validated: Any = function  # a function is no type, but pydantic takes it all the same
    return TypeAdapter(validated)
