"""Servers in containers on this machine's Docker engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from ..background import heard, on_thread
from ..errors import LaunchFailed, UsageError
from .blocking import BlockingContainers
from .capabilities import Capabilities
from .containers import Container, Containers, Network
from .deployment import Deployment, Server
from .docker_request import CONTAINER_PORT, LOOPBACK, NO_NETWORK, container_port, request
from .engine import connected
from .gpus import gpus_for
from .one_by_one import OneByOne
from .owner import OWNER, PROVIDER, Owner
from .pace import Pace
from .provider import FOR_ITS_OWNER, Leftover
from .pulling import PullProgress, pull
from .spec import LaunchSpec, Resources
from .warm import WarmPool

__all__ = ["CONTAINER_PORT", "LOOPBACK", "LocalDockerProvider"]

T = TypeVar("T")
# For so long, what runs at the engine is taken to run.
GLANCE_S = 0.2


class LocalDockerProvider(BlockingContainers, OneByOne):
    """Runs containers that this machine alone reaches: their port is published on loopback. (Extra `docker`.)

    What is still there when the process ends is removed then; `openenv providers gc` removes what a killed one left.

    Options (of a `LaunchSpec`, of `start_container`, or of the provider for all of its containers) are the arguments
    of `docker.containers.create` (`mem_limit`, `command`, `volumes`, `user`, `read_only`, `tmpfs`, `shm_size`,
    `runtime`, `platform`, `cap_add`, `cap_drop`, ...), `host_port` (of this machine) and `container_port`. With
    `network="none"` a container has no network but a line to this machine, which uses the container's own address.
    With `read_only=True` it has a /tmp in memory. Capabilities are dropped but those of an image that begins as root
    (`cap_drop=["ALL"]` drops these, too), and new privileges are not to be had.

    Args:
        image: Of the warm containers.
        warm: How many containers of `image` are kept ready for whoever asks next; 0: none. See `pool`.
        env_vars: Environment variables of every server.
        resources: What each server may use, where its specification says nothing.
        ready_timeout_s: Seconds that servers have to become ready, where nobody says otherwise.
        pace: How fast containers are started.
        progress: Told how far the fetching of an image has come, on another thread.
        options: Options of every container.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine.
        UsageError: `warm` without `image`.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image"}), gpus=True, limits=frozenset({"cpus", "memory", "processes"}), options=None
    )

    def __init__(
        self,
        image: str | None = None,
        *,
        warm: int = 0,
        env_vars: Mapping[str, str] | None = None,
        resources: Resources | None = None,
        ready_timeout_s: float = 60.0,
        pace: Pace | None = None,
        progress: Callable[[PullProgress], object] | None = None,
        **options: Any,
    ):
        if warm < 0 or (warm and image is None):
            raise UsageError(
                f"warm={warm}: a number of containers, and their image: LocalDockerProvider(image, warm=4)"
            )
        self.variables = {**FOR_ITS_OWNER, **(env_vars or {})}
        self.ready_timeout_s = ready_timeout_s
        self.pace = pace or Pace()
        self.pool: WarmPool | None = None
        self._resources = resources or Resources()
        self._options = options
        self._progress = progress
        self._pulling: asyncio.Lock | None = None
        self._checked: set[str] = set()
        self._seen: asyncio.Future[frozenset[str]] | None = None
        self._seen_at = 0.0
        self._engine = connected()
        self._containers = Containers(self._engine)
        self._owner = os.getpid()
        if warm:
            assert image is not None
            self.pool = WarmPool(self, self._whole(self._spec(image, None, {}, {})), warm)

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`; a warm one, where one is ready that is as `spec` says."""
        whole = self._whole(spec)
        if self.pool is not None and whole == self.pool.spec:
            taken = self.pool.take()
            if taken is not None:
                return taken
        _check_several(whole, whole.count)
        return super().deployment(whole)

    def close(self) -> None:
        """Stops what runs and what is warm, and leaves the engine."""
        if os.getpid() != self._owner:
            return
        try:
            self.stop_container()
        finally:
            if self.pool is not None:
                self.pool.close()
            self._engine.close()

    def _spec(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if port is not None:
            options["host_port"] = port
        return LaunchSpec(image=image, env_vars=env_vars, options=options)

    def _whole(self, spec: LaunchSpec) -> LaunchSpec:
        """A specification with what is said for every container."""
        options = {**self._options, **spec.options}
        inside = options.pop("container_port", None)
        resources = self._resources if spec.resources == Resources() else spec.resources
        return spec.changed(options=options, port=spec.port or inside, resources=resources)

    # On the loop of this process.

    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        _check_several(deployment.spec, replicas)
        if replicas:
            await self._prepare(deployment)
        await super()._resize(deployment, replicas)
        network: Network | None = deployment.handle
        if not replicas and network is not None:
            await self._do(network, lambda: self._containers.remove_network(network.name))
            deployment.handle = None

    async def _prepare(self, deployment: Deployment) -> None:
        options = deployment.spec.options
        runtime = options.get("runtime")
        if runtime is not None and runtime not in self._checked:
            await on_thread(lambda: self._containers.check_runtime(runtime))
            self._checked.add(runtime)
        if deployment.servers:
            await self._survey(deployment)  # warm ones may have broken while they waited
        if NO_NETWORK in {options.get("network"), options.get("network_mode")} and deployment.handle is None:
            deployment.handle = network = Network(deployment.name)
            labels = deployment.labels
            await self._do(network, lambda: self._containers.add_network(network.name, labels))

    async def _start_one(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        server.name = spec.options.get("name", server.name)
        container = Container(server.name, deployment.name, deployment.variables, gpus_for(deployment))
        server.handle = container
        network = None if deployment.handle is None else deployment.handle.name
        given = request(deployment, server, container.gpus, network)
        image = str(spec.image)
        if not await self._do(container, lambda: self._containers.create(container, image, given)):
            await self._fetch(image, given.get("platform"), deployment.variables)
            if not await self._do(container, lambda: self._containers.create(container, image, given)):
                raise LaunchFailed(f"{image} was pulled, and is not there: is it for another platform?")
        facts = (image, container_port(spec), network, "host_port" not in spec.options)
        server.url = await self._do(container, lambda: self._containers.start(container, *facts))

    async def _stop_one(self, server: Server) -> None:
        container: Container | None = server.handle
        if container is not None:
            await self._do(container, lambda: self._containers.remove(container))

    async def _gone(self, server: Server) -> str | None:
        container: Container | None = server.handle
        if container is None:
            return "was stopped"
        if container.id in await self._running():
            return None
        return await on_thread(lambda: self._containers.end_of(container))

    async def _survey(self, deployment: Deployment) -> None:
        self._seen = None  # what was seen before is not asked for
        await super()._survey(deployment)

    async def _running(self) -> frozenset[str]:
        """Containers of this process that run. One question for all who ask: many may, while many start."""
        now = asyncio.get_running_loop().time()
        if self._seen is None or now - self._seen_at > GLANCE_S:
            labels = {PROVIDER: type(self).__name__, OWNER: str(Owner.this())}
            self._seen = asyncio.ensure_future(on_thread(lambda: self._containers.running(labels)))
            self._seen.add_done_callback(heard)
            self._seen_at = now
        return await asyncio.shield(self._seen)

    async def _log(self, server: Server, lines: int) -> str:
        container: Container | None = server.handle
        return "" if container is None else await on_thread(lambda: self._containers.log(container, lines))

    async def _leftovers(self) -> list[Leftover]:
        return await on_thread(lambda: self._containers.labelled(type(self).__name__))

    async def _discard(self, leftover: Leftover) -> None:
        if leftover.kind == "network":
            await on_thread(lambda: self._containers.remove_network(str(leftover.handle)))
        else:
            found = Container(leftover.name, leftover.deployment, {}, id=leftover.handle)
            await on_thread(lambda: self._containers.remove(found))

    async def _do(self, what: Container | Network, call: Callable[[], T]) -> T:
        """Does one thing after the other to something, each to its end: what is half made could not be removed."""
        while what.work is not None and not what.work.done():
            await asyncio.wait([what.work])
        what.work = work = asyncio.ensure_future(on_thread(call))
        work.add_done_callback(heard)
        return await asyncio.shield(work)

    async def _fetch(self, image: str, platform: str | None, variables: Mapping[str, str]) -> None:
        if self._pulling is None:
            self._pulling = asyncio.Lock()
        async with self._pulling:  # the next one finds the image here
            if not await on_thread(lambda: self._containers.has(image)):
                await pull(self._engine, image, platform, self._progress, variables)


def _check_several(spec: LaunchSpec, count: int) -> None:
    if count > 1 and {"host_port", "name"} & spec.options.keys():
        raise UsageError("several containers cannot have one name or one port of this machine: leave out both")
