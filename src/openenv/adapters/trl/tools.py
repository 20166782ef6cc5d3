"""Tools that a model may call, with schema and docstring: from action classes, functions or an MCP environment."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs, to_json

from ..._introspection import type_arguments
from ...client import EnvClient
from ...errors import InvalidAction, ResetRequired, UsageError
from ...mcp.types import action_of
from ...rollouts.content import part_of
from ...rollouts.function_tools import snake_case

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Example|Examples|Note|Notes|Attributes):[ \t]*",
    re.MULTILINE,
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)[ \t]*(?:\([^)\n]*\))?:[ \t]*(.*)")
_RETURN = frozenset({"Returns", "Return"})
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters"})


class Doc(NamedTuple):
    """The parts of a docstring.

    Attributes:
        summary: Text before the first section.
        arguments: Description of each argument, on one line.
        returns: Description of the result, on one line.
    """

    summary: str
    arguments: Mapping[str, str]
    returns: str


def read_doc(text: str | None) -> Doc:
    """Parses a docstring. Without sections, all of it is the summary."""
    sections = _SECTION.split(inspect.cleandoc(text or ""))
    arguments: dict[str, str] = {}
    summary, returns = sections[0].strip(), ""
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in _ARGUMENTS:
            arguments = {}
            lines = inspect.cleandoc("\n" + body.expandtabs()).splitlines()
            name = ""
            for line in lines:
                found = None if line.startswith(" ") else _ENTRY.match(line)
                if found:
                    name = found[1]
                    arguments[name] = found[2].strip()
                elif name:
                    arguments[name] = f"{arguments[name]} {line.strip()}".strip()
        elif title in _RETURN:
            returns = _one_line(body)
    return Doc(summary, arguments, returns)


def write_doc(doc: Doc) -> str:
    """Writes a docstring that a parser splits into exactly these parts."""
    text = _harmless(doc.summary)
    if doc.arguments:
        lines = (f"    {name}: {_harmless(_one_line(words))}" for name, words in doc.arguments.items())
        text += "\n\nArgs:\n" + "\n".join(lines)
    if doc.returns:
        text += f"\n\nReturns:\n    {_harmless(_one_line(doc.returns))}"
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _harmless(text: str) -> str:
    """Removes strings that a parser takes for a section or, at the end, for a list of choices."""
    text = re.sub(r"\b(Args|Returns|Raises):", r"\1 -", text)
    return re.sub(r"(\(choices:.*\))\s*$", r"\1.", text, flags=re.IGNORECASE | re.DOTALL)


# Methods that trainers call, and models do not.
RESERVED = frozenset({"reset", "get_reward"})


@dataclass(frozen=True)
class EpisodeTool:
    """A tool for a model. Picklable, if its class or function can be imported.

    Attributes:
        name: Name of the method.
        schema: JSON Schema of the arguments, an object.
        doc: Documentation for the model.
        action: Makes the action of a call from its arguments. Raises `InvalidAction`, with a message for the model,
            if they are invalid.
    """

    name: str
    schema: Mapping[str, Any] = field(repr=False)
    doc: Doc = field(repr=False)
    action: Callable[[dict[str, Any]], Any]


def action_tool(name: str, action_type: type[BaseModel]) -> EpisodeTool:
    """A tool from an action class, with its fields as arguments."""
    try:
        schema = action_type.model_json_schema(by_alias=True)
    except PydanticUserError as error:
        raise UsageError(
            f"tool {name!r}: {action_type.__name__} has a field that no model can write; "
            f"give a function that makes the action from arguments that a model can write: {error}"
        ) from error
    fields = dict(schema.get("properties", {}))
    for each, facts in list(fields.items()):
        if each == "metadata" or ("const" in facts and "default" in facts):
            del fields[each]  # the model does not choose it
    doc = read_doc(schema.get("description"))
    return EpisodeTool(
        check_name(name), {**schema, "properties": fields}, doc, partial(_make_action, name, action_type)
    )


def function_tool(name: str, function: Callable[..., Any]) -> EpisodeTool:
    """A tool from a function that returns an action (a model or a mapping)."""
    check_name(name)
    try:
        schema = _adapter(function).json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        raise UsageError(
            f"tool {name!r}: the arguments of {function!r} cannot be described to a model; "
            f"give each a type that JSON can express: {error}"
        ) from error
    if schema.get("type") != "object":
        raise UsageError(f"tool {name!r}: {function!r} must take its arguments by name")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values()):
        raise UsageError(f"tool {name!r}: {function!r} takes **arguments, whose names no model knows: name them")
    return EpisodeTool(name, schema, read_doc(inspect.getdoc(function)), partial(_make_action, name, function))


def server_tool(name: str, listed: Any) -> EpisodeTool:
    """A tool of an MCP environment, from an entry of `list_tools`: an `openenv.mcp.Tool` or an equal mapping."""
    called = str(part_of(listed, "name"))
    check_name(name, called)
    schema = part_of(listed, "input_schema") or {}
    return EpisodeTool(name, schema, read_doc(part_of(listed, "description")), partial(action_of, called))


def _make_action(name: str, maker: Any, arguments: dict[str, Any]) -> Any:
    """The action of a call, by an action class or a function. The error for the model omits the arguments' values."""
    try:
        if isinstance(maker, type) and issubclass(maker, BaseModel):
            return maker.model_validate_json(to_json(arguments))
        return _adapter(maker).validate_python(ArgsKwargs((), arguments))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        said = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults[:5])
        raise InvalidAction(f"{name}: {said}") from None


def check_name(name: str, called: str | None = None) -> str:
    """Returns the name of a tool if it can be the name of a public method.

    Args:
        name: Name for the model.
        called: Name of the tool on the server, if known.

    Raises:
        UsageError: It cannot be the name of a method; the message says how to rename the tool.
    """
    reason = None
    if name in RESERVED:
        reason = "trainers call a method of this name themselves"
    elif name.startswith("_"):
        reason = "trainers ignore private methods"
    elif not name.isidentifier() or keyword.iskeyword(name):
        reason = "a method cannot have this name"
    if reason is None:
        return name
    raise UsageError(
        f"tool {name!r}: {reason}; give it another one, as in tools={{'another_name': {called or name!r}}}"
    )


@cache
def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    validated: Any = function  # pydantic accepts functions here; its types do not
    return TypeAdapter(validated)


# Argument `tools` of `environment_factory`; None for the tools that the client class declares.
Tools = Mapping[str, Any] | Iterable[Any] | str | None

_HINT = (
    "give tools={'move': MoveAction}, with action classes or functions that return an action, "
    "or tools='mcp' for the tools of an MCP environment"
)

_NO_LIST = "the server lists no tools: it is not an MCP environment"


def tools_of(
    client_type: type[EnvClient[Any, Any, Any]], tools: Tools, connect: Callable[[], Any]
) -> tuple[EpisodeTool, ...]:
    """Resolves the argument `tools` of `environment_factory`.

    Args:
        client_type: The client class.
        tools: The argument.
        connect: Makes a client, to ask the server for its tools.

    Raises:
        UsageError: A tool does not exist or cannot be a method, or the environment has no tools.
    """
    if tools is None:
        tools = "mcp" if callable(getattr(client_type, "list_tools", None)) else _actions_of(client_type)
    declared = list(_declarations(tools))
    listed = _ask_server(connect) if any(isinstance(what, str) or what is None for _, what in declared) else {}
    made = [tool for name, what in declared for tool in _make_tools(name, what, listed)]
    names = [tool.name for tool in made]
    if not made:
        raise UsageError(f"{client_type.__name__} has no tools that a model can call: {_HINT}")
    if len(set(names)) < len(names):
        raise UsageError(f"two tools have the same name in {', '.join(names)}: {_HINT}")
    return tuple(made)


def _declarations(tools: Mapping[str, Any] | Iterable[Any] | str) -> Iterator[tuple[str, Any]]:
    """Yields names, each with an action class, a function, or a tool's name on the server; None for all its tools."""
    if tools == "mcp":
        yield "", None
    elif isinstance(tools, Mapping):
        yield from tools.items()
    elif isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UsageError(f"tools={tools!r}: {_HINT}")
    else:
        for what in tools:
            name = what if isinstance(what, str) else str(getattr(what, "__name__", ""))
            if isinstance(what, type):  # MoveAction becomes move, SendMailAction send_mail
                name = snake_case(name.removesuffix("Action") or name)
            yield name, what


def _make_tools(name: str, what: Any, listed: Mapping[str, Any]) -> Iterator[EpisodeTool]:
    if what is None:
        yield from (server_tool(each, entry) for each, entry in listed.items())
    elif isinstance(what, str):
        if what not in listed:
            raise UsageError(f"the server has no tool {what!r}; it has {', '.join(listed) or 'none'}")
        yield server_tool(name, listed[what])
    elif isinstance(what, type) and issubclass(what, BaseModel):
        yield action_tool(name, what)
    elif callable(what) and not isinstance(what, type) and not inspect.iscoroutinefunction(what):
        yield function_tool(name, what)
    else:
        raise UsageError(f"tool {name!r}: {what!r} is neither an action class nor a function; {_HINT}")


def _actions_of(client_type: type[EnvClient[Any, Any, Any]]) -> list[Any]:
    """The action classes in the type arguments of a client class."""
    arguments = type_arguments(client_type, EnvClient)
    declared = arguments[0] if arguments else None
    while get_origin(declared) is not None and hasattr(declared, "__metadata__"):  # Annotated[A | B, discriminator]
        declared = get_args(declared)[0]
    is_union = get_origin(declared) is Union or type(declared).__name__ == "UnionType"
    parts = list(get_args(declared)) if is_union else [declared]
    if not all(isinstance(part, type) and issubclass(part, BaseModel) for part in parts):
        raise UsageError(f"{client_type.__name__} does not declare its action classes: {_HINT}")
    return parts


def _ask_server(connect: Callable[[], Any]) -> dict[str, Any]:
    """The server's tools by name."""
    client = connect().sync()
    try:
        try:
            result = client.step({"type": "list_tools"})
        except ResetRequired:
            client.reset()
            result = client.step({"type": "list_tools"})
    except InvalidAction as error:
        raise UsageError(f"{_NO_LIST} ({error.message}): {_HINT}") from error
    finally:
        client.close()
    tools = part_of(result.observation, "tools")
    if tools is None:
        raise UsageError(f"{_NO_LIST}: {_HINT}")
    return {str(part_of(tool, "name")): tool for tool in tools}
