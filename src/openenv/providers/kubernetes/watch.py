"""The Pods that somebody has on a cluster, as it tells of them: one connection, however many there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing

from ...errors import ProviderFailed
from .cluster import Cluster, Expired, Manifest

__all__ = ["PodWatch"]

# Seconds between two attempts to be told again, at first and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
PATIENCE_S = 60.0
"""Seconds that a cluster may be silent before its Pods are no longer known."""


class PodWatch:
    """Follows Pods by their labels. Belongs to one event loop.

    Args:
        cluster: Where they are.
        selector: Their labels, as the API has it.

    Attributes:
        pods: What is known of each that there is, by its name.
        losses: How often it was told of Pods that are gone, or of all that there are.
        listed: Whether it knows those that were there when it began, and is told of what comes then.
    """

    def __init__(self, cluster: Cluster, selector: str):
        self.pods: dict[str, Manifest] = {}
        self.losses = 0
        self.listed = False
        self._cluster = cluster
        self._selector = selector
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._trouble: ProviderFailed | None = None
        self._deaf_since = 0.0

    def start(self) -> None:
        """Begins to follow, if it does not yet."""
        if self._following is None or self._following.done():
            self._following = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        """Follows no longer, and forgets."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        self.pods.clear()
        self.listed = False
        self._trouble = None

    def note(self, pod: Manifest, losses: int) -> None:
        """Takes a Pod of which nothing may have been told yet, as the answer to a request has it.

        Args:
            pod: The Pod.
            losses: Those before the request: an answer that is older than one may be of a Pod that is gone.
        """
        if losses == self.losses:
            self.pods.setdefault(pod["metadata"]["name"], pod)
            self._tell()

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Waits for something to hold; asks again whenever a Pod has changed.

        Returns:
            Whether it does, within `limit_s` seconds.

        Raises:
            ProviderFailed: The cluster has been silent for long.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    self.check()
                    changed = self._changed
                    # Looks up without a change, too: the silence may have lasted long enough.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LONGEST_PAUSE_S):
                            await changed.wait()
        except TimeoutError:
            return holds()
        return True

    def check(self) -> None:
        """Raises `ProviderFailed` if nobody knows any more what has become of the Pods."""
        if self._following is not None and self._following.done():
            self._following.result()  # a fault of this module
        if self._trouble is not None and asyncio.get_running_loop().time() - self._deaf_since > PATIENCE_S:
            raise self._trouble

    async def _follow(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                items, version = await self._cluster.find("Pod", labelSelector=self._selector)
                self.pods = {pod["metadata"]["name"]: pod for pod in items}
                self.losses += 1
                self.listed = True
                self._tell()
                pause, self._trouble = FIRST_PAUSE_S, None
                while True:
                    version = await self._events(version)
                    await asyncio.sleep(FIRST_PAUSE_S)
            except Expired:
                continue
            except ProviderFailed as error:
                if self._trouble is None:
                    self._deaf_since = asyncio.get_running_loop().time()
                self._trouble = error
            self._tell()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _events(self, version: str) -> str:
        """Takes what is told until the question has to be asked anew; the version to ask from."""
        async with aclosing(self._cluster.watch("Pod", version, labelSelector=self._selector)) as events:
            async for happened, pod in events:
                version = pod["metadata"].get("resourceVersion", version)
                if happened == "DELETED":
                    self.pods.pop(pod["metadata"]["name"], None)
                    self.losses += 1
                elif happened != "BOOKMARK":
                    self.pods[pod["metadata"]["name"]] = pod
                self._tell()
        return version

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
