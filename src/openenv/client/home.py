"""Where a client's connection lives: one event loop of one process, to which its calls find their way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

from .portal import portal, run_on, submit_to

__all__ = ["Homed"]

T = TypeVar("T")


class Homed:
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
        own = portal()
        home = self._claim(own.loop)
        if home is own.loop:
            own.clients.add(self)
        return run_on(home, call)

    async def _close(self) -> None:
        raise NotImplementedError

    def _cut(self, reason: str) -> None:
        """The home is gone, and the connection with it."""
        raise NotImplementedError

    def _call(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """A coroutine for a caller who can await, its result for one who cannot."""
        try:
            asyncio.get_running_loop()
            blocking = self._blocking
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
