"""Runs coroutines for synchronous callers, on one event loop in a thread that all clients of a process share."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from inspect import iscoroutine
from typing import Any, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from .._exceptions import keep_running
from ..errors import UsageError

T = TypeVar("T")
# Seconds for clients that were left open when the process ends.
EXIT_TIMEOUT_S = 3.0


class PortalClient(Protocol):
    """What a portal closes when it is closed."""

    async def _close(self) -> None: ...


class Portal:
    """An event loop on a thread of its own.

    Attributes:
        loop: The event loop.
        clients: Clients whose connections may live here; they are closed with the portal.
    """

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.clients: WeakSet[PortalClient] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="openenv-portal", daemon=True)
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        """Closes the clients, stops the loop and waits for its thread."""
        self._run_for(EXIT_TIMEOUT_S, self._farewell())
        # Connections whose clients nobody has any more: what still runs for them would complain to the terminal.
        self._run_for(EXIT_TIMEOUT_S, _cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run_for(self, patience_s: float, call: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(call, self.loop).result(patience_s)

    async def _farewell(self) -> None:
        await asyncio.gather(*(client._close() for client in list(self.clients)), return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        keep_running(self.loop.run_forever)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _PortalState:
    """What this process has of portals: one, or none yet."""

    lock = threading.Lock()
    portal: Portal | None = None


def portal() -> Portal:
    """The portal of this process, made when it is first asked for."""
    with _PortalState.lock:
        if _PortalState.portal is None:
            _PortalState.portal = Portal()
        return _PortalState.portal


def close_with_portal(client: PortalClient, loop: asyncio.AbstractEventLoop) -> None:
    """Has a client closed together with the portal, if its connection lives there."""
    own = _PortalState.portal
    if own is not None and own.loop is loop:
        own.clients.add(client)


def check_other_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises `UsageError` on the very loop that a synchronous call would have to wait for."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise UsageError("a synchronous call on the event loop it needs: await the asynchronous client there")


def run_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a loop of another thread and waits for it.

    An interrupt (Ctrl-C) cancels the coroutine.

    Raises:
        UsageError: The loop is this thread's own, which would wait for itself.
    """
    try:
        check_other_loop(loop)
    except UsageError:
        call.close()
        raise
    future = submit_to(loop, call)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def submit_to(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> Future[T]:
    """Has a coroutine run on a loop of another thread.

    Raises:
        UsageError: The loop does not run, so nobody would ever execute the call.
    """
    if not loop.is_running():
        call.close()
        raise UsageError("the event loop that holds this client's connection does not run: close the client there")
    return asyncio.run_coroutine_threadsafe(call, loop)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _forget() -> None:
    """After a fork: the thread stayed in the parent, and the lock may have been held."""
    _PortalState.lock = threading.Lock()
    _PortalState.portal = None


@atexit.register
def _close() -> None:
    if _PortalState.portal is not None:
        _PortalState.portal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


P = ParamSpec("P")


class LoopBound:
    """A client whose calls await in a running event loop, and block without one or inside `with`."""

    def _settle(self) -> None:
        """Begins without a home."""
        self._home: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._connecting = asyncio.Lock()
        self._claiming = threading.Lock()
        self._blocking = False

    def blocking(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs one of this client's coroutines to its end, from a thread that may wait."""
        return run_on(self._claim(portal().loop), call)

    def waited(self, method: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a method of this client gives in the end, whichever way its class has it, for a thread that may wait.

        Raises:
            UsageError: On the event loop of the connection, which would wait for itself.
        """
        if self._home is not None:
            check_other_loop(self._home)
        return cast("T", self.settled(method(*args, **kwargs)))

    def settled(self, given: Any) -> Any:
        """What a method has given: the result of a coroutine, anything else as it is."""
        return self.blocking(given) if iscoroutine(given) else given

    async def _close(self) -> None:
        raise NotImplementedError

    def _cut(self, reason: str) -> None:
        """The home is gone, and the connection with it."""
        raise NotImplementedError

    def _offered(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """A coroutine for a caller who can await, its result for one who cannot."""
        try:
            running = asyncio.get_running_loop()
            # In a coroutine that a block has begun, as one of a subclass, there is no waiting for its own loop.
            blocking = self._blocking and self._home is not running
        except RuntimeError:
            blocking = True
        if blocking:
            return cast("Awaitable[T]", self.blocking(call))
        return self._routed(call)

    async def _routed(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a call on the event loop that the connection lives on, when it is awaited."""
        running = asyncio.get_running_loop()
        home = self._claim(running)
        return await (call if home is running else asyncio.wrap_future(submit_to(home, call)))

    def _claim(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """The event loop that the connection lives on, or shall live on: the first that asks."""
        with self._claiming:
            home = self._home_loop()
            if home is None:
                home = self._home = loop
                self._pid, self._connecting = os.getpid(), asyncio.Lock()
                close_with_portal(self, loop)
            return home

    def _home_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the connection lives on; where that is gone, so is the session."""
        if self._home is not None and self._home.is_closed():
            self._home = None
            self._cut("the event loop of its connection was closed")
        elif self._home is not None and self._pid != os.getpid():
            self._home = None
            self._cut("the connection is that of the process this one was forked from")
        return self._home
