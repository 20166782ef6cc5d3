"""Servers as the tasks of a service of a Docker swarm: on many machines, restarted and replaced by the swarm."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from ..cleanup import kept
from ..errors import ProviderFailed, UsageError
from .blocking import BlockingContainers
from .capabilities import Capabilities
from .deployment import Deployment, Server
from .owner import DEPLOYMENT, OWNER, PROVIDER, Owner
from .pace import Pace
from .provider import Leftover
from .spec import LaunchSpec, Resources
from .swarm_manager import Manager
from .swarm_request import PUBLISH_MODES, PUBLISHED, STOP_S, mesh_works, service_of
from .swarm_service import GLANCE_S, Seat, Service

__all__ = ["DockerSwarmProvider"]

# Seconds that nodes have to end what they were told to, beyond the time that the servers have.
SLACK_S = 5.0


class DockerSwarmProvider(BlockingContainers):
    """Runs a service whose replicas are the servers. (Extra `docker`; DOCKER_HOST names a manager of the swarm.)

    Published by the mesh (`publish="ingress"`), a service is one server with one address. Otherwise each replica is a
    server with an address of its own, for a gateway or a client that chooses among them; `Deployment.refresh` follows
    those that the swarm has started anew, perhaps elsewhere. Where there are to be fewer, the swarm chooses which.

    `LaunchSpec.options` are `published_port`, the port of the nodes (with "host", one replica on each then), and
    the arguments of `docker.services.create`: `constraints`, `preferences`, `update_config`, `restart_policy`,
    `secrets` (names will do), `mounts` and so on. They win over what is made of the rest.

    Args:
        auto_init_swarm: Whether an engine that is in no swarm becomes one of its own, when something is started.
        overlay_network: A network that the services join; made if it is not there.
        publish: "ingress": at a port of every node, by the mesh. "host": each replica at a port of its node. "dnsrr":
            not at all; the addresses are those in `overlay_network`, for who is in it too. None: by the mesh where
            this kernel has what it takes (IPVS), or else "host".
        grace_s: Seconds that a server which is stopped waits for its sessions to end.
        start_timeout_s: Seconds until all replicas run, pulls of images included.
        ready_timeout_s: Seconds until they are ready then, where nobody says otherwise.
        gpu_resource: What GPUs are called in `node-generic-resources` of the nodes' daemon.json.
        pace: How many replicas are started at one time, and how often a refused start is tried again.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine, or it is in no swarm and not to make one.
        UsageError: There is no such `publish`, or it lacks a network.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image"}), gpus=True, limits=frozenset({"cpus", "memory", "processes"}), options=None
    )
    public = True

    def __init__(
        self,
        *,
        auto_init_swarm: bool = True,
        overlay_network: str | None = None,
        publish: str | None = None,
        grace_s: float = 0.0,
        start_timeout_s: float = 120.0,
        ready_timeout_s: float = 60.0,
        gpu_resource: str = "NVIDIA-GPU",
        pace: Pace | None = None,
    ):
        if publish is not None and publish not in PUBLISH_MODES:
            raise UsageError(f"publish must be one of {', '.join(PUBLISH_MODES)}, got {publish!r}")
        if publish == "dnsrr" and overlay_network is None:
            raise UsageError("publish='dnsrr' has addresses in a network alone: give overlay_network, too")
        if grace_s < 0:
            raise UsageError(f"grace_s must be 0 or more, got {grace_s!r}")
        self._publish = publish or ("ingress" if mesh_works() else "host")
        self._network = overlay_network
        self._auto_init = auto_init_swarm
        self._gpu = gpu_resource
        self._grace_s = grace_s
        self._start_timeout_s = start_timeout_s
        self.ready_timeout_s = ready_timeout_s
        self.variables = {"OPENENV_GRACE_S": f"{grace_s:g}"}
        self.pace = pace or Pace(at_once=16)
        self._manager = Manager()
        try:
            if not auto_init_swarm and not self._manager.active():
                raise ProviderFailed("this Docker engine is in no swarm: docker swarm init, or auto_init_swarm")
        except BaseException:
            self._manager.close()
            raise

    def close(self) -> None:
        """Removes what `start_container` has started, and leaves the engine."""
        self.stop_container()
        self._manager.close()

    def _spec(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """`start_container` takes, besides the options of a specification: replicas, cpu_limit, memory_limit, command
        and container_port."""
        given = dict(options)
        command = given.pop("command", None)
        resources = Resources(cpus=given.pop("cpu_limit", None), memory=given.pop("memory_limit", None))
        spec = LaunchSpec(
            image=image,
            port=given.pop("container_port", None),
            env_vars=env_vars,
            replicas=given.pop("replicas", 1),
            resources=resources,
            command=command.split() if isinstance(command, str) else command,
        )
        return spec.changed(options=given if port is None else {**given, PUBLISHED: port})

    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        if replicas == 0:
            await self._remove(deployment)
            return
        if deployment.handle is None:
            deployment.handle = Service(self._manager, deployment, self._publish)
        service: Service = deployment.handle
        if service.id and not await self._manager.services(f"{DEPLOYMENT}={deployment.name}"):
            service.id, service.replicas = "", 0  # somebody has removed it: it is made again
            deployment.servers.clear()
        before = service.replicas
        try:
            while service.replicas != replicas:
                await self._want(deployment, min(replicas, service.replicas + self.pace.at_once))
        except ProviderFailed as error:
            if before:
                with kept(error):  # those that do not run go first, and nobody's session with them
                    await self._want(deployment, max(before, await service.running()))
            raise

    async def _want(self, deployment: Deployment, replicas: int) -> None:
        service: Service = deployment.handle
        if service.id and service.fixed:
            raise UsageError("this service was given a mode of its own, which says how many servers it has")
        service.expect(replicas)
        if service.id:
            await self._manager.scale(service.id, replicas)
        else:
            await self.pace.start(lambda: self._create(deployment, replicas))
        service.replicas = replicas
        await service.settle(self._start_timeout_s)

    async def _create(self, deployment: Deployment, replicas: int) -> None:
        service: Service = deployment.handle
        assert deployment.spec.image is not None
        await self._manager.join(self._auto_init)
        if self._network is not None:
            await self._manager.network(self._network, deployment.labels)
        image = await self._manager.image(deployment.spec.image)
        arguments = service_of(deployment, service.publish, replicas, self._network, self._grace_s, self._gpu)
        try:
            service.id = await self._manager.create(image, arguments, deployment.variables)
        except BaseException as error:
            with kept(error):
                await self._end(deployment.name)
            raise

    async def _survey(self, deployment: Deployment) -> None:
        service: Service | None = deployment.handle
        if service is not None and service.id:
            await service.survey()

    async def _gone(self, server: Server) -> str | None:
        seat: Seat | None = server.handle
        return None if seat is None or not seat.service.id else await seat.service.gone(seat.slot)

    async def _log(self, server: Server, lines: int) -> str:
        seat: Seat | None = server.handle
        return "" if seat is None or not seat.service.id else await seat.service.log(seat.slot, lines)

    async def _remove(self, deployment: Deployment) -> None:
        if deployment.servers:
            await self._end(deployment.name)
            if self._network is not None:
                for network in await self._manager.networks(type(self).__name__):
                    if network["Name"] == self._network and network["Labels"].get(OWNER) == str(Owner.this()):
                        await self._manager.remove_network(network["Id"])
        deployment.servers.clear()
        deployment.handle = None

    async def _end(self, deployment: str) -> None:
        """Removes the services of a deployment, and waits until their tasks have ended, on nodes that answer."""
        if not await self._manager.manages():
            return
        grace_s = self._grace_s
        for service in await self._manager.services(f"{DEPLOYMENT}={deployment}"):
            given = service["Spec"]["TaskTemplate"]["ContainerSpec"].get("StopGracePeriod")
            grace_s = max(grace_s, (given or 10e9) / 1e9)
            await self._manager.remove(service["ID"])
        limit = time.monotonic() + grace_s + STOP_S + SLACK_S
        while await self._manager.tasks(deployment):
            if time.monotonic() > limit:
                return  # of a node that does not answer: its tasks end when it does
            await asyncio.sleep(GLANCE_S)

    async def _leftovers(self) -> list[Leftover]:
        if not await self._manager.manages():
            return []
        mine = f"{PROVIDER}={type(self).__name__}"
        services = await self._manager.services(mine)
        networks = await self._manager.networks(type(self).__name__)
        return [
            *(_leftover("service", each["Spec"]["Name"], each["Spec"]["Labels"], each["ID"]) for each in services),
            *(_leftover("network", each["Name"], each["Labels"], each["Id"]) for each in networks),
        ]

    async def _discard(self, leftover: Leftover) -> None:
        if leftover.kind == "network":
            await self._manager.remove_network(leftover.handle)
        else:
            await self._end(leftover.deployment)


def _leftover(kind: str, name: str, labels: dict[str, str], handle: str) -> Leftover:
    return Leftover(kind, name, labels.get(DEPLOYMENT, ""), Owner.read(labels.get(OWNER, "")), handle)
