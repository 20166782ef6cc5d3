"""FastMCP 3 and 4, the package `fastmcp`.

`FastMCP.call_tool` builds a request, runs middleware and asks every provider: some 230 us for a tool that adds two
numbers. Where nothing stands between a server and a tool of its own, the tool is run as FastMCP runs it, in a FastMCP
context, for 10 us. Whether that is so is looked at for each call, since servers may be changed at any time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .fastmcp_context import in_fastmcp_request, late_context
from .library import Listed, Shortcut, declared_names, is_plainly_synchronous, listed
from .result import ToolFault, ToolResult, failed, invalid, not_found
from .session import McpSessions

__all__ = ["FastMcpLibrary"]

_INTERCEPTING = ("__call__", "on_message", "on_request", "on_call_tool")


class FastMcpLibrary:
    """See `library.Library`."""

    def __init__(self, server: Any):
        from fastmcp.server.server import default_lifespan

        self.server = server
        self.sessions = McpSessions(server)
        lifespan = getattr(server, "_lifespan", default_lifespan)
        self.starts = lifespan is not default_lifespan or any(map(_begins_sessions, server.middleware))
        # A tool hid tools of the session, or showed some.
        self._has_rules = False
        self._shortcuts: dict[str, tuple[Any, Shortcut | None]] = {}

    def names(self) -> list[str]:
        return list(self.functions())

    def functions(self) -> dict[str, Callable[..., Any]]:
        return declared_names(self._own().values())

    async def tools(self) -> list[Listed]:
        found = await (
            self._in_session(self.server.list_tools) if self.sessions.open_here else self.server.list_tools()
        )
        return [
            listed(tool, tool.to_mcp_tool().model_dump(mode="json", by_alias=True, exclude_none=True))
            for tool in found
        ]

    def shortcut(self, name: str) -> Shortcut | None:
        tool = self._own().get(f"tool:{name}@") if self._is_plain() else None
        if tool is None:
            return None
        known = self._shortcuts.get(name)
        if known is None or known[0] is not tool:
            known = self._shortcuts[name] = tool, _shortcut(self.server, tool, self.sessions)
        return known[1]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from fastmcp.exceptions import NotFoundError
        from fastmcp.exceptions import ValidationError as WrongArguments

        try:
            return _result(name, await self._in_session(lambda: self._call(name, arguments)))
        except WrongArguments as error:
            raise invalid(name, error.__cause__ or error) from error
        except NotFoundError as error:
            raise not_found(name, self.names()) from error
        except ToolFault:
            raise
        except Exception as error:  # the edge to foreign code
            raise failed(name, error.__cause__ or error) from error

    async def _in_session(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits what is made in the context of a request of the session."""
        opened = await self.sessions.open()
        with in_fastmcp_request(opened.request(self.sessions.number())):
            return await make()

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self.server.call_tool(name, arguments)
        self._has_rules = self._has_rules or await _has_rules(self.server)
        return result

    def _own(self) -> dict[str, Any]:
        """What was declared on the server itself, by FastMCP's keys; nothing of a version that keeps it elsewhere."""
        provider = getattr(self.server, "_local_provider", None)
        found = getattr(provider, "_components", None)
        return found if isinstance(found, dict) else {}

    def _is_plain(self) -> bool:
        """Whether nothing stands between the server and its tools: no other provider, no transform, no middleware."""
        server = self.server
        own = getattr(server, "_local_provider", None)
        return (
            own is not None
            and not self._has_rules
            and server.providers == [own]
            and not (getattr(server, "transforms", None) or getattr(own, "transforms", None))
            and not (getattr(server, "_mask_error_details", True) or getattr(server, "strict_input_validation", True))
            and not any(map(_intercepts, server.middleware))
        )


def _shortcut(server: Any, tool: Any, sessions: McpSessions) -> Shortcut | None:
    """None for a tool with something special about it, which is FastMCP's to do."""
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
    except RuntimeError:  # of whoever looks for a loop
        return False
    attempt.close()
    return False


def _runner(
    server: Any, tool: Any, asynchronous: bool, sessions: McpSessions
) -> Callable[[dict[str, Any]], Coroutine[Any, Any, ToolResult]]:
    context = late_context()
    called: Any = _told_apart(tool.fn, asynchronous)
    validate = TypeAdapter(called).validate_python
    convert, name = tool.convert_result, tool.name

    async def run(arguments: dict[str, Any]) -> ToolResult:
        async with context(server, sessions):
            try:
                value = validate(arguments)
                return _result(name, convert(await value if asynchronous else value))
            except ValidationError as error:
                raise invalid(name, error, tool.parameters) from error
            except _Raised as raised:
                raise failed(name, raised.error) from raised.error
            except ToolFault:
                raise
            except Exception as error:  # of what was returned: it cannot be said
                raise failed(name, error) from error

    return run


class _Raised(Exception):
    def __init__(self, error: BaseException):
        super().__init__()
        self.error = error


def _told_apart(function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """The function, whose own errors are not taken for those of its arguments."""
    if asynchronous:

        async def called_later(*args: Any, **kwargs: Any) -> Any:
            with _Telling():
                return await function(*args, **kwargs)

        return functools.wraps(function)(called_later)

    def called(*args: Any, **kwargs: Any) -> Any:
        with _Telling():
            return function(*args, **kwargs)

    return functools.wraps(function)(called)


class _Telling:
    def __enter__(self) -> None:
        pass

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise _Raised(error) from error


def _result(name: str, result: Any) -> ToolResult:
    """What FastMCP calls a ToolResult as ours."""
    if getattr(result, "is_error", False):
        text = " ".join(_texts(result.content)) or "it says that it failed"
        raise failed(name, RuntimeError(text))
    structured, meta = result.structured_content, result.meta
    data = structured
    if structured is not None and _is_wrapped(meta):
        data = structured.get("result")
    return ToolResult(list(result.content), structured, meta, data)


def _is_wrapped(meta: Any) -> bool:
    own = meta.get("fastmcp") if isinstance(meta, dict) else None
    return isinstance(own, dict) and bool(own.get("wrap_result"))


def _texts(content: Any) -> Iterator[str]:
    for block in content or ():
        text = getattr(block, "text", None)
        if isinstance(text, str):
            yield text


async def _has_rules(server: Any) -> bool:
    """Whether a tool has changed what its session shows (`Context.enable_components` and the like)."""
    from fastmcp.server.context import Context

    async with Context(fastmcp=server) as context:
        return bool(await context._get_visibility_rules())


def _begins_sessions(middleware: Any) -> bool:
    """Whether a middleware has a part in the beginning of a session."""
    from fastmcp.server.middleware import Middleware

    return getattr(type(middleware), "on_initialize", None) is not getattr(Middleware, "on_initialize", None)


def _intercepts(middleware: Any) -> bool:
    """Whether a middleware has a part in calls of tools; the one that every server has is about listings."""
    from fastmcp.server.middleware import Middleware

    cls = type(middleware)
    return any(getattr(cls, name, None) is not getattr(Middleware, name, None) for name in _INTERCEPTING)
