"""What the servers of a deployment have in common on a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from ...errors import OpenEnvError
from . import manifests
from .access import Access
from .cluster import Manifest
from .workload import Workload

__all__ = ["Belongings"]


@dataclass(eq=False)
class Belongings:
    """A Secret, perhaps a NetworkPolicy and a DaemonSet: made before the first server, removed after the last.

    Attributes:
        workload: What they belong to.
    """

    workload: Workload
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)
    # What may be on the cluster.
    _there: list[Manifest] = field(default_factory=list)
    _made: bool = False

    async def make(self, access: Access) -> None:
        """Creates them, if that was not done.

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: at the moment).
        """
        async with self._making:
            if self._made:
                return
            own = await access.own_pod()
            if own is not None:
                self.workload = replace(self.workload, owner=own["metadata"])
            for each in self._manifests():
                if each not in self._there:
                    self._there.append(each)
                try:
                    await access.cluster.create(each)
                except OpenEnvError as error:
                    if not (error.retryable and access.cluster.api.reached):
                        self._there.remove(each)  # the cluster has refused it, or there is none
                    raise
            self._made = True

    async def unmake(self, access: Access) -> None:
        """Deletes what there may be of them.

        Raises:
            ProviderFailed: The cluster does not do it.
        """
        while self._there:
            each = self._there[-1]
            await access.cluster.delete(each["kind"], each["metadata"]["name"])
            self._there.remove(each)
        self._made = False

    def _manifests(self) -> list[Manifest]:
        options = self.workload.options
        found = [manifests.secret(self.workload)]
        if options.policy:
            found.append(manifests.network_policy(self.workload))
        if options.prepull:
            found.append(manifests.prepull(self.workload))
        return found
