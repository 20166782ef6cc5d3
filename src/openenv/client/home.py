"""Where a client's connection lives: one event loop of one process, to which its calls find their way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from inspect import iscoroutine
from typing import Any, ParamSpec, TypeVar, cast

from .portal import check_elsewhere, keep, portal, run_on, submit_to

__all__ = ["Homed"]

T = TypeVar("T")
P = ParamSpec("P")


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
        return run_on(self._claim(portal().loop), call)

    def waited(self, method: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a method of this client gives in the end, whichever way its class has it, for a thread that may wait.

        Raises:
            UsageError: On the event loop of the connection, which would wait for itself.
        """
        if self._home is not None:
            check_elsewhere(self._home)
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
                keep(self, loop)
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
