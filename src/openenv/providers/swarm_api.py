"""The API of a Docker swarm: service definitions, task states, and calls to a manager."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from .._asyncio import on_thread, run_to_completion
from ..errors import ProviderFailed, UsageError
from .deployment import Deployment
from .docker_engine import docker_client, docker_errors, unless_gone
from .redaction import last_lines
from .spec import CONTAINER_PORT

_ENDINGS = {
    "failed": "failed",
    "rejected": "was rejected",
    "complete": "has ended",
    "orphaned": "was lost with its node",
}
_OVER = {*_ENDINGS, "shutdown", "remove"}


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """A slot of a service: one server, which consecutive tasks run.

    Attributes:
        key: Its number; in a global service, the id of its node.
        tasks: Ids of its tasks, the current one last.
        running: Whether the current task runs.
        failure: Why it does not run, phrased to follow "the server". None while it runs, or starts for the first
            time.
        state: State of the current task, as the swarm calls it.
        node: The node of the current task, if it has one.
        ports: Published ports of the node, by port of the container.
        addresses: Its addresses in networks of the swarm.
    """

    key: str
    tasks: tuple[str, ...]
    running: bool
    failure: str | None
    state: str
    node: str | None
    ports: Mapping[int, int]
    addresses: tuple[str, ...]


def slots_of(tasks: Iterable[Mapping[str, Any]]) -> dict[str, TaskSlot]:
    """The slots of a service, in the order of their numbers.

    Args:
        tasks: Its tasks, as the engine's API lists them.
    """
    histories: dict[str, list[Mapping[str, Any]]] = {}
    # The engine's timestamps omit trailing zeros of the fraction.
    width = len("2000-01-01T00:00:00.000000000")
    for task in sorted(tasks, key=lambda task: task.get("CreatedAt", "").removesuffix("Z").ljust(width, "0")):
        histories.setdefault(str(task.get("Slot") or task.get("NodeID", "")), []).append(task)
    # A removed slot has only tasks that are to be removed.
    there = {
        key: history
        for key, history in histories.items()
        if any(task.get("DesiredState") != "remove" for task in history)
    }
    return {key: _slot(key, there[key]) for key in sorted(there, key=lambda key: (len(key), key))}


def logged_by(tasks: Iterable[str], log: bytes) -> str:
    """The lines of certain tasks, from a service's log with details."""
    marks = tuple(f"com.docker.swarm.task.id={task}" for task in tasks)
    lines = (line.partition(" ") for line in log.decode(errors="replace").splitlines())
    return "\n".join(text for details, _, text in lines if any(mark in details.split(",") for mark in marks))


def _slot(key: str, history: list[Mapping[str, Any]]) -> TaskSlot:
    # A rolling update may start the new task before the old one ends.
    running = [task for task in history if _state(task) == "running" and task.get("DesiredState") == "running"]
    current = running[-1] if running else history[-1]
    status = current.get("Status", {})
    published = status.get("PortStatus", {}).get("Ports") or ()
    attached = current.get("NetworksAttachments") or ()
    failure = None
    if not running:
        # How the current task ended, or the one before it while the current one starts.
        ended = history[-2] if _state(current) not in _OVER and len(history) > 1 else current
        if _state(ended) in _ENDINGS:
            end = ended.get("Status", {})
            failure = f"{_ENDINGS[_state(ended)]} ({end.get('Err') or end.get('Message')})"
    return TaskSlot(
        key=key,
        tasks=tuple(task["ID"] for task in history),
        running=bool(running),
        failure=failure,
        state=": ".join(filter(None, (_state(current), status.get("Err") or status.get("Message")))),
        node=current.get("NodeID") or None,
        ports={port["TargetPort"]: port["PublishedPort"] for port in published if port.get("PublishMode") == "host"},
        addresses=tuple(each.partition("/")[0] for network in attached for each in network.get("Addresses") or ()),
    )


def _state(task: Mapping[str, Any]) -> str:
    return str(task.get("Status", {}).get("State", "new"))


PUBLISH_MODES = ("ingress", "host", "dnsrr")
PUBLISHED = "published_port"
"""Our own option: the port of the nodes at which a service is published."""
# Seconds between SIGTERM and SIGKILL, beyond the grace period of the sessions.
STOP_S = 5.0
# Seconds before the restart of a server that has ended.
RESTART_S = 1.0
_NS = 1_000_000_000


def mesh_works() -> bool:
    """Whether this kernel has IPVS, which the routing mesh of a swarm needs."""
    if Path("/proc/net/ip_vs").exists():
        return True
    modules = Path("/lib/modules") / platform.release()  # the engine loads the module on first use
    lists = (modules / name for name in ("modules.dep", "modules.builtin"))
    return any("/ip_vs.ko" in each.read_text(errors="replace") for each in lists if each.is_file())


def published_as(options: dict[str, Any], otherwise: str) -> str:
    """How a service is published: by its own `endpoint_spec`, if it has one."""
    endpoint = options.get("endpoint_spec")
    if endpoint is None:
        return otherwise
    ports = endpoint.get("Ports") or ()
    if not ports:
        return "dnsrr"
    return "host" if ports[0].get("PublishMode") == "host" else "ingress"


def service_of(
    deployment: Deployment, publish: str, replicas: int, network: str | None, grace_s: float, gpu: str
) -> dict[str, Any]:
    """Arguments of `docker.services.create`, without the image. Options of the specification override them.

    Args:
        deployment: The deployment that the service belongs to.
        publish: One of `PUBLISH_MODES`.
        replicas: Initial number of servers.
        network: A network that it joins.
        grace_s: Seconds that sessions have to end when a server is stopped.
        gpu: Name of the generic resource of GPUs.
    """
    from docker.types import Resources, RestartPolicy, ServiceMode, UpdateConfig

    spec, options = deployment.spec, dict(deployment.spec.options)
    port = options.pop(PUBLISHED, None)
    if port is not None and publish == "dnsrr":
        raise UsageError("publish='dnsrr' publishes no port: leave out port")
    wanted, gpus = spec.resources, spec.gpus_each
    resources = Resources(
        cpu_limit=None if wanted.cpus is None else int(wanted.cpus * _NS),
        mem_limit=wanted.memory_bytes,
        generic_resources={gpu: gpus} if gpus else None,
    )
    if wanted.processes is not None:  # the SDK has no argument for it
        resources.setdefault("Limits", {})["Pids"] = wanted.processes
    networks = [*(options.pop("networks", None) or ()), *([network] if network else ())]
    # One server per node can have a fixed port: the old one must end before the new one starts.
    order: Literal["start-first", "stop-first"]
    order = "stop-first" if port is not None and publish == "host" else "start-first"
    return {
        "name": deployment.name,
        "mode": ServiceMode("replicated", replicas),
        "endpoint_spec": _endpoint(publish, port, spec.port or CONTAINER_PORT),
        "resources": resources,
        "restart_policy": RestartPolicy("any", delay=int(RESTART_S * _NS)),
        "update_config": UpdateConfig(parallelism=1, order=order, failure_action="rollback"),
        "stop_grace_period": int((grace_s + STOP_S) * _NS),
        **({"args": list(spec.command)} if spec.command is not None else {}),
        **options,
        "constraints": list(options.get("constraints") or ()),
        "networks": networks or None,
        "env": [f"{name}={value}" for name, value in deployment.variables.items()],
        "labels": {**(options.get("labels") or {}), **deployment.labels},
        "container_labels": {**(options.get("container_labels") or {}), **deployment.labels},
    }


def _endpoint(publish: str, port: int | None, container_port: int) -> Any:
    from docker.types import EndpointSpec

    if publish == "dnsrr":
        return EndpointSpec(mode="dnsrr")
    published: dict[str, Any] = {"Protocol": "tcp", "TargetPort": container_port, "PublishMode": publish}
    if port is not None:
        published["PublishedPort"] = port
    # Only the mesh uses a virtual address, which needs IPVS in the kernel.
    return EndpointSpec(mode="vip" if publish == "ingress" else "dnsrr", ports=[published])


T = TypeVar("T")
LOOPBACK = "127.0.0.1"
# Seconds to read a log, which may be on a node that does not answer.
LOG_S = 5.0
# Attempts to change a service that another client changes at the same time.
ATTEMPTS = 5
# Seconds until a network has noticed the end of its last container.
DETACH_S = 5.0
_NOWHERE = {"", "0.0.0.0", LOOPBACK}  # noqa: S104 - reported by nodes without an address


class SwarmManager:
    """The engine that DOCKER_HOST names, as the manager of a swarm.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine.

    Attributes:
        host: Host at which this process reaches ports published on the engine's machine.
    """

    def __init__(self) -> None:
        self._engine = docker_client()
        place = urlsplit(self._engine.api.base_url)
        self.host = (place.hostname or LOOPBACK) if place.scheme in {"http", "https"} else LOOPBACK
        self._nodes: dict[str, str] = {}

    def close(self) -> None:
        """Disconnects from the engine."""
        self._engine.close()

    def active(self, required: bool) -> bool:
        """Whether the engine is in a swarm. Blocks.

        Raises:
            ProviderFailed: It is not, and `required` is set.
        """
        with docker_errors("looking for a swarm", {}):
            state = self._engine.info().get("Swarm", {}).get("LocalNodeState")
        if required and state != "active":
            raise ProviderFailed(
                "this Docker engine is not in a swarm: run docker swarm init, or set auto_init_swarm"
            )
        return bool(state == "active")

    async def manages(self) -> bool:
        """Whether the engine is a manager of a swarm."""
        info = await self._ask("looking for a swarm", self._engine.info)
        return bool(info.get("Swarm", {}).get("ControlAvailable"))

    async def join(self, auto_init: bool) -> None:
        """Makes sure that the engine is a manager of a swarm.

        Raises:
            ProviderFailed: It is not in a swarm, or is a worker.
        """
        if await self.manages():
            return
        if await on_thread(lambda: self.active(required=not auto_init)):
            raise ProviderFailed("this Docker engine is a worker of its swarm: set DOCKER_HOST to a manager")
        swarm = self._engine.swarm
        await self._whole(
            "creating a swarm", lambda: swarm.init(advertise_addr=LOOPBACK, listen_addr=f"{LOOPBACK}:2377")
        )

    async def image(self, name: str) -> str:
        """The reference of an image: its id if it was never in a registry, so that nodes do not look there."""

        images = self._engine.images
        image = await self._ask(f"looking for {name}", lambda: unless_gone(lambda: images.get(name), None))
        return name if image is None or image.attrs.get("RepoDigests") else str(image.id)

    async def create(self, image: str, arguments: dict[str, Any], variables: Mapping[str, str]) -> str:
        """Creates a service and returns its id. A cancellation waits for the end of the call."""

        def create() -> str:
            given = {**arguments, "secrets": self._secrets(arguments.get("secrets"))}
            return str(self._engine.services.create(image, **given).id)

        return await self._whole(f"starting a service of {arguments['name']}", create, variables)

    async def scale(self, service: str, replicas: int) -> None:
        """Sets the number of a service's tasks. Unlike the SDK's `scale`, it does not restart tasks that stay."""

        def scale() -> None:
            from docker.errors import APIError

            for attempt in range(1, ATTEMPTS + 1):
                found = self._engine.api.inspect_service(service)
                spec = found["Spec"]
                try:
                    self._engine.api.update_service(
                        service,
                        found["Version"]["Index"],
                        name=spec["Name"],
                        labels=spec.get("Labels"),
                        task_template=spec["TaskTemplate"],
                        mode={"Replicated": {"Replicas": replicas}},
                        update_config=spec.get("UpdateConfig"),
                        rollback_config=spec.get("RollbackConfig"),
                        endpoint_spec=spec.get("EndpointSpec"),
                    )
                except APIError as error:
                    if attempt == ATTEMPTS or "out of sequence" not in str(error):
                        raise
                else:
                    return

        await self._whole("scaling a service", scale)

    async def port(self, service: str) -> int | None:
        """The port of the mesh at which a service is published, once it has one."""
        found = await self._ask("looking at a service", lambda: self._engine.api.inspect_service(service))
        ports = found.get("Endpoint", {}).get("Ports") or [{}]
        port: int | None = ports[0].get("PublishedPort")
        return port

    async def listed(self, kind: Literal["services", "tasks", "networks"], label: str, value: str) -> list[Any]:
        """The objects with a label, as the engine's API lists them. Removed tasks are in it until they end."""
        listing = getattr(self._engine.api, kind)
        found: list[Any] = await self._ask(f"listing {kind}", lambda: listing(filters={"label": f"{label}={value}"}))
        return found

    async def address(self, node: str) -> str:
        """The address of a node."""
        if node not in self._nodes:
            for each in await self._ask("looking at the swarm's nodes", self._engine.api.nodes):
                address = str(each.get("Status", {}).get("Addr") or "")
                if address in _NOWHERE:
                    address = str(each.get("ManagerStatus", {}).get("Addr") or "").rpartition(":")[0].strip("[]")
                self._nodes[each["ID"]] = f"[{address}]" if ":" in address else address
        address = self._nodes.get(node, "")
        return self.host if address in _NOWHERE else address

    async def log(self, service: str, tasks: tuple[str, ...], lines: int) -> str:
        """The last log lines of tasks of a service, or "" if the log cannot be read."""

        def read() -> bytes:
            parts = self._engine.api.service_logs(service, details=True, stdout=True, stderr=True, tail=lines)
            return b"".join(parts)

        try:
            async with asyncio.timeout(LOG_S):
                whole = await self._ask("reading a service's log", read)
        except (ProviderFailed, TimeoutError):
            return ""  # some log drivers cannot be read
        return last_lines(logged_by(tasks, whole), lines)

    async def remove(self, service: str) -> None:
        """Removes a service; the swarm then ends its tasks."""
        api = self._engine.api
        await self._whole("removing a service", lambda: unless_gone(lambda: api.remove_service(service), None))

    async def network(self, name: str, labels: Mapping[str, str]) -> None:
        """Creates a network, if it does not exist."""

        def make() -> None:
            from docker.errors import APIError

            networks = self._engine.networks
            try:
                if not networks.list(names=[f"^{name}$"]):
                    networks.create(name, driver="overlay", attachable=True, labels=dict(labels))
            except APIError:
                if not networks.list(names=[f"^{name}$"]):  # another client was faster
                    raise

        await self._whole(f"creating the network {name}", make)

    async def remove_network(self, network: str) -> None:
        """Removes a network unless a service uses it."""

        def remove() -> None:
            from docker.errors import APIError

            def joined() -> bool:
                templates = (service["Spec"]["TaskTemplate"] for service in self._engine.api.services())
                return any(
                    network == each["Target"] for template in templates for each in template.get("Networks") or ()
                )

            limit = time.monotonic() + DETACH_S
            while not joined():
                try:
                    unless_gone(lambda: self._engine.api.remove_network(network), None)
                except APIError:
                    if time.monotonic() > limit:
                        raise
                    time.sleep(0.1)
                else:
                    return

        await self._whole("removing a network", remove)

    def _secrets(self, wanted: list[Any] | None) -> list[Any] | None:
        """References to secrets of the swarm, with the ids that the SDK needs."""
        from docker.types import SecretReference

        if not wanted or not any(isinstance(each, str) for each in wanted):
            return wanted
        found = {secret.name: secret.id for secret in self._engine.secrets.list()}
        missing = [each for each in wanted if isinstance(each, str) and each not in found]
        if missing:
            raise ProviderFailed(f"the swarm has no secret {', '.join(missing)}: run docker secret create NAME FILE")
        return [SecretReference(found[each], each) if isinstance(each, str) else each for each in wanted]

    async def _ask(self, what: str, call: Callable[[], T], variables: Mapping[str, str] | None = None) -> T:
        def translated_call() -> T:
            with docker_errors(what, variables or {}):
                return call()

        return await on_thread(translated_call)

    async def _whole(self, what: str, call: Callable[[], T], variables: Mapping[str, str] | None = None) -> T:
        """Runs a call that changes the swarm to its end: it must not take effect after a cancellation's cleanup."""
        return await run_to_completion(self._ask(what, call, variables))
