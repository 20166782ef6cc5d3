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
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakSet

from .._asyncio import BackgroundLoop, result_or_cancel
from ..errors import UsageError

T = TypeVar("T")
# Seconds for closing the clients that are open when the process ends.
EXIT_TIMEOUT_S = 3.0


class Portal(BackgroundLoop):
    """The loop of the clients of synchronous callers.

    Attributes:
        clients: Clients that may have connections here; they are closed with the portal.
    """

    def __init__(self) -> None:
        try:
            import uvloop
        except ImportError:
            loop = asyncio.new_event_loop()
        else:
            loop = uvloop.new_event_loop()
        super().__init__("openenv-portal", loop)
        self.clients: WeakSet[LoopBound] = WeakSet()
        self.run(asyncio.sleep(0))  # from now on, `submit_to` finds that the loop runs

    def close(self) -> None:
        """Closes the clients, stops the loop and waits for its thread."""

        async def close_clients() -> None:
            await asyncio.gather(*(client._close() for client in list(self.clients)), return_exceptions=True)

        async def cancel_tasks() -> None:  # of connections without a client: asyncio would warn of them
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if not self._thread.is_alive():  # foreign code has stopped the loop, which is closed then
            return
        for last in (close_clients, cancel_tasks):
            with contextlib.suppress(TimeoutError):
                self.submit(last()).result(EXIT_TIMEOUT_S)
        self.stop()
        self._thread.join()


class _PortalState:
    """The portal of this process, if it has one yet.

    Attributes:
        lock: Held while the portal is made.
        claiming: Held while a client takes an event loop.
    """

    lock = threading.Lock()
    claiming = threading.RLock()
    portal: Portal | None = None


def portal() -> Portal:
    """The portal of this process, made when it is first asked for."""
    with _PortalState.lock:
        if _PortalState.portal is None:
            _PortalState.portal = Portal()
        return _PortalState.portal


def check_other_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises `UsageError` on the loop that a synchronous call would wait for."""
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
        UsageError: The loop runs on this thread, which would wait for itself.
    """
    try:
        check_other_loop(loop)
    except UsageError:
        call.close()
        raise
    return result_or_cancel(submit_to(loop, call))


def submit_to(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> Future[T]:
    """Has a coroutine run on a loop of another thread.

    Raises:
        UsageError: The loop does not run, so the call would wait forever.
    """
    if not loop.is_running():
        call.close()
        raise UsageError("the event loop that holds this client's connection does not run: close the client there")
    return asyncio.run_coroutine_threadsafe(call, loop)


def _forget() -> None:
    """After a fork: the thread stayed in the parent, and the locks may have been held."""
    _PortalState.lock, _PortalState.claiming = threading.Lock(), threading.RLock()
    _PortalState.portal = None


@atexit.register
def _close() -> None:
    if _PortalState.portal is not None:
        _PortalState.portal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


P = ParamSpec("P")


class LoopBound:
    """The base of clients: calls await in a running event loop, and block without one or inside `with`."""

    def _unbind(self) -> None:
        """Begins without an event loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._connecting = asyncio.Lock()
        self._blocking = False

    def blocking(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs one of this client's coroutines to its end, from a thread that may wait."""
        return run_on(self._claim(portal().loop), call)

    def waited(self, method: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a method that returns it or a coroutine of it, for a thread that may wait.

        Raises:
            UsageError: On the event loop of the connection, which would wait for itself.
        """
        if self._loop is not None:
            check_other_loop(self._loop)
        return cast("T", self.settled(method(*args, **kwargs)))

    def settled(self, given: Any) -> Any:
        """The result of a coroutine; other values unchanged."""
        return self.blocking(given) if iscoroutine(given) else given

    async def _close(self) -> None:
        raise NotImplementedError

    def _cut(self, reason: str) -> None:
        """Handles the loss of the event loop and its connection."""
        raise NotImplementedError

    def _offered(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """A coroutine for a caller that can await, else its result."""
        try:
            running = asyncio.get_running_loop()
            # A coroutine that the `with` block runs, such as a subclass's, must not wait for its own loop.
            blocking = self._blocking and self._loop is not running
        except RuntimeError:
            blocking = True
        if blocking:
            return cast("Awaitable[T]", self.blocking(call))
        return self._routed(call)

    async def _routed(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a call on the event loop of the connection, when it is awaited."""
        running = asyncio.get_running_loop()
        loop = self._claim(running)
        return await (call if loop is running else asyncio.wrap_future(submit_to(loop, call)))

    def _claim(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """The event loop of the connection, which is the first that asks."""
        mine = self._loop
        if mine is not None and self._pid == os.getpid() and not mine.is_closed():
            return mine
        # Reentrant: a finaliser that runs in here may close another client.
        with _PortalState.claiming:
            if self._loop is not None and self._loop.is_closed():
                self._loop = None
                self._cut("the event loop of its connection was closed")
            elif self._loop is not None and self._pid != os.getpid():
                self._loop = None
                self._cut("the connection is that of the process this one was forked from")
            if self._loop is None:
                self._loop, self._pid, self._connecting = loop, os.getpid(), asyncio.Lock()
                if _PortalState.portal is not None and _PortalState.portal.loop is loop:
                    _PortalState.portal.clients.add(self)
            return self._loop
