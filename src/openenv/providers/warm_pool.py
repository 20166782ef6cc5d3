"""A pool of deployments that are started before they are needed."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections import deque

from .._asyncio import on_shared, run_to_completion, shared_loop
from .._backoff import Backoff
from ..errors import NotReady, OpenEnvError, UsageError
from .base import Provider, gather_all
from .deployment import Deployment
from .spec import LaunchSpec

logger = logging.getLogger("openenv.providers")
# Seconds between two checks that the waiting deployments still run.
GLANCE_S = 2.0
# Seconds until the next start, so that it does not compete for processors with the deployment just taken.
RESPITE_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class WarmPool:
    """Keeps deployments of one specification ready at one provider, each with its own key.

    A caller that takes a deployment must stop it. The pool starts another in its place, at the provider's start
    rate. It also replaces deployments that break while they wait.

    Args:
        provider: The provider that starts them.
        spec: The specification of each deployment.
        size: Number of deployments that are kept ready.

    Raises:
        UsageError: `size` is less than 1, or the provider cannot start `spec`.
    """

    def __init__(self, provider: Provider, spec: LaunchSpec, size: int):
        if size < 1:
            raise UsageError(f"the size of a warm pool must be 1 or more, got {size!r}")
        provider.capabilities.check(type(provider).__name__, spec)
        self.spec = spec
        self.size = size
        self._provider = provider
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[Deployment] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._fault: OpenEnvError | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._changed = asyncio.Event()
        self._over = False
        self._keeper: asyncio.Task[None] | None = None
        shared_loop().submit(self._keep())
        atexit.register(
            self.close
        )  # must run before the deployments' exit hook, or the pool would replace stopped ones

    @property
    def count(self) -> int:
        """Number of deployments that are ready now."""
        return len(self._waiting)

    async def filled(self, timeout_s: float = 60.0) -> None:
        """Waits until all are ready.

        Raises:
            NotReady: Not in time.
            OpenEnvError: A start has failed; the error of the start.
        """
        await on_shared(self._filled(timeout_s))

    def wait_filled(self, timeout_s: float = 60.0) -> None:
        """Blocking form of `filled`."""
        shared_loop().run(self._filled(timeout_s))

    def take(self) -> Deployment | None:
        """Takes a ready deployment out of the pool. None if none is ready. May be called from any thread."""
        if os.getpid() != self._owner:
            return None  # a fork: the deployments belong to the parent
        with self._lock:
            taken = self._waiting.popleft() if self._waiting else None
        if taken is not None:
            shared_loop().loop.call_soon_threadsafe(shared_loop().loop.call_later, RESPITE_S, self._wake)
        return taken

    def close(self) -> None:
        """Stops the waiting deployments, and starts no more. May be called repeatedly."""
        atexit.unregister(self.close)
        if os.getpid() == self._owner:
            shared_loop().run(self._close())

    # On the loop of this process.

    async def _keep(self) -> None:
        self._keeper = asyncio.current_task()
        while not self._over:
            changed = self._changed
            for deployment in list(self._waiting):  # those that broke while they waited are removed
                try:
                    await deployment.refresh()
                except OpenEnvError:
                    continue  # its state is unknown
                if not any(server.gone for server in deployment.servers):
                    continue
                with self._lock:
                    if deployment not in self._waiting:
                        continue  # it was taken: the new owner's `start` restarts it
                    self._waiting.remove(deployment)
                await _stopped(deployment)
            for _ in range(self.size - self.count - len(self._starting)):
                task = asyncio.ensure_future(self._add())
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
                task.add_done_callback(lambda _: self._wake())
            with contextlib.suppress(TimeoutError):  # without a change, it is time for the next check
                async with asyncio.timeout(GLANCE_S):
                    await changed.wait()

    async def _add(self) -> None:
        await asyncio.sleep(self._backoff.pause_s)
        deployment = Deployment(self._provider, self.spec)
        try:
            await deployment.start()
            await deployment.ready()
        except OpenEnvError as error:
            self._fault = error
            logger.warning("a warm server could not be started, retrying in %g s: %s", self._backoff.grow(), error)
            await _stopped(deployment)
        except BaseException:
            await run_to_completion(_stopped(deployment))
            raise
        else:
            self._fault = None
            self._backoff.reset()
            deployment.allow_restart()
            with self._lock:
                self._waiting.append(deployment)

    async def _filled(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self.count < self.size:
                    if self._fault is not None:
                        raise self._fault
                    await self._changed.wait()
        except TimeoutError:
            raise NotReady(
                f"only {self.count} of {self.size} warm servers were ready within {timeout_s:g} s"
            ) from None

    async def _close(self) -> None:
        self._over = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])  # it may be starting or removing a deployment
        for task in list(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        with self._lock:
            left = list(self._waiting)
            self._waiting.clear()
        await gather_all(*(each.stop() for each in left))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _stopped(deployment: Deployment) -> None:
    try:
        await deployment.stop()
    except OpenEnvError as error:
        logger.warning(
            "%s could not be removed yet, trying again at the exit of the process: %s", deployment.name, error
        )
