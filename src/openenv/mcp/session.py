"""MCP sessions inside an environment: a tool's `Context` belongs to one.

A tool with a `Context` logs, reports progress and keeps state in an MCP session. So each server of tools has a client
in the same process. Calls do not pass through that client, which would take milliseconds: they run where they are
made, in the context of one request that stays open for as long as the session does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import Context, ContextVar
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from .._asyncio import shielded
from .types import message_of

logger = logging.getLogger("openenv.mcp")

# Seconds that `close` waits for sessions on other threads: their servers may have something to clean up.
CLOSE_S = 2.0
# Seconds between a loop's checks for its turn.
TURN_POLL_S = 0.001
# FastMCP stores the session id under this name, in an object that lasts as long as the session.
_STATE_PREFIX = "_fastmcp_state_prefix"


class McpSession:
    """One session of a server with its client, on the event loop that makes it.

    Args:
        server: The server of tools.
        session_id: The `session_id` that tools get.
    """

    def __init__(self, server: Any, session_id: str):
        self._id = session_id
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[OpenSession] = self._loop.create_future()
        self._ending = asyncio.Event()
        # In its own context: the session is not part of the call that happens to come first.
        self._task = self._loop.create_task(self._run(server), context=Context())

    @property
    def usable(self) -> bool:
        """Whether calls may use it: it is open, or about to be."""
        return not (self._task.done() or self._ending.is_set())

    async def opened(self) -> OpenSession:
        """Waits until the session is open. Raises the error that prevents that."""
        return await shielded(self._opened)

    def end(self) -> None:
        """Lets the session end. To be called on its loop."""
        self._ending.set()

    async def aclose(self) -> None:
        """Ends the session and waits until its server has cleaned up. To be called on its loop."""
        self.end()
        await asyncio.wait([self._task])

    async def _run(self, server: Any) -> None:
        request = _OpenRequest()
        _open_request.set(request)
        try:
            async with _connected(server) as client:
                ping = self._loop.create_task(getattr(client, "session", client).send_ping())
                ping.add_done_callback(self._cut)
                try:
                    context = await request.context_or_failure_of(ping)
                    # Where each version of FastMCP looks it up.
                    connection = getattr(context.session, "_connection", None)
                    if connection is None:
                        setattr(context.session, _STATE_PREFIX, self._id)
                    else:
                        connection.state[_STATE_PREFIX] = self._id
                    self._opened.set_result(OpenSession(client, context))
                    await self._ending.wait()
                finally:
                    ping.cancel()
        except BaseException as error:
            if not self._opened.done():
                if not isinstance(error, Exception):  # it would end the coroutine that waits
                    error = RuntimeError(f"{type(error).__name__}: {message_of(error)}")
                self._opened.set_exception(error)
                self._opened.exception()  # the call that waits for it may have been given up
            elif not isinstance(error, asyncio.CancelledError):
                logger.error("the MCP session of the tools ended with an error", exc_info=error)

    def _cut(self, ping: asyncio.Task[Any]) -> None:
        """The request has ended before the session: nothing can run in its context any more."""
        if not ping.cancelled():
            ping.exception()
        self._ending.set()


class OpenSession(NamedTuple):
    """An open session.

    Attributes:
        client: Its client.
        context: The SDK's context of the request that stays open.
    """

    client: Any
    context: Any

    def request(self, number: int) -> Any:
        """The SDK's context of a request with that number."""
        return dataclasses.replace(self.context, request_id=number)


class McpSessions:
    """The sessions of one server of tools for one environment: one for each event loop that tools run on.

    Tools see one session: it keeps its `session_id`, and so its state, until the environment closes.

    Args:
        server: The server of tools.

    Attributes:
        id: The `session_id` that tools get.
    """

    def __init__(self, server: Any):
        self.id = str(uuid4())
        self._server = server
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, McpSession] = {}

    def number(self) -> int:
        """The number of a new request."""
        return next(self._numbers)

    @property
    def open_here(self) -> bool:
        """Whether the running event loop has a session."""
        session = self._by_loop.get(asyncio.get_running_loop())
        return session is not None and session.usable

    @property
    def is_open(self) -> bool:
        """Whether a running event loop has a session."""
        with self._lock:
            return any(session.usable and loop.is_running() for loop, session in self._by_loop.items())

    async def open(self) -> OpenSession:
        """The session of the running event loop, which is opened if there is none.

        Raises:
            RuntimeError: It cannot be opened; the error says why.
        """
        try:
            return await self._session().opened()
        except Exception as error:  # the edge to foreign code: a server's lifespan may raise anything
            what = f"the MCP session of the tools could not be opened: {type(error).__name__}: {error}"
            raise RuntimeError(what) from error

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """The client of the session; a session that is opened for it ends with it."""
        kept = self.open_here
        session = self._session()
        client = (await self.open()).client
        try:
            yield client
        finally:
            if not kept:
                await session.aclose()

    def close(self) -> None:
        """Ends all sessions, and waits a moment for those on the loops of other threads."""
        with self._lock:
            sessions, self._by_loop = self._by_loop, {}
        for loop, session in sessions.items():
            if loop.is_closed():
                continue
            if not loop.is_running() or loop is asyncio._get_running_loop():
                loop.call_soon_threadsafe(session.end)
                continue
            closing = asyncio.run_coroutine_threadsafe(session.aclose(), loop)
            # What its server's lifespan raises here has no reader; the task reports it.
            with contextlib.suppress(Exception):
                closing.result(CLOSE_S)

    def _session(self) -> McpSession:
        loop = asyncio.get_running_loop()
        with self._lock:
            session = self._by_loop.get(loop)
            if session is None or not session.usable:
                for closed in [other for other in self._by_loop if other.is_closed()]:
                    del self._by_loop[closed]
                session = self._by_loop[loop] = McpSession(self._server, self.id)
            return session


class _OpenRequest:
    """A request that its server does not answer before the session ends."""

    def __init__(self) -> None:
        self._context: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def hold(self, context: Any) -> None:
        """Called where the server handles the request."""
        if not self._context.done():
            self._context.set_result(context)
            await asyncio.Event().wait()

    async def context_or_failure_of(self, request: asyncio.Task[Any]) -> Any:
        """The context in which the server handles the request. Raises the error of a failed request."""
        await asyncio.wait([self._context, request], return_when=asyncio.FIRST_COMPLETED)
        if not self._context.done():
            request.result()
            raise RuntimeError("the server answered a ping without its handler")
        return self._context.result()


_open_request: ContextVar[_OpenRequest | None] = ContextVar("openenv_mcp_request", default=None)
_prepared: WeakSet[Any] = WeakSet()
_preparing = threading.Lock()


def _prepare_handlers(handlers: dict[Any, Callable[[Any], Awaitable[Any]]]) -> None:
    from mcp.server.lowlevel.server import request_ctx
    from mcp.types import PingRequest

    answer = handlers[PingRequest]

    async def handle(request: Any) -> Any:
        held = _open_request.get()
        if held is not None:
            await held.hold(request_ctx.get())
        return await answer(request)

    handlers[PingRequest] = handle


async def _hold_ping(context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    held = _open_request.get()
    if held is not None and context.method == "ping":
        await held.hold(context)
    return await call_next(context)


def client_of(server: Any) -> contextlib.AbstractAsyncContextManager[Any]:
    """A client of a server in this process, connected for the length of an `async with` block."""
    low_level = getattr(server, "_lowlevel_server", None) or server._mcp_server
    is_first = hasattr(low_level, "request_handlers")
    with _preparing:
        # The server holds the one ping that carries a session. Other pings are answered as usual.
        if low_level not in _prepared:
            _prepared.add(low_level)
            if is_first:
                _prepare_handlers(low_level.request_handlers)
            else:  # from version 2 of the SDK
                low_level.middleware.insert(0, _hold_ping)
    # Version 2 of the SDK has connections without a session, unless it is asked for the handshake.
    handshake = {} if is_first else {"mode": "legacy"}
    client: contextlib.AbstractAsyncContextManager[Any]
    try:
        from fastmcp import Client
    except ImportError:
        if is_first:
            from mcp.shared.memory import create_connected_server_and_client_session

            client = create_connected_server_and_client_session(low_level)
        else:
            client = import_module("mcp.client.client").Client(server, **handshake)
    else:
        client = Client(server, **handshake)
    return client


@contextlib.asynccontextmanager
async def _connected(server: Any) -> AsyncIterator[Any]:
    connection = client_of(server)
    async with _turn(server):
        client = await connection.__aenter__()
    try:
        yield client
    finally:
        async with _turn(server):
            await connection.__aexit__(None, None, None)


# Several environments may share a server. One session at a time is set up or cleaned up there: servers guard their
# lifespan by locks of asyncio, which do not work between event loops. By server, the loop that has its turn.
_turns: WeakKeyDictionary[Any, asyncio.AbstractEventLoop] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def _turn(server: Any) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    # Polled: an event that would wake this loop belongs to another one, which may have stopped.
    while True:
        with _preparing:
            holder = _turns.get(server)
            # A loop that has stopped in its turn does not keep the others waiting.
            if holder is None or not holder.is_running():
                _turns[server] = loop
                break
        await asyncio.sleep(TURN_POLL_S)
    try:
        yield
    finally:
        with _preparing:
            if _turns.get(server) is loop:
                del _turns[server]


@contextlib.contextmanager
def in_request(context: Any) -> Iterator[None]:
    """Lets the first version of the SDK find the context of a request during a block."""
    from mcp.server.lowlevel.server import request_ctx

    token = request_ctx.set(context)
    try:
        yield
    finally:
        request_ctx.reset(token)
