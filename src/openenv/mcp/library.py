"""The servers that tools are declared on (FastMCP and the official SDK): list their tools and call them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from .._asyncio import run_async_safely
from .session import McpSessions, in_request
from .types import McpToolResult, Tool, ToolFault, argument_error, dump_block, execution_error, not_found_error


class ListedTool(NamedTuple):
    """One tool.

    Attributes:
        tool: Its form in observations.
        wire: Its form in `tools/list`.
    """

    tool: Tool
    wire: dict[str, Any]


class Shortcut(NamedTuple):
    """A tool that can be called without asking its server each time.

    Attributes:
        call: Makes a coroutine for one call. That of a synchronous tool never waits, and the tool runs in it.
        asynchronous: Whether it may wait, so that it needs an event loop.
        anywhere: False for a tool that must run on the thread of its caller.
    """

    call: Callable[[dict[str, Any]], Coroutine[Any, Any, McpToolResult]]
    asynchronous: bool = False
    anywhere: bool = True


def get_server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a FastMCP server by their names, as the server's own objects.

    Call it from synchronous code, with or without a running event loop. A server without `list_tools` has none.
    """
    list_tools = getattr(mcp_server, "list_tools", None)
    return {} if list_tools is None else {tool.name: tool for tool in run_async_safely(list_tools())}


def family_of(server: Any) -> Library:
    """The library of a server.

    Raises:
        TypeError: Not a server of tools.
    """
    modules = {cls.__module__.partition(".")[0] for cls in type(server).__mro__}
    if "fastmcp" in modules:
        return FastMcpLibrary(server)
    if "mcp" in modules or all(callable(getattr(server, name, None)) for name in ("list_tools", "call_tool", "tool")):
        return SdkLibrary(server)
    raise TypeError(f"mcp_server is a {type(server).__name__}: pass a FastMCP server, as FastMCP('name')")


def listed(tool: Any, shown: Any) -> ListedTool:
    """An entry; `tool` has a name and a description, `shown` is what the server shows of it."""
    wire = dump_block(shown)
    schema = wire.get("inputSchema") or {"type": "object", "properties": {}}
    return ListedTool(Tool(name=tool.name, description=tool.description or "", input_schema=schema), wire)


def declared_names(tools: Any) -> dict[str, Callable[..., Any]]:
    """The functions of tools, by name, for both families."""
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


# Version 1 calls synchronous tools on the current thread, so its own call never waits.
_CALLS_AT_ONCE = "mcp.server.fastmcp"


class SdkLibrary:
    """The tools of a server of the official SDK.

    Args:
        server: The server.

    Attributes:
        server: The same.
        sessions: The MCP sessions that its tools run in.
        starts: Whether the server has something to set up when a session begins, and clean up when it ends.
    """

    def __init__(self, server: Any):
        self.server = server
        self.sessions = McpSessions(server)
        self.starts = getattr(getattr(server, "settings", None), "lifespan", None) is not None
        self._at_once = any(cls.__module__.startswith(_CALLS_AT_ONCE) for cls in type(server).__mro__)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of the tools that were declared on the server itself, by name."""
        return declared_names(self._own())

    async def tools(self) -> list[ListedTool]:
        """All tools that the server shows, also of mounted servers."""
        return [listed(tool, tool) for tool in await self.server.list_tools()]

    def shortcut(self, name: str) -> Shortcut | None:
        """A short way to a tool; None if the server has to be asked."""
        if not self._at_once:
            return None
        tool = self._tool(name)
        if tool is None or not is_plainly_synchronous(tool.fn) or _takes_context(tool):
            return None
        return Shortcut(lambda arguments: self._call(name, arguments))

    async def call(self, name: str, arguments: dict[str, Any]) -> McpToolResult:
        """Calls an existing tool, in the MCP session of the running event loop.

        Raises:
            ToolFault: The tool failed.
        """
        if self._at_once:
            opened = await self.sessions.open()
            with in_request(opened.request(self.sessions.number())):
                return await self._call(name, arguments)
        tool = self._tool(name)
        if tool is None or not _takes_context(tool):
            return await self._call(name, arguments)
        opened = await self.sessions.open()
        make_context = import_module("mcp.server.mcpserver").Context
        context = make_context(request_context=opened.request(self.sessions.number()), mcp_server=self.server)
        return await self._call(name, arguments, context=context)

    async def _call(self, name: str, arguments: dict[str, Any], **context: Any) -> McpToolResult:
        try:
            answer = await self.server.call_tool(name, arguments, **context)
        except Exception as error:  # the edge to foreign code
            cause = error.__cause__
            names = list(self.functions())
            if name not in names and cause is None and "nknown tool" in str(error):
                fault = not_found_error(name, names)
            elif isinstance(cause, ValidationError) and cause.title == f"{name}Arguments":
                fault = argument_error(name, cause, getattr(self._tool(name), "parameters", None))
            else:
                fault = execution_error(name, cause or error)
            raise fault from error
        return self._result(name, answer)

    def _own(self) -> list[Any]:
        manager = getattr(self.server, "_tool_manager", None)
        return [] if manager is None else list(manager.list_tools())

    def _tool(self, name: str) -> Any:
        return next((tool for tool in self._own() if tool.name == name), None)

    def _result(self, name: str, answer: Any) -> McpToolResult:
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
                raise execution_error(name, RuntimeError(text or "it says that it failed"))
        data = structured
        if isinstance(structured, dict):
            facts = getattr(self._tool(name), "fn_metadata", None)
            data = structured.get("result") if getattr(facts, "wrap_output", False) else structured
        return McpToolResult(list(content), structured, meta, data)


def _takes_context(tool: Any) -> bool:
    return getattr(tool, "context_kwarg", None) is not None


def _either(answer: Any, new: str, old: str) -> Any:
    """A field by its name in version 2, which warns about the old name, or by the old one."""
    return getattr(answer, new) if hasattr(answer, new) else getattr(answer, old, None)


@contextlib.contextmanager
def in_fastmcp_request(context: Any) -> Iterator[Any]:
    """Lets FastMCP find the context of a request during a block; yields it as `Context` has it."""
    bind = getattr(import_module("fastmcp.server.dependencies"), "bind_request_context", None)
    if bind is None:  # before version 4
        with in_request(context):
            yield context
    else:
        with bind(context) as bound:
            yield bound


@functools.cache
def lazy_context() -> Callable[[Any, McpSessions], Any]:
    """Makes the context of a tool that takes none, of its server and its sessions.

    Code that such a tool calls may ask for it (`get_context`). Most tools do not, and a session for each would be a
    waste: the context opens its session when one of its coroutines needs it.
    """
    from fastmcp.server.context import Context

    class LazyContext(Context):
        _number: int | None = None
        _request: Any = None

        def __init__(self, server: Any, sessions: McpSessions):
            super().__init__(fastmcp=server)
            self._sessions = sessions

        @property
        def request_context(self) -> Any:
            return self._request or super().request_context

        @property
        def request_id(self) -> str:
            if self._number is None:
                self._number = self._sessions.number()
            return str(self._number)

        @property
        def session_id(self) -> str:
            return self._sessions.id

        @property
        def session(self) -> Any:
            if self.request_context is None:
                what = "the MCP session of this tool is not open yet"
                raise RuntimeError(f"{what}: give the tool a parameter of the type Context, and use that")
            return super().session

        async def enter_session(self) -> None:
            if self._request is None:
                opened = await self._sessions.open()
                with in_fastmcp_request(opened.request(int(self.request_id))) as request:
                    self._request = request

    return _open_at_first_use(LazyContext, Context)


def _open_at_first_use(lazy: type[Any], base: type[Any]) -> type[Any]:
    """Overrides each coroutine of the base: it opens the session first."""

    def opening(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            await self.enter_session()
            return await method(self, *args, **kwargs)

        return called

    for name, method in vars(base).items():
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(lazy, name, opening(method))
    return lazy


# Methods that a middleware overrides to intercept tool calls; the one that every server has only handles listings.
_INTERCEPTING = ("__call__", "on_message", "on_request", "on_call_tool")


class FastMcpLibrary:
    """The same for a FastMCP server."""

    def __init__(self, server: Any):
        from fastmcp.server.server import default_lifespan

        self.server = server
        self.sessions = McpSessions(server)
        lifespan = getattr(server, "_lifespan", default_lifespan)
        self.starts = lifespan is not default_lifespan or _has_middleware(server, ("on_initialize",))
        # A tool hid tools of the session, or showed some.
        self._has_rules = False
        self._shortcuts: dict[str, tuple[Any, Shortcut | None]] = {}

    def functions(self) -> dict[str, Callable[..., Any]]:
        return declared_names(self._own().values())

    async def tools(self) -> list[ListedTool]:
        found = await (
            self._in_session(self.server.list_tools) if self.sessions.open_here else self.server.list_tools()
        )
        return [listed(tool, tool.to_mcp_tool()) for tool in found]

    def shortcut(self, name: str) -> Shortcut | None:
        tool = self._own().get(f"tool:{name}@") if self._is_plain() else None
        if tool is None:
            return None
        known = self._shortcuts.get(name)
        if known is None or known[0] is not tool:
            known = self._shortcuts[name] = tool, _shortcut(self.server, tool, self.sessions)
        return known[1]

    async def call(self, name: str, arguments: dict[str, Any]) -> McpToolResult:
        from fastmcp import exceptions

        try:
            return _result(name, await self._in_session(lambda: self._call(name, arguments)))
        except exceptions.ValidationError as error:
            raise argument_error(name, error.__cause__ or error) from error
        except exceptions.NotFoundError as error:
            raise not_found_error(name, list(self.functions())) from error
        except ToolFault:
            raise
        except Exception as error:  # the edge to foreign code
            raise execution_error(name, error.__cause__ or error) from error

    async def _in_session(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Makes and awaits a coroutine in the context of a request of the session."""
        opened = await self.sessions.open()
        with in_fastmcp_request(opened.request(self.sessions.number())):
            return await make()

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self.server.call_tool(name, arguments)
        self._has_rules = self._has_rules or await _has_rules(self.server)
        return result

    def _own(self) -> dict[str, Any]:
        """The tools declared on the server itself, by FastMCP's keys; empty if a version keeps them elsewhere."""
        provider = getattr(self.server, "_local_provider", None)
        found = getattr(provider, "_components", None)
        return found if isinstance(found, dict) else {}

    def _is_plain(self) -> bool:
        """Whether the server calls its tools directly: no other provider, no transform, no middleware."""
        server = self.server
        own = getattr(server, "_local_provider", None)
        return (
            own is not None
            and not self._has_rules
            and server.providers == [own]
            and not (getattr(server, "transforms", None) or getattr(own, "transforms", None))
            and not (getattr(server, "_mask_error_details", True) or getattr(server, "strict_input_validation", True))
            and not _has_middleware(server, _INTERCEPTING)
        )


Library = SdkLibrary | FastMcpLibrary
"""The tools of one server."""


def _shortcut(server: Any, tool: Any, sessions: McpSessions) -> Shortcut | None:
    """None for a tool with special features, which FastMCP must call."""
    from fastmcp.server.dependencies import without_injected_parameters
    from fastmcp.tools.function_tool import FunctionTool

    function = getattr(tool, "fn", None)
    special = (
        type(tool) is not FunctionTool
        or tool.timeout is not None
        or tool.auth is not None
        or getattr(tool.task_config, "mode", "forbidden") != "forbidden"
        or without_injected_parameters(function, run_in_thread=False) is not function
    )
    asynchronous = inspect.iscoroutinefunction(function)
    if special or not (asynchronous or (is_plainly_synchronous(function) and _never_waits(server))):
        return None
    run = _runner(server, tool, asynchronous, sessions)
    return Shortcut(run, asynchronous, asynchronous or getattr(tool, "run_in_thread", True))


def _never_waits(server: Any) -> bool:
    """Whether the context that tools run in is entered and left without an event loop."""
    from fastmcp.server.context import Context

    async def enter_and_leave() -> None:
        async with Context(fastmcp=server):
            pass

    attempt = enter_and_leave()
    try:
        attempt.send(None)
    except StopIteration:
        return True
    except RuntimeError:  # it looks for a loop
        return False
    attempt.close()
    return False


def _runner(
    server: Any, tool: Any, asynchronous: bool, sessions: McpSessions
) -> Callable[[dict[str, Any]], Coroutine[Any, Any, McpToolResult]]:
    context = lazy_context()
    called: Any = _mark_tool_errors(tool.fn, asynchronous)
    validate = TypeAdapter(called).validate_python
    convert, name = tool.convert_result, tool.name

    async def run(arguments: dict[str, Any]) -> McpToolResult:
        async with context(server, sessions):
            try:
                value = validate(arguments)
                return _result(name, convert(await value if asynchronous else value))
            except ValidationError as error:
                raise argument_error(name, error, tool.parameters) from error
            except _ToolRaised as raised:
                cause = raised.__cause__ or raised
                raise execution_error(name, cause) from cause
            except ToolFault:
                raise
            except Exception as error:  # the returned value cannot be converted
                raise execution_error(name, error) from error

    return run


class _ToolRaised(Exception):
    """Marks an error of a tool itself, its cause."""


def _mark_tool_errors(function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """The function, with its own errors marked, so that they are not mistaken for argument errors."""

    async def called_later(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            raise _ToolRaised from error

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise _ToolRaised from error

    return functools.wraps(function)(called_later if asynchronous else called)


def _result(name: str, result: Any) -> McpToolResult:
    """FastMCP's ToolResult as ours."""
    if getattr(result, "is_error", False):
        texts = [getattr(block, "text", None) for block in result.content or ()]
        text = " ".join(text for text in texts if isinstance(text, str))
        raise execution_error(name, RuntimeError(text or "it says that it failed"))
    structured, meta = result.structured_content, result.meta
    data = structured
    own = meta.get("fastmcp") if isinstance(meta, dict) else None
    if structured is not None and isinstance(own, dict) and own.get("wrap_result"):
        data = structured.get("result")
    return McpToolResult(list(result.content), structured, meta, data)


async def _has_rules(server: Any) -> bool:
    """Whether a tool has changed what its session shows (`Context.enable_components` and the like)."""
    from fastmcp.server.context import Context

    async with Context(fastmcp=server) as context:
        return bool(await context._get_visibility_rules())


def _has_middleware(server: Any, methods: tuple[str, ...]) -> bool:
    """Whether a middleware of a server overrides one of these methods."""
    from fastmcp.server.middleware import Middleware

    plain = [(name, getattr(Middleware, name, None)) for name in methods]
    return any(getattr(type(each), name, None) is not own for each in server.middleware for name, own in plain)
