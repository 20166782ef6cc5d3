"""FastMCP's `Context`, in a session of ours."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from .session import McpSessions, in_request

__all__ = ["in_fastmcp_request", "late_context"]


@contextlib.contextmanager
def in_fastmcp_request(context: Any) -> Iterator[Any]:
    """Has FastMCP find the context of a request, for the length of a block; gives it as `Context` has it."""
    bind = getattr(import_module("fastmcp.server.dependencies"), "bind_request_context", None)
    if bind is None:  # before version 4
        with in_request(context):
            yield context
    else:
        with bind(context) as bound:
            yield bound


class _Late:
    """A context whose session is opened when one of its coroutines needs it."""

    _sessions: McpSessions
    _number: int | None = None
    _request: Any = None

    @property
    def request_context(self) -> Any:
        return self._request or super().request_context  # type: ignore[misc]

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
        return super().session  # type: ignore[misc]

    async def enter_session(self) -> None:
        if self._request is None:
            opened = await self._sessions.open()
            with in_fastmcp_request(opened.request(int(self.request_id))) as request:
                self._request = request


@functools.cache
def late_context() -> Callable[[Any, McpSessions], Any]:
    """Makes the context of a tool that takes none, of its server and its sessions.

    Code that such a tool calls may ask for it (`get_context`). Most tools do not, so that a session for each of them
    would be a waste.
    """
    from fastmcp.server.context import Context

    def make(self: Any, server: Any, sessions: McpSessions) -> None:
        Context.__init__(self, fastmcp=server)
        self._sessions = sessions

    coroutines = {
        name: _in_late_session(method)
        for name, method in vars(Context).items()
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    }
    return type("LateContext", (_Late, Context), {"__init__": make, **coroutines})


def _in_late_session(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        await self.enter_session()
        return await method(self, *args, **kwargs)

    return called
