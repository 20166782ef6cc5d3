"""Servers that tools are declared on, as an environment needs them: what is there, and one call.

Two families are known: FastMCP (the package `fastmcp`), and the servers of the official SDK (`mcp.server`). Tools are
called on the server object itself, without a client and a session for each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from ..background import run_async_safely
from .result import ToolResult
from .session import McpSessions
from .types import Tool

__all__ = ["Library", "Listed", "Shortcut", "dump_block", "family_of", "get_server_tools"]


class Listed(NamedTuple):
    """One tool.

    Attributes:
        tool: As observations say it.
        wire: As `tools/list` answers it.
    """

    tool: Tool
    wire: dict[str, Any]


class Shortcut(NamedTuple):
    """A tool that can be called without asking its server each time.

    Attributes:
        call: Makes a coroutine for one call. That of a synchronous tool never waits, and the tool runs in it.
        asynchronous: Whether it may wait, so that it needs an event loop.
        anywhere: False for a tool that is to run on the thread of its caller, and on no other.
    """

    call: Callable[[dict[str, Any]], Coroutine[Any, Any, ToolResult]]
    asynchronous: bool = False
    anywhere: bool = True


class Library(Protocol):
    """The tools of one server.

    Attributes:
        server: The server.
        sessions: The MCP sessions that its tools run in.
        starts: Whether the server has something to set up when a session begins, and clean up when it ends.
    """

    server: Any
    sessions: McpSessions
    starts: bool

    def names(self) -> list[str]:
        """Their names, of those that were declared on the server itself."""

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What they were declared as, by name."""

    async def tools(self) -> list[Listed]:
        """All that the server shows, those of servers mounted on it too."""

    def shortcut(self, name: str) -> Shortcut | None:
        """A short way to a tool; None if the server has to be asked."""

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Calls a tool that there is, in the MCP session of the running event loop.

        Raises:
            ToolFault: It gave nothing.
        """


def get_server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a FastMCP server by their names, as the server's own objects.

    Call it from synchronous code, with or without a running event loop. A server without `list_tools` has none.
    """
    list_tools = getattr(mcp_server, "list_tools", None)
    return {} if list_tools is None else {tool.name: tool for tool in run_async_safely(list_tools())}


def family_of(server: Any) -> Library:
    """The library of a server.

    Raises:
        TypeError: It is no server of tools.
    """
    from .fastmcp_library import FastMcpLibrary
    from .sdk_library import SdkLibrary

    modules = {cls.__module__.partition(".")[0] for cls in type(server).__mro__}
    if "fastmcp" in modules:
        return FastMcpLibrary(server)
    if "mcp" in modules or all(callable(getattr(server, name, None)) for name in ("list_tools", "call_tool", "tool")):
        return SdkLibrary(server)
    raise TypeError(f"mcp_server is a {type(server).__name__}: pass a FastMCP server, as FastMCP('name')")


def listed(tool: Any, wire: dict[str, Any]) -> Listed:
    """An entry; `tool` has a name and a description, `wire` the schema."""
    schema = wire.get("inputSchema") or {"type": "object", "properties": {}}
    return Listed(Tool(name=tool.name, description=tool.description or "", input_schema=schema), wire)


def dump_block(block: Any) -> Any:
    """One block of content as JSON, as the MCP specification has it."""
    dump = getattr(block, "model_dump", None)
    return block if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


def declared_names(tools: Any) -> dict[str, Callable[..., Any]]:
    """Functions by name, of tools as both families keep them."""
    found: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        function = getattr(tool, "fn", None)
        if isinstance(getattr(tool, "name", None), str) and function is not None:
            found[tool.name] = function
    return found


def is_plainly_synchronous(function: Any) -> bool:
    """Whether calling it does all its work: no coroutine, no generator."""
    return not (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - of objects that are called
    )
