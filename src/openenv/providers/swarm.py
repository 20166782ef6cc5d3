"""Servers as replicas of a Docker swarm service (`DockerSwarmProvider`)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from .._exceptions import add_cleanup_note, undo_async_on_error, undo_on_error
from ..errors import LaunchFailed, NotReady, ProviderFailed, UsageError
from .base import BlockingContainers, Leftover, StartRate, spec_of_options
from .deployment import Deployment, Server
from .owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from .redaction import TAIL_LINES, redact, with_tail
from .spec import CONTAINER_PORT, Capabilities, LaunchSpec
from .swarm_api import (
    PUBLISH_MODES,
    PUBLISHED,
    STOP_S,
    SwarmManager,
    TaskSlot,
    mesh_works,
    published_as,
    service_of,
    slots_of,
)

GLANCE_S = 0.1
"""Seconds between two requests for the tasks."""
# Maximum age, in seconds, of a listing of tasks that the servers of a deployment share.
FRESH_S = 0.2
_REMOVED = "was removed from the swarm"


class SwarmService:
    """The state of a service. The `handle` of each of its servers is a `Replica`.

    Args:
        manager: The swarm's manager.
        deployment: The deployment that the service belongs to.
        publish: How the service is published, unless the specification sets it.

    Attributes:
        publish: How it is published.
        fixed: Whether the options set its mode, which then fixes the number of its tasks.
        id: Its id in the swarm; "" until it is created.
        replicas: Number of requested tasks.
    """

    def __init__(self, manager: SwarmManager, deployment: Deployment, publish: str):
        options = dict(deployment.spec.options)
        self.publish = published_as(options, publish)
        self.fixed = options.get("mode") is not None
        self.id = ""
        self.replicas = 0
        self._manager = manager
        self._deployment = deployment
        self._port = deployment.spec.port or CONTAINER_PORT
        self._tasks: list[dict[str, Any]] = []
        self._seen = float("-inf")
        self._looking = asyncio.Lock()

    def expect(self, replicas: int) -> None:
        """Adds the servers that are about to be started."""
        servers = self._deployment.servers
        for _ in range(len(servers), 1 if self.publish == "ingress" else replicas):
            self._deployment.new_server().handle = Replica(self)

    async def settle(self, timeout_s: float) -> None:
        """Waits until it has exactly the requested tasks, with addresses.

        Raises:
            LaunchFailed: A task has ended; with the reason, and the end of its log. Raised at once.
            NotReady: Not in time.
        """
        old = {server.handle.slot for server in self._deployment.servers if server.url is not None}
        began = time.monotonic()
        while True:
            slots = await self._slots(0.0)
            # The swarm itself restarts tasks that have run before.
            new = [slot for slot in slots.values() if slot.key not in old]
            failed = next((slot for slot in new if slot.failure is not None), None)
            if failed is not None:
                log = await self._manager.log(self.id, failed.tasks, TAIL_LINES)
                said = f"the server {failed.failure}"
                if "No such image" in said:
                    said += ": load it on every node, push it to a registry, or set constraints"
                raise LaunchFailed(redact(with_tail(said, log), self._deployment.secrets))
            complete = bool(slots)
            if not self.fixed:
                leaving = any(task.get("DesiredState") == "remove" for task in self._tasks)
                complete = len(slots) == self.replicas and not leaving
            if complete and all([await self._url(slot) for slot in new]):
                break
            if time.monotonic() - began > timeout_s:
                why = next((f": the state of one is {slot.state}" for slot in new if not slot.running), "")
                why = redact(why, self._deployment.secrets)
                raise NotReady(f"{self.replicas} servers did not run within {timeout_s:g} s (start_timeout_s){why}")
            await asyncio.sleep(GLANCE_S)
        await self._place(slots)
        if self.publish != "ingress":  # servers that a failed start has added have no task
            for server in [each for each in self._deployment.servers if each.handle.slot is None]:
                self._deployment.servers.remove(server)

    async def running(self) -> int:
        """Number of its running tasks."""
        return sum(slot.running for slot in (await self._slots(0.0)).values())

    async def survey(self) -> None:
        """Updates `url` and `gone` of the servers."""
        await self._place(await self._slots(0.0))

    async def gone(self, slot: str | None) -> str | None:
        """Why a slot (None: one of all slots) has no task; None while it has one, or one is starting."""
        return self._failure(self._these(slot, await self._slots()))

    async def log(self, slot: str | None, lines: int) -> str:
        """The last lines of the logs of a slot's tasks; None: of all slots."""
        slots = self._these(slot, await self._slots())
        return await self._manager.log(self.id, tuple(task for each in slots for task in each.tasks), lines)

    def _these(self, slot: str | None, slots: dict[str, TaskSlot]) -> list[TaskSlot]:
        return [each for each in slots.values() if slot in {None, each.key}]

    async def _slots(self, age_s: float = FRESH_S) -> dict[str, TaskSlot]:
        async with self._looking:
            if time.monotonic() - self._seen >= age_s:
                self._tasks = await self._manager.listed("tasks", DEPLOYMENT, self._deployment.name)
                self._seen = time.monotonic()
        return slots_of(self._tasks)

    async def _place(self, slots: dict[str, TaskSlot]) -> None:
        urls = {key: await self._url(slot) for key, slot in slots.items()}
        deployment = self._deployment
        if deployment.handle is not self:
            return  # it was stopped meanwhile
        if self.publish == "ingress":
            for server in deployment.servers:
                server.url = next(filter(None, urls.values()), server.url)
                server.gone = None if any(urls.values()) else self._absence(server, list(slots.values()))
            return
        servers = deployment.servers
        for server in [each for each in servers if each.handle.slot is not None and each.handle.slot not in slots]:
            server.gone = _REMOVED
            if slots:  # without slots, the service is gone: its servers stay in the list, to report that
                servers.remove(server)
        for key, slot in slots.items():
            # Take the server of this slot, or one without a slot, or a new one.
            found = next((each for wanted in (key, None) for each in servers if each.handle.slot == wanted), None)
            server = found or deployment.new_server()
            server.handle = Replica(self, key)
            server.url = urls[key] or server.url
            server.gone = None if slot.running else self._absence(server, [slot])

    async def _url(self, slot: TaskSlot) -> str | None:
        """The address of a slot's running task. With the mesh, all slots have the same address."""
        if not slot.running:
            return None
        place: str | None = self._manager.host
        port: int | None = self._port
        if self.publish == "ingress":
            port = await self._manager.port(self.id)
        elif self.publish == "dnsrr":
            place = next(iter(slot.addresses), None)
        else:
            port = slot.ports.get(self._port) or next(iter(slot.ports.values()), None)
            place = slot.node and await self._manager.address(slot.node)
        return None if port is None or place is None else f"http://{place}:{port}"

    def _absence(self, server: Server, slots: list[TaskSlot]) -> str | None:
        """Why no task runs in a server's slots; None during the first start."""
        reason = self._failure(slots)
        if reason is None and server.url is not None:
            return redact(f"is being restarted ({slots[0].state})", self._deployment.secrets)
        return reason

    def _failure(self, slots: list[TaskSlot]) -> str | None:
        """The failure of one of these slots, if there is one."""
        reason = next((each.failure for each in slots if each.failure), None) if slots else _REMOVED
        return reason and redact(reason, self._deployment.secrets)


@dataclass(frozen=True, slots=True)
class Replica:
    """The slot of a server in its service; None: no slot yet, or all slots behind the mesh."""

    service: SwarmService
    slot: str | None = None


# Seconds that nodes have to end a container, beyond the grace period of its server.
SLACK_S = 5.0


class DockerSwarmProvider(BlockingContainers):
    """Runs servers as the replicas of a service. (Extra `docker`; DOCKER_HOST names a manager of the swarm.)

    Published by the mesh (`publish="ingress"`), a service is one server with one address. Otherwise each replica is a
    server with its own address, for a gateway or a client that chooses among them; `Deployment.refresh` finds the
    addresses of replicas that the swarm has restarted. If `scale` lowers the number, the swarm decides which end.

    `LaunchSpec.options` are `published_port`, the port of the nodes (with "host", one replica on each then), and
    the arguments of `docker.services.create`: `constraints`, `preferences`, `update_config`, `restart_policy`,
    `secrets` (by name), `mounts` and so on. They override derived arguments.

    Args:
        auto_init_swarm: Whether the first start initializes a swarm, if the engine is not in one.
        overlay_network: A network that the services join; created if it does not exist.
        publish: "ingress": at a port of every node, by the mesh. "host": each replica at a port of its node. "dnsrr":
            not at all; the addresses are those in `overlay_network`, for clients in that network. None: by the mesh
            where this kernel supports it (IPVS), or else "host".
        grace_s: Seconds that a stopped server waits for its sessions to end.
        start_timeout_s: Seconds until all replicas run, pulls of images included.
        ready_timeout_s: Seconds until they are ready after that, unless a call gives another timeout.
        gpu_resource: Name of GPUs in `node-generic-resources` of the nodes' daemon.json.
        start_rate: Maximum of replicas that start concurrently, and of attempts of a refused start.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: No Docker engine answers, or it is not in a swarm and must not initialize one.
        UsageError: `publish` is unknown, or needs a network.
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
        start_rate: StartRate | None = None,
    ):
        if publish is not None and publish not in PUBLISH_MODES:
            raise UsageError(f"publish must be one of {', '.join(PUBLISH_MODES)}, got {publish!r}")
        if publish == "dnsrr" and overlay_network is None:
            raise UsageError("publish='dnsrr' has addresses only in a network: set overlay_network, too")
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
        self.start_rate = start_rate or StartRate(at_once=16)
        self._manager = SwarmManager()
        if not auto_init_swarm:
            with undo_on_error(self._manager.close):
                self._manager.active(required=True)

    def close(self) -> None:
        """Removes the server of `start_container`, and disconnects from the engine."""
        self.stop_container()
        self._manager.close()

    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """`start_container` takes the options of a specification, and also: replicas, cpu_limit, memory_limit,
        command and container_port."""
        if port is not None:
            options[PUBLISHED] = port
        return spec_of_options(image, env_vars, options)

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        if replicas == 0:
            await self._remove(deployment)
            return
        if deployment.handle is None:
            deployment.handle = SwarmService(self._manager, deployment, self._publish)
        service: SwarmService = deployment.handle
        if service.id and not await self._manager.listed("services", DEPLOYMENT, deployment.name):
            service.id, service.replicas = "", 0  # another client removed it: create it again
            deployment.servers.clear()
        before = service.replicas
        try:
            while service.replicas != replicas:
                await self._want(deployment, min(replicas, service.replicas + self.start_rate.at_once))
        except ProviderFailed as error:
            if before:
                with add_cleanup_note(error):  # tasks that do not run are removed first, so no session is lost
                    await self._want(deployment, max(before, await service.running()))
            raise

    async def _want(self, deployment: Deployment, replicas: int) -> None:
        service: SwarmService = deployment.handle
        if service.id and service.fixed:
            raise UsageError("the option `mode` of this service fixes the number of its servers")
        service.expect(replicas)
        if service.id:
            await self._manager.scale(service.id, replicas)
        else:
            await self.start_rate.start(lambda: self._create(deployment, replicas))
        service.replicas = replicas
        await service.settle(self._start_timeout_s)

    async def _create(self, deployment: Deployment, replicas: int) -> None:
        service: SwarmService = deployment.handle
        assert deployment.spec.image is not None
        await self._manager.join(self._auto_init)
        if self._network is not None:
            await self._manager.network(self._network, deployment.labels)
        image = await self._manager.image(deployment.spec.image)
        arguments = service_of(deployment, service.publish, replicas, self._network, self._grace_s, self._gpu)
        async with undo_async_on_error(lambda: self._end(deployment.name)):
            service.id = await self._manager.create(image, arguments, deployment.variables)

    async def refresh_servers(self, deployment: Deployment) -> None:
        service: SwarmService | None = deployment.handle
        if service is not None and service.id:
            await service.survey()

    async def why_gone(self, server: Server) -> str | None:
        replica: Replica | None = server.handle
        return None if replica is None or not replica.service.id else await replica.service.gone(replica.slot)

    async def read_log(self, server: Server, lines: int) -> str:
        replica: Replica | None = server.handle
        return "" if replica is None or not replica.service.id else await replica.service.log(replica.slot, lines)

    async def _remove(self, deployment: Deployment) -> None:
        if deployment.servers:
            await self._end(deployment.name)
            if self._network is not None:
                for network in await self._manager.listed("networks", PROVIDER, type(self).__name__):
                    if network["Name"] == self._network and network["Labels"].get(OWNER) == str(OwnerProcess.this()):
                        await self._manager.remove_network(network["Id"])
        deployment.servers.clear()
        deployment.handle = None

    async def _end(self, deployment: str) -> None:
        """Removes the services of a deployment, and waits for the end of their tasks on nodes that answer."""
        if not await self._manager.manages():
            return
        grace_s = self._grace_s
        for service in await self._manager.listed("services", DEPLOYMENT, deployment):
            given = service["Spec"]["TaskTemplate"]["ContainerSpec"].get("StopGracePeriod")
            grace_s = max(grace_s, (given or 10e9) / 1e9)
            await self._manager.remove(service["ID"])
        limit = time.monotonic() + grace_s + STOP_S + SLACK_S
        while await self._manager.listed("tasks", DEPLOYMENT, deployment):
            if time.monotonic() > limit:
                return  # tasks of a node that does not answer end once it answers
            await asyncio.sleep(GLANCE_S)

    async def find_leftovers(self) -> list[Leftover]:
        if not await self._manager.manages():
            return []
        services = await self._manager.listed("services", PROVIDER, type(self).__name__)
        networks = await self._manager.listed("networks", PROVIDER, type(self).__name__)
        made = Leftover.from_labels
        return [
            *(made("service", each["Spec"]["Name"], each["Spec"]["Labels"], each["ID"]) for each in services),
            *(made("network", each["Name"], each["Labels"], each["Id"]) for each in networks),
        ]

    async def remove_leftover(self, leftover: Leftover) -> None:
        if leftover.kind == "network":
            await self._manager.remove_network(leftover.handle)
        else:
            await self._end(leftover.deployment)
