"""Places that start servers one by one."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable

from ..cleanup import kept
from ..errors import LaunchFailed, ProviderBusy
from .deployment import Deployment, Server
from .provider import Provider

__all__ = ["OneByOne"]


class OneByOne(Provider):
    """A place that starts servers one by one."""

    @abstractmethod
    async def _start_one(self, deployment: Deployment, server: Server) -> None:
        """Starts a server and sets its `url`. When this is cancelled or fails, `_stop_one` is called for it.

        Raises:
            LaunchFailed: It cannot be done (`ProviderBusy`: at the moment, it is tried again).
        """

    @abstractmethod
    async def _stop_one(self, server: Server) -> None:
        """Stops a server and removes all of it, however far its start came. May be called repeatedly."""

    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        there = [server for server in deployment.servers if server.gone is None]
        kept = there[:replicas]
        await _all(*(self._end(deployment, server) for server in deployment.servers if server not in kept))
        missing = range(replicas - len(kept))
        await _all(*(self.pace.start(lambda: self._begin(deployment)) for _ in missing))

    async def _begin(self, deployment: Deployment) -> None:
        server = deployment.new_server()
        try:
            await self._start_one(deployment, server)
        except BaseException as error:
            with kept(error):
                await self._end(deployment, server)
            if server in deployment.servers:
                server.gone = "did not start, and could not be removed"
                if isinstance(error, ProviderBusy):  # no second one beside it
                    raise LaunchFailed(f"{error.message} (and what was begun could not be removed)") from error
            raise

    async def _end(self, deployment: Deployment, server: Server) -> None:
        await self._stop_one(server)
        deployment.servers.remove(server)


async def _all(*calls: Awaitable[None]) -> None:
    """Runs calls together, all to their end, and raises the first failure then."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failure = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failure is not None:
        raise failure
