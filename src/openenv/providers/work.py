"""What is done to the servers of a deployment: one thing at a time, until their removal, which ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..background import heard
from ..errors import ProviderFailed, UsageError

__all__ = ["Work"]

Call = Callable[[], Coroutine[Any, Any, None]]


class Work:
    """For the loop of this process.

    Args:
        name: Whose it is, for errors.

    Attributes:
        over: Whether the removal was begun: from now on nothing is started any more.
    """

    def __init__(self, name: str):
        self.over = False
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None

    async def settled(self, timeout_s: float) -> bool:
        """Waits until nothing is being done; False: something still is, after that time."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
        return self._task is None

    async def do(self, call: Call) -> None:
        """Does something when it is its turn. Whoever is cancelled has it cancelled, and waits for its end.

        Raises:
            UsageError: The removal was begun before.
            ProviderFailed: It was begun meanwhile.
        """
        if self.over:
            raise UsageError(f"{self._name} was stopped: launch another one")
        while self._task is not None:
            await asyncio.wait([self._task])
        if self.over:
            raise self._stopped()
        # A task of its own, for the removal to cancel.
        self._task = task = asyncio.ensure_future(call())
        task.add_done_callback(self._done)
        caller = asyncio.current_task()
        assert caller is not None
        requests = caller.cancelling()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and caller.cancelling() == requests:
                raise self._stopped() from None
            task.cancel()
            await asyncio.wait([task])
            raise

    async def remove(self, call: Call) -> None:
        """Ends what is being done, and does this. All who ask at one time have the same outcome; after a failure, it
        may be asked for again. Whoever is cancelled does not end it: what is half removed helps nobody.
        """
        self.over = True
        if self._removal is None:
            self._removal = asyncio.ensure_future(self._remove(call))
            self._removal.add_done_callback(self._removed)
        removal = self._removal
        try:
            await asyncio.shield(removal)
        except asyncio.CancelledError:
            await asyncio.wait([removal])
            raise

    async def _remove(self, call: Call) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await call()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        heard(task)

    def _removed(self, removal: asyncio.Task[None]) -> None:
        self._removal = None
        heard(removal)

    def _stopped(self) -> ProviderFailed:
        return ProviderFailed(f"{self._name} was stopped while its servers were being started")
