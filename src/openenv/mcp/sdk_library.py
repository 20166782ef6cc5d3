"""The servers of the official SDK: `mcp.server.fastmcp.FastMCP`; in version 2, `mcp.server.mcpserver.MCPServer`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from .library import Listed, Shortcut, declared_names, is_plainly_synchronous, listed
from .result import ToolFault, ToolResult, failed, invalid, not_found
from .session import McpSessions, in_request

__all__ = ["SdkLibrary"]

# The first major version calls synchronous tools where it is, so that its own way never waits.
_CALLS_AT_ONCE = "mcp.server.fastmcp"


class SdkLibrary:
    """See `library.Library`."""

    def __init__(self, server: Any):
        self.server = server
        self.sessions = McpSessions(server)
        self.starts = getattr(getattr(server, "settings", None), "lifespan", None) is not None
        self._at_once = any(cls.__module__.startswith(_CALLS_AT_ONCE) for cls in type(server).__mro__)

    def names(self) -> list[str]:
        return list(self.functions())

    def functions(self) -> dict[str, Callable[..., Any]]:
        return declared_names(self._own())

    async def tools(self) -> list[Listed]:
        return [
            listed(tool, tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            for tool in await self.server.list_tools()
        ]

    def shortcut(self, name: str) -> Shortcut | None:
        if not self._at_once:
            return None
        tool = next((tool for tool in self._own() if tool.name == name), None)
        if tool is None or not is_plainly_synchronous(tool.fn) or _takes_context(tool):
            return None
        return Shortcut(lambda arguments: self._call(name, arguments))

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if self._at_once:
            opened = await self.sessions.open()
            with in_request(opened.request(self.sessions.number())):
                return await self._call(name, arguments)
        tool = next((tool for tool in self._own() if tool.name == name), None)
        if tool is None or not _takes_context(tool):
            return await self._call(name, arguments)
        opened = await self.sessions.open()
        make_context = import_module("mcp.server.mcpserver").Context
        context = make_context(request_context=opened.request(self.sessions.number()), mcp_server=self.server)
        return await self._call(name, arguments, context=context)

    async def _call(self, name: str, arguments: dict[str, Any], **context: Any) -> ToolResult:
        try:
            answer = await self.server.call_tool(name, arguments, **context)
        except Exception as error:  # the edge to foreign code
            raise self._fault(name, error) from error
        return self._result(name, answer)

    def _own(self) -> list[Any]:
        manager = getattr(self.server, "_tool_manager", None)
        return [] if manager is None else list(manager.list_tools())

    def _fault(self, name: str, error: Exception) -> ToolFault:
        cause = error.__cause__
        names = self.names()
        if name not in names and cause is None and "nknown tool" in str(error):
            return not_found(name, names)
        if isinstance(cause, ValidationError) and cause.title == f"{name}Arguments":
            tool = next((tool for tool in self._own() if tool.name == name), None)
            return invalid(name, cause, getattr(tool, "parameters", None))
        return failed(name, cause or error)

    def _result(self, name: str, answer: Any) -> ToolResult:
        """Blocks, blocks with a structured value, or a whole result: the versions differ."""
        content, structured, meta = answer, None, None
        if isinstance(answer, tuple):
            content, structured = answer
        elif isinstance(answer, dict):
            content, structured = [], answer
        elif hasattr(answer, "content"):
            content, meta = answer.content, getattr(answer, "meta", None)
            structured = _either(answer, "structured_content", "structuredContent")
            if _either(answer, "is_error", "isError"):
                text = " ".join(str(block.text) for block in content if getattr(block, "text", None))
                raise failed(name, RuntimeError(text or "it says that it failed"))
        data = structured
        if isinstance(structured, dict) and self._wraps(name):
            data = structured.get("result")
        return ToolResult(list(content), structured, meta, data)

    def _wraps(self, name: str) -> bool:
        tool = next((tool for tool in self._own() if tool.name == name), None)
        return bool(getattr(getattr(tool, "fn_metadata", None), "wrap_output", False))


def _takes_context(tool: Any) -> bool:
    return getattr(tool, "context_kwarg", None) is not None


def _either(answer: Any, new: str, old: str) -> Any:
    """A field under the name that version 2 gave it, where to ask for the old one is a warning."""
    return getattr(answer, new) if hasattr(answer, new) else getattr(answer, old, None)
