"""What a provider has of a cluster while it has servers there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from ...errors import ProviderFailed
from ..deployment import Deployment
from ..owner import OWNER, Owner
from .api import SERVICE_ACCOUNT, Api
from .cluster import Cluster, Manifest
from .watch import PodWatch

__all__ = ["Access"]

# Seconds between two looks whether a Pod is gone, at first and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
# The same for one that is watched.
GLANCE_S = 5.0
# Seconds for a Pod to be gone, beyond those that it has for its end; and when it is only to be forgotten.
BEYOND_END_S, FORGET_S = 10.0, 10.0
# For so long at most, the first Pod waits for the list of those that there are: then none has to be asked about.
LISTING_S = 5.0


class Access:
    """A cluster, and what it tells of the Pods of this process. Belongs to one event loop.

    Args:
        namespace, kubeconfig, context: As for `Api`.

    Attributes:
        loop: The event loop.
        deployments: What has servers there; without any, nothing is watched and no connection is kept
            beyond a visit.
    """

    def __init__(self, namespace: str | None, kubeconfig: str | Path | None, context: str | None):
        self.loop = asyncio.get_running_loop()
        self.cluster = Cluster(Api(namespace, kubeconfig, context))
        self.watch = PodWatch(self.cluster, f"{OWNER}={Owner.this()}")
        self.deployments: set[Deployment] = set()
        self._visits = 0

    def enter(self, deployment: Deployment) -> None:
        """Watches the Pods of a deployment from now on."""
        self.deployments.add(deployment)
        self.watch.start()

    async def leave(self, deployment: Deployment) -> None:
        """Watches a deployment no longer."""
        self.deployments.discard(deployment)
        await self._disconnect()

    @contextlib.asynccontextmanager
    async def visit(self) -> AsyncIterator[Cluster]:
        """The cluster, for what belongs to no deployment of this process."""
        self._visits += 1
        try:
            yield self.cluster
        finally:
            self._visits -= 1
            await self._disconnect()

    async def look(self, name: str) -> Manifest | None:
        """A Pod of this process, as far as is known; None if it is gone.

        Raises:
            ProviderFailed: The cluster has been silent for long.
        """
        self.watch.check()
        known, losses = self.watch.pods.get(name), self.watch.losses
        if known is None:
            known = await self.cluster.get("Pod", name)
            if known is not None:
                self.watch.note(known, losses)
        return known

    async def create(self, manifest: Manifest) -> None:
        """Creates a Pod, and knows of it from then on. Raises as `Cluster.create` does."""
        await self.watch.until(lambda: self.watch.listed, LISTING_S)
        losses = self.watch.losses
        self.watch.note(await self.cluster.create(manifest), losses)

    async def remove(self, name: str, termination_s: float, uid: str | None = None) -> None:
        """Deletes a Pod and waits until it is gone. One that does not end is forgotten.

        Raises:
            ProviderFailed: It is still there.
        """
        for grace_s, patience_s in ((None, termination_s + BEYOND_END_S), (0, FORGET_S)):
            await self.cluster.delete("Pod", name, uid=uid, grace_s=grace_s)
            if await self._vanished(name, uid, patience_s):
                return
        raise ProviderFailed(f"Pod {name} was deleted, and is still there: look at its finalizers")

    async def own_pod(self) -> Manifest | None:
        """The Pod that this process runs in, if it is in the same namespace: to be named as an owner."""
        try:
            here = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        if here != await self.cluster.api.namespace():
            return None
        return await self.cluster.get("Pod", socket.gethostname())

    async def _disconnect(self) -> None:
        """Ends what nobody needs any more."""
        if not self.deployments:
            await self.watch.stop()
        if not self.deployments and not self._visits:
            await self.cluster.api.aclose()

    async def _vanished(self, name: str, uid: str | None, limit_s: float) -> bool:
        pause, limit = FIRST_PAUSE_S, self.loop.time() + limit_s
        while True:
            found = await self.cluster.get("Pod", name)
            if found is None or (uid is not None and found["metadata"]["uid"] != uid):
                return True
            if self.loop.time() > limit:
                return False
            if self.deployments:  # what is watched is told of, and seldom has to be asked for
                await self.watch.until(lambda: name not in self.watch.pods, min(limit - self.loop.time(), GLANCE_S))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
