"""From what `tools=` says to the tools of a client."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from ...client import EnvClient
from ...errors import InvalidAction, ResetRequired, UsageError
from ...generics import type_arguments
from .tool import ActionTool, FunctionTool, ServerTool, Tool, listed_name

__all__ = ["Tools", "tools_of"]

# `environment_factory(tools=)`; None takes what the client class says.
Tools = Mapping[str, Any] | Iterable[Any] | str | None

_HINT = (
    "give tools={'move': MoveAction}, with action classes or functions that return an action, "
    "or tools='mcp' for the tools of an MCP environment"
)

_NO_LIST = "the server lists no tools, as an MCP environment would"


def tools_of(
    client_type: type[EnvClient[Any, Any, Any]], tools: Tools, connect: Callable[[], Any]
) -> tuple[Tool, ...]:
    """The tools that are meant.

    Args:
        client_type: The client class.
        tools: As for `environment_factory`.
        connect: Makes a client, where the server has to be asked for its tools.

    Raises:
        UsageError: There is no such tool, or none at all, or one that trainers cannot have.
    """
    if tools is None:
        tools = "mcp" if _is_mcp(client_type) else _actions_of(client_type)
    declared = list(_declared(tools))
    listed = _listed(connect) if any(isinstance(what, str) or what is None for _, what in declared) else {}
    made = [tool for name, what in declared for tool in _made(name, what, listed)]
    names = [tool.name for tool in made]
    if not made:
        raise UsageError(f"{client_type.__name__}: there are no tools for a model to call; {_HINT}")
    if len(set(names)) < len(names):
        raise UsageError(f"two tools of one name among {', '.join(names)}: {_HINT}")
    return tuple(made)


def _declared(tools: Mapping[str, Any] | Iterable[Any] | str) -> Iterator[tuple[str, Any]]:
    """Names and what stands behind each: an action class, a function, a server's name for it; None for all it has."""
    if tools == "mcp":
        yield "", None
    elif isinstance(tools, Mapping):
        yield from tools.items()
    elif isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UsageError(f"tools={tools!r}: {_HINT}")
    else:
        for what in tools:
            yield _name_of(what), what


def _name_of(what: Any) -> str:
    if isinstance(what, str):
        return what
    name = getattr(what, "__name__", "")
    if isinstance(what, type):  # MoveAction becomes move, SendMailAction send_mail
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("Action") or name).lower()
    return str(name)


def _made(name: str, what: Any, listed: Mapping[str, Any]) -> Iterator[Tool]:
    if what is None:
        yield from (ServerTool.of(each, entry) for each, entry in listed.items())
    elif isinstance(what, str):
        if what not in listed:
            raise UsageError(f"the server has no tool {what!r}; it has {', '.join(listed) or 'none'}")
        yield ServerTool.of(name, listed[what])
    elif isinstance(what, type) and issubclass(what, BaseModel):
        yield ActionTool.of(name, what)
    elif callable(what) and not isinstance(what, type) and not inspect.iscoroutinefunction(what):
        yield FunctionTool.of(name, what)
    else:
        raise UsageError(f"tool {name!r}: {what!r} is no action class and no function; {_HINT}")


def _actions_of(client_type: type[EnvClient[Any, Any, Any]]) -> list[Any]:
    """The action classes that a client class was declared with."""
    arguments = type_arguments(client_type, EnvClient)
    declared = arguments[0] if arguments else None
    while get_origin(declared) is not None and hasattr(declared, "__metadata__"):  # Annotated[A | B, discriminator]
        declared = get_args(declared)[0]
    is_union = get_origin(declared) is Union or type(declared).__name__ == "UnionType"
    parts = list(get_args(declared)) if is_union else [declared]
    if not all(isinstance(part, type) and issubclass(part, BaseModel) for part in parts):
        raise UsageError(f"{client_type.__name__} does not say what its actions are: {_HINT}")
    return parts


def _is_mcp(client_type: type[Any]) -> bool:
    return callable(getattr(client_type, "list_tools", None))


def _listed(connect: Callable[[], Any]) -> dict[str, Any]:
    """The server's tools, by their names."""
    client = connect().sync()
    try:
        result = _list(client)
    except InvalidAction as error:
        raise UsageError(f"{_NO_LIST} ({error.message}): {_HINT}") from error
    finally:
        client.close()
    observation = result.observation
    tools = observation.get("tools") if isinstance(observation, Mapping) else getattr(observation, "tools", None)
    if tools is None:
        raise UsageError(f"{_NO_LIST}: {_HINT}")
    return {listed_name(tool): tool for tool in tools}


def _list(client: Any) -> Any:
    try:
        return client.step({"type": "list_tools"})
    except ResetRequired:
        client.reset()
        return client.step({"type": "list_tools"})
