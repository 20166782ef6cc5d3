"""The tools of one environment: those of its server, and those that exist in one mode only."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from .._asyncio import run_without_loop
from .executor import ToolDeadlineExceeded, ToolExecutor
from .library import Library, ListedTool, Shortcut, family_of
from .types import RESERVED_TOOL_NAMES, McpToolResult, ToolFault, not_found_error, timeout_error

T = TypeVar("T")
VALID_MODES = frozenset({"production", "simulation"})
LISTING_S = 30.0
_HINT = f"reserved are {', '.join(sorted(RESERVED_TOOL_NAMES))}, which drive the environment: choose another name"
# A year: for a wait without a limit, where a number is required.
_NO_LIMIT_S = 31_536_000.0
# Dictionaries by function, which only grow.
_UNBOUNDED_CACHES = (
    ("uncalled_for.introspection", "_signature_cache"),
    ("uncalled_for.introspection", "_parameter_cache"),
    ("uncalled_for.annotations", "_metadata_cache"),
    ("uncalled_for.annotations", "_annotation_cache"),
    ("uncalled_for.references", "_reference_cache"),
)
# Of the last 5,000 functions each. Only the whole cache can be cleared; lost entries are made again when needed.
_LRU_CACHES = (
    ("fastmcp.utilities.types", "get_cached_typeadapter"),
    ("fastmcp.server.dependencies", "without_injected_parameters"),
    ("fastmcp.server.sessions", "session_id_parameter_names"),
    ("fastmcp.tools.function_tool", "_wrap_body_errors"),
    ("uncalled_for.resolution", "without_dependencies"),
)


def forget_functions(functions: Iterable[Callable[..., Any]]) -> None:
    """Clears FastMCP's caches of these functions. Versions with other caches are left unchanged."""
    # Only functions that hold objects: another thread may be looking up others, for another environment.
    held = [
        function for function in functions if not inspect.isfunction(function) or function.__closure__ is not None
    ]
    for module, name in _UNBOUNDED_CACHES:
        memory = getattr(sys.modules.get(module), name, None)
        if isinstance(memory, dict):
            for function in held:
                memory.pop(function, None)
    for module, name in _LRU_CACHES:
        clear = getattr(getattr(sys.modules.get(module), name, None), "cache_clear", None)
        if clear is not None:
            clear()


class Toolbox:
    """Lists and calls tools within a time limit, from any thread, with or without an event loop.

    Args:
        server: The FastMCP server of an environment.

    Raises:
        TypeError: Not such a server.
        ValueError: One of its tools has a reserved name.

    Attributes:
        closed: Whether the environment was closed.
        library: The tools of the environment's own server.
    """

    def __init__(self, server: Any):
        self.closed = False
        self.executor = ToolExecutor()
        self.library = family_of(server)
        self._of_mode: dict[str, Library] = {}
        reserved = sorted(RESERVED_TOOL_NAMES.intersection(self.library.functions()))
        if reserved:
            raise ValueError(f"MCP tools cannot use reserved names: {reserved}; {_HINT}")

    def declare(self, function: Any, mode: str | None, name: str | None) -> Any:
        """Adds a tool, to one mode or to both. Returns the declared function. Raises `ValueError`."""
        called = name or getattr(function, "__name__", "")
        if called in RESERVED_TOOL_NAMES:
            raise ValueError(f"Tool name {called!r} is reserved and cannot be used; {_HINT}")
        library = self.library
        if mode is not None:
            if mode not in VALID_MODES:
                raise ValueError(f"Invalid mode {mode!r}: it must be 'production', 'simulation' or None for both")
            if mode not in self._of_mode:
                own = library.server
                self._of_mode[mode] = family_of(type(own)(f"{getattr(own, 'name', 'tools')} ({mode})"))
            library = self._of_mode[mode]
        library.server.tool(name=called)(function)
        return function

    def functions(self, mode: str) -> dict[str, Callable[..., Any]]:
        """The functions of the tools, by name."""
        found: dict[str, Callable[..., Any]] = {}
        for library in reversed(self._libraries(mode)):
            found |= library.functions()
        return found

    def names_of_modes(self) -> list[str]:
        """The names of the tools that only one mode has."""
        return sorted({name for library in self._of_mode.values() for name in library.functions()})

    def tools(self, mode: str) -> list[ListedTool]:
        """The tools of a mode."""
        listed: list[ListedTool] = self.executor.run_coroutine(lambda: self.tools_async(mode), LISTING_S)
        return listed

    async def tools_async(self, mode: str) -> list[ListedTool]:
        found: dict[str, ListedTool] = {}
        for library in reversed(self._libraries(mode)):
            if library.starts:
                await library.sessions.open()
            found |= {listed.tool.name: listed for listed in await library.tools()}
        return list(found.values())

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float | None, mode: str) -> McpToolResult:
        """Calls a tool.

        Args:
            name: Name of the tool.
            arguments: By name.
            timeout_s: Seconds; None: no limit, and a synchronous tool runs on the caller's thread.
            mode: The server's.

        Raises:
            ToolFault: The tool failed.
        """
        library, shortcut = self._find(name, mode)
        limit_s = timeout_s or _NO_LIMIT_S
        try:
            if library.starts and not library.sessions.is_open:
                self.executor.run_coroutine(library.sessions.open, limit_s)
            result: McpToolResult
            if shortcut is None:
                result = self.executor.run_coroutine(self._asking(library, name, arguments, mode), limit_s)
            elif shortcut.asynchronous:
                result = self.executor.run_coroutine(lambda: shortcut.call(arguments), limit_s)
            elif timeout_s is None or not shortcut.anywhere:
                result = _run_without_loop(shortcut.call(arguments))
            else:
                result = self.executor.run(lambda: _run_without_loop(shortcut.call(arguments)), timeout_s)
        except ToolDeadlineExceeded:
            raise timeout_error(name, limit_s) from None
        return result

    async def call_async(
        self, name: str, arguments: dict[str, Any], timeout_s: float | None, mode: str
    ) -> McpToolResult:
        """The same for an async caller: an asynchronous tool runs on the caller's event loop."""
        library, shortcut = self._find(name, mode)
        limit_s = timeout_s or _NO_LIMIT_S
        try:
            if library.starts and not library.sessions.is_open:
                await _within(timeout_s, library.sessions.open())
            result: McpToolResult
            if shortcut is None:
                result = await _within(timeout_s, self._asking(library, name, arguments, mode)())
            elif shortcut.asynchronous:
                result = await _within(timeout_s, shortcut.call(arguments))
            elif not shortcut.anywhere:
                result = _run_without_loop(shortcut.call(arguments))
            else:
                result = await self.executor.run_async(lambda: _run_without_loop(shortcut.call(arguments)), limit_s)
        except ToolDeadlineExceeded:
            raise timeout_error(name, limit_s) from None
        return result

    def close(self) -> None:
        """Ends the MCP sessions and the threads that tools ran on, and has FastMCP forget the tools."""
        self.closed = True
        libraries = (self.library, *self._of_mode.values())
        for library in libraries:
            library.sessions.close()
        self.executor.close()
        for library in libraries:
            forget_functions(library.functions().values())

    def _find(self, name: str, mode: str) -> tuple[Library, Shortcut | None]:
        for library in self._libraries(mode):
            shortcut = library.shortcut(name)
            if shortcut is not None:
                return library, shortcut
            if library is not self.library and name in library.functions():
                return library, None
        return self.library, None

    def _asking(
        self, library: Library, name: str, arguments: dict[str, Any], mode: str
    ) -> Callable[[], Coroutine[Any, Any, McpToolResult]]:
        """A call through the server, which may have tools from elsewhere."""

        async def ask() -> McpToolResult:
            try:
                return await library.call(name, arguments)
            except ToolFault as fault:
                there = [listed.tool.name for listed in await self.tools_async(mode)]
                raise fault if name in there else not_found_error(name, there) from fault

        return ask

    def _libraries(self, mode: str) -> list[Library]:
        """The libraries of a mode; the first has precedence."""
        return [self._of_mode[mode], self.library] if mode in self._of_mode else [self.library]


async def _within(timeout_s: float | None, work: Awaitable[T]) -> T:
    """Awaits with a time limit. Raises `ToolDeadlineExceeded`."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise ToolDeadlineExceeded from None
        raise


_run_without_loop = partial(
    run_without_loop, otherwise="a synchronous tool waits for an event loop: declare it with async def"
)
