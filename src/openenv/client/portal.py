"""The way from synchronous code to an event loop: one thread for all synchronous clients of a process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from ..errors import UsageError
from ..interrupts import keep_running

__all__ = ["Portal", "check_elsewhere", "keep", "portal", "run_on", "submit_to"]

T = TypeVar("T")
# Seconds for clients that were left open when the process ends.
FAREWELL_S = 3.0


class Client(Protocol):
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
        self.clients: WeakSet[Client] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="openenv-portal", daemon=True)
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        """Closes the clients, stops the loop and waits for its thread."""
        self._run_for(FAREWELL_S, self._farewell())
        # Connections whose clients nobody has any more: what still runs for them would complain to the terminal.
        self._run_for(FAREWELL_S, _cancel_all())
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


class _Process:
    """What this process has of portals: one, or none yet."""

    lock = threading.Lock()
    portal: Portal | None = None


def portal() -> Portal:
    """The portal of this process, made when it is first asked for."""
    with _Process.lock:
        if _Process.portal is None:
            _Process.portal = Portal()
        return _Process.portal


def keep(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """Has a client closed together with the portal, if its connection lives there."""
    own = _Process.portal
    if own is not None and own.loop is loop:
        own.clients.add(client)


def check_elsewhere(loop: asyncio.AbstractEventLoop) -> None:
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
        check_elsewhere(loop)
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
    _Process.lock = threading.Lock()
    _Process.portal = None


@atexit.register
def _close() -> None:
    if _Process.portal is not None:
        _Process.portal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
