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
    _begun: bool = False
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
            self._begun = True
            try:
                for each in self._manifests():
                    await access.cluster.create(each)
            except OpenEnvError:
                self._begun = access.cluster.api.reached  # where there is no cluster, there is nothing of it
                raise
            self._made = True

    async def unmake(self, access: Access) -> None:
        """Deletes what there may be of them.

        Raises:
            ProviderFailed: The cluster does not do it.
        """
        if self._begun:
            for each in reversed(self._manifests()):
                await access.cluster.delete(each["kind"], each["metadata"]["name"])
            self._begun = self._made = False

    def _manifests(self) -> list[Manifest]:
        options = self.workload.options
        found = [manifests.secret(self.workload)]
        if options.policy:
            found.append(manifests.network_policy(self.workload))
        if options.prepull:
            found.append(manifests.prepull(self.workload))
        return found
