"""Servers in containers of this machine's Docker engine (`LocalDockerProvider`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .._asyncio import on_thread, shielded, start_task
from .._backoff import Backoff
from ..errors import LaunchFailed, ProviderBusy, UsageError
from .base import PRIVATE_SERVER_VARIABLES, BlockingContainers, Leftover, SingleServerProvider, StartRate
from .deployment import Deployment, Server
from .docker_engine import PullProgress, docker_client, docker_errors, pull, unless_gone
from .owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from .redaction import TAIL_LINES, redact, secrets_of, with_tail
from .spec import CONTAINER_PORT, Capabilities, LaunchSpec, Resources
from .warm_pool import WarmPool


def gpus_for(deployment: Deployment) -> tuple[str, ...]:
    """GPUs for a new server: the first ones that no server of the deployment has (`handle.gpus`)."""
    each = deployment.spec.gpus_each
    if not each:
        return ()
    taken = {gpu for server in deployment.servers if server.handle is not None for gpu in server.handle.gpus}
    numbers = (str(number) for number in range(len(taken) + each))  # the place refuses numbers that it does not have
    return tuple(gpu for gpu in numbers if gpu not in taken)[:each]


LOOPBACK = "127.0.0.1"
NO_NETWORK = "none"
# Linux capabilities that are kept: images that start as root need them to read volumes and to switch to another user.
KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
# Arguments that have another name in the specification.
_OURS = {"environment": "env_vars", "image": "image", "ports": "port"}


def container_port(spec: LaunchSpec) -> int:
    """The port that a server listens on in its container."""
    return spec.port or CONTAINER_PORT


def request(deployment: Deployment, server: Server, gpus: tuple[str, ...], network: str | None) -> dict[str, Any]:
    """The arguments of `docker.containers.create` for a server, without its image.

    Args:
        deployment: The server's deployment. Options of its specification win over derived arguments.
        server: The server.
        gpus: Numbers of its GPUs.
        network: Network through which only this machine reaches the server. None publishes its port on loopback.

    Raises:
        UsageError: Options that exclude each other.
    """
    spec = deployment.spec
    options = dict(spec.options)
    for name in _OURS.keys() & options.keys():
        raise UsageError(f"the option {name} is not supported: use {_OURS[name]}")
    port = options.pop("host_port", None)
    if port is not None and network is not None:
        raise UsageError(f"port {port} cannot be published with network={NO_NETWORK!r}: leave out one of the two")
    given: dict[str, Any] = {"environment": deployment.variables, **_limits(spec)}
    if gpus:
        from docker.types import DeviceRequest

        given["device_requests"] = [DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])]
    # No HEALTHCHECK of the image: it starts a process a second in each container, and we check readiness ourselves.
    given["healthcheck"] = {"test": ["NONE"]}
    if spec.command is not None:
        given["command"] = list(spec.command)
    if options.get("read_only"):
        given["tmpfs"] = {"/tmp": ""}  # noqa: S108 - in the container
    if network is None:
        given["ports"] = {f"{container_port(spec)}/tcp": (LOOPBACK, port)}
    else:
        options = {name: value for name, value in options.items() if name not in {"network", "network_mode"}}
        given |= {"network": network, "dns": [LOOPBACK]}  # some engines would forward its DNS queries
    labels = options.get("labels") or ()
    labels = labels if isinstance(labels, Mapping) else dict.fromkeys(labels, "")
    return {
        **given,
        **options,
        **_privileges(options),
        "name": server.name,
        "labels": {**labels, **deployment.labels},
    }


def _limits(spec: LaunchSpec) -> dict[str, Any]:
    resources = spec.resources
    limits: dict[str, Any] = {}
    if resources.cpus is not None:
        limits["nano_cpus"] = int(resources.cpus * 1_000_000_000)
    if resources.memory_bytes is not None:
        # The same limit for memory plus swap disables swap: a server that swaps is too slow to be useful.
        limits |= {"mem_limit": resources.memory_bytes, "memswap_limit": resources.memory_bytes}
    if resources.processes is not None:
        limits["pids_limit"] = resources.processes
    return limits


def _privileges(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for fewer privileges than Docker's defaults, unless `options` sets them."""
    if options.get("privileged"):
        return {}
    given: dict[str, Any] = {}
    if "security_opt" not in options:
        given["security_opt"] = ["no-new-privileges"]
    if "cap_drop" not in options:
        given |= {"cap_drop": ["ALL"], "cap_add": [*KEPT_CAPABILITIES, *(options.get("cap_add") or ())]}
    return given


# Seconds between SIGTERM and SIGKILL.
GRACE_S = 5
# Attempts to remove an object that the engine still uses, and the first pause, in seconds.
REMOVALS, PAUSE_S = 6, 0.1
_OVER = {"exited", "dead", "removing"}
_PORT_TAKEN = ("already allocated", "already in use")


@dataclass(eq=False, slots=True)
class Container:
    """State of a container, from before its creation.

    Attributes:
        key: Its id at the engine; its name until it has one.
        deployment: Its deployment; a container of the same name with another deployment is left alone.
        variables: Its environment variables; errors mask the secrets among them.
        gpus: Its GPUs.
        work: The running call that changes it.
    """

    key: str
    deployment: str
    variables: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    work: asyncio.Future[Any] | None = None


@dataclass(eq=False, slots=True)
class Network:
    """A network of one deployment.

    Attributes:
        name: Its name.
        work: The running call that changes it.
    """

    name: str
    work: asyncio.Future[Any] | None = None


class Containers:
    """The containers and networks of one engine.

    Args:
        engine: A client of the SDK.
    """

    def __init__(self, engine: Any):
        self._engine = engine
        self._api = engine.api

    def check_runtime(self, runtime: str) -> None:
        """Raises `UsageError` for a container runtime that the engine does not have."""
        with docker_errors("asking the engine for its runtimes", {}):
            known = self._engine.info().get("Runtimes") or {}
        if runtime not in known:
            raise UsageError(
                f"this Docker engine has no runtime {runtime!r}, it has {', '.join(sorted(known))}: install it and "
                "name it in the engine's daemon.json (runtimes), or leave out runtime"
            )

    def has(self, image: str) -> bool:
        """Whether the engine has an image."""
        with docker_errors(f"looking for {image}", {}):
            return unless_gone(lambda: bool(self._api.inspect_image(image)), False)

    def create(self, container: Container, image: str, given: Mapping[str, Any]) -> bool:
        """Creates a container. False if the engine does not have its image."""
        from docker.errors import ImageNotFound

        with docker_errors(f"starting a container of {image}", container.variables):
            try:
                container.key = self._engine.containers.create(image, **given).id
            except ImageNotFound:
                return False
        return True

    def start(self, container: Container, image: str, port: int, network: str | None, any_port: bool) -> str:
        """Starts a container; returns its address.

        Args:
            container: A created container.
            image: Its image, for error messages.
            port: The port that it listens on.
            network: The network through which it is reached. None if its port is published.
            any_port: Whether the engine chooses the published port.
        """
        try:
            with docker_errors(f"starting a container of {image}", container.variables):
                self._api.start(container.key)
                facts = self._api.inspect_container(container.key)
        except LaunchFailed as error:
            if any_port and any(words in str(error) for words in _PORT_TAKEN):
                # Another process took the free port; the next attempt takes another.
                raise ProviderBusy(str(error)) from None
            raise
        if network is not None:
            address = (facts["NetworkSettings"]["Networks"].get(network) or {}).get("IPAddress")
            place = f"{address}:{port}" if address else None
        else:
            published = facts["NetworkSettings"]["Ports"].get(f"{port}/tcp")
            place = f"{LOOPBACK}:{published[0]['HostPort']}" if published else None
        if place is None:
            how = _ending(facts) or "has no published port: check that its network can publish ports"
            raise LaunchFailed(with_tail(f"the container {how}", self.log(container, TAIL_LINES)))
        return f"http://{place}"

    def running(self, labels: Mapping[str, str]) -> frozenset[str]:
        """The ids of all running containers with these labels."""
        filters = {"label": [f"{name}={value}" for name, value in labels.items()], "status": ["running"]}
        with docker_errors("listing containers", {}):
            return frozenset(each["Id"] for each in self._api.containers(filters=filters))

    def end_of(self, container: Container) -> str | None:
        """Why the container is gone, phrased to follow "the server". None while it exists."""
        with docker_errors("looking at the container", container.variables):
            return unless_gone(lambda: _ending(self._api.inspect_container(container.key)), "was removed")

    def log(self, container: Container, lines: int) -> str:
        """The last lines of its log; secrets are masked."""
        with docker_errors("reading the container's log", container.variables):
            text: bytes = unless_gone(lambda: self._api.logs(container.key, tail=lines), b"")
        return redact(text.decode(errors="replace").rstrip(), secrets_of(container.variables))

    def remove(self, container: Container) -> None:
        """Stops a container, by force if it does not end in time, and removes it with its volumes."""
        from docker.errors import APIError

        with docker_errors("removing a container", container.variables):
            facts = unless_gone(lambda: self._api.inspect_container(container.key), None)
            if facts is None or (facts["Config"].get("Labels") or {}).get(DEPLOYMENT) != container.deployment:
                return  # it is gone, or the name belongs to another deployment
            if facts["State"].get("Status") == "running":
                with contextlib.suppress(APIError):
                    self._api.stop(facts["Id"], timeout=GRACE_S)
            _insist(lambda: self._api.remove_container(facts["Id"], force=True, v=True))

    def add_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Creates an internal network, in which containers cannot reach each other."""
        with docker_errors("creating a network", {}):
            self._api.create_network(
                name,
                driver="bridge",
                internal=True,
                labels=dict(labels),
                options={"com.docker.network.bridge.enable_icc": "false"},
            )

    def remove_network(self, key: str) -> None:
        """Removes a network, if it exists."""
        with docker_errors("removing a network", {}):
            _insist(lambda: self._api.remove_network(key))

    def labelled(self, provider: str) -> list[Leftover]:
        """All objects at the engine that a provider's class has created."""
        filters = {"label": f"{PROVIDER}={provider}"}
        with docker_errors("listing containers", {}):
            containers = self._api.containers(all=True, filters=filters)
            networks = self._api.networks(filters=filters)
        found = [("container", each, (each["Names"] or [each["Id"]])[0].lstrip("/")) for each in containers]
        found += [("network", each, each["Name"]) for each in networks]
        return [
            Leftover.from_labels(kind, name, facts.get("Labels") or {}, facts["Id"]) for kind, facts, name in found
        ]


def _insist(removal: Callable[[], object]) -> None:
    """Removes an object; retries while another client removes it too, or while the engine still uses it."""
    from docker.errors import APIError

    backoff = Backoff(PAUSE_S)
    for attempt in range(1, REMOVALS + 1):
        try:
            unless_gone(removal, None)
        except APIError:
            if attempt == REMOVALS:
                raise
            time.sleep(backoff.grow())
        else:
            return


def _ending(facts: Mapping[str, Any]) -> str | None:
    state = facts["State"]
    if state.get("Status") not in _OVER:
        return None
    if state.get("OOMKilled"):
        return f"was killed with exit code {state.get('ExitCode')}: it exceeded its memory limit (resources.memory)"
    return f"ended with exit code {state.get('ExitCode')}"


T = TypeVar("T")
# Seconds for which the last list of running containers is reused.
GLANCE_S = 0.2


class LocalDockerProvider(BlockingContainers, SingleServerProvider):
    """Runs containers that only this machine can reach: their port is published on loopback. (Extra `docker`.)

    Remaining containers are removed at the exit of the process; `openenv providers gc` removes those of a killed one.

    Options (of a `LaunchSpec`, of `start_container`, or of the provider for all of its containers) are the arguments
    of `docker.containers.create` (`mem_limit`, `command`, `volumes`, `user`, `read_only`, `tmpfs`, `shm_size`,
    `runtime`, `platform`, `cap_add`, `cap_drop`, ...), `host_port` (of this machine) and `container_port`. With
    `network="none"` a container has a network only to this machine, which uses the container's own address. With
    `read_only=True` it has a /tmp in memory. Only the capabilities that an image needs to start as root are kept
    (`cap_drop=["ALL"]` drops these, too), and processes cannot gain new privileges.

    Args:
        image: Image of the warm containers.
        warm: Number of containers of `image` that are kept ready for the next deployments. See `pool`.
        env_vars: Environment variables of every server.
        resources: Limits of each server, where its specification has none.
        ready_timeout_s: Seconds that servers have to become ready, where the caller gives no other timeout.
        start_rate: How fast containers are started.
        progress: Called on another thread with the progress of a pull.
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
        start_rate: StartRate | None = None,
        progress: Callable[[PullProgress], object] | None = None,
        **options: Any,
    ):
        if warm < 0 or (warm and image is None):
            raise UsageError(
                f"warm must be 0 or more, and needs an image, got warm={warm}: LocalDockerProvider(image, warm=4)"
            )
        self.variables = {**PRIVATE_SERVER_VARIABLES, **(env_vars or {})}
        self.ready_timeout_s = ready_timeout_s
        self.start_rate = start_rate or StartRate()
        self.pool: WarmPool | None = None
        self._resources = resources or Resources()
        self._options = options
        self._progress = progress
        self._pulling = asyncio.Lock()
        self._checked: set[str] = set()
        self._seen: asyncio.Future[frozenset[str]] | None = None
        self._seen_at = 0.0
        self._engine = docker_client()
        self._containers = Containers(self._engine)
        self._owner = os.getpid()
        if warm:
            assert image is not None
            self.pool = WarmPool(self, self._whole(self.spec_of(image, None, {}, {})), warm)

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`; a warm deployment of the same `spec`, if one is ready."""
        whole = self._whole(spec)
        if self.pool is not None and whole == self.pool.spec:
            taken = self.pool.take()
            if taken is not None:
                return taken
        _check_several(whole, whole.count)
        return super().deployment(whole)

    def close(self) -> None:
        """Stops the running and the warm servers, and disconnects from the engine."""
        if os.getpid() != self._owner:
            return
        try:
            self.stop_container()
        finally:
            if self.pool is not None:
                self.pool.close()
            self._engine.close()

    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if port is not None:
            options["host_port"] = port
        return LaunchSpec(image=image, env_vars=env_vars, options=options)

    def _whole(self, spec: LaunchSpec) -> LaunchSpec:
        """A specification with the options of all containers added."""
        options = {**self._options, **spec.options}
        inside = options.pop("container_port", None)
        resources = self._resources if spec.resources == Resources() else spec.resources
        return spec.changed(options=options, port=spec.port or inside, resources=resources)

    # On the loop of this process.

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        _check_several(deployment.spec, replicas)
        if replicas:
            options = deployment.spec.options
            runtime = options.get("runtime")
            if runtime is not None and runtime not in self._checked:
                await on_thread(lambda: self._containers.check_runtime(runtime))
                self._checked.add(runtime)
            if deployment.servers:
                await self.refresh_servers(deployment)  # warm ones may have broken while they waited
            if NO_NETWORK in {options.get("network"), options.get("network_mode")} and deployment.handle is None:
                deployment.handle = added = Network(deployment.name)
                labels = deployment.labels
                await self._do(added, lambda: self._containers.add_network(added.name, labels))
        await super().resize(deployment, replicas)
        network: Network | None = deployment.handle
        if not replicas and network is not None:
            await self._do(network, lambda: self._containers.remove_network(network.name))
            deployment.handle = None

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        server.name = spec.options.get("name", server.name)
        container = Container(server.name, deployment.name, deployment.variables, gpus_for(deployment))
        server.handle = container
        network = None if deployment.handle is None else deployment.handle.name
        given = request(deployment, server, container.gpus, network)
        image = str(spec.image)
        if not await self._do(container, lambda: self._containers.create(container, image, given)):
            async with self._pulling:  # the next caller finds the image
                if not await on_thread(lambda: self._containers.has(image)):
                    await pull(self._engine, image, given.get("platform"), self._progress, deployment.variables)
            if not await self._do(container, lambda: self._containers.create(container, image, given)):
                raise LaunchFailed(f"{image} was pulled, but the engine does not have it: check its platform")
        facts = (image, container_port(spec), network, "host_port" not in spec.options)
        server.url = await self._do(container, lambda: self._containers.start(container, *facts))

    async def stop_server(self, server: Server) -> None:
        container: Container | None = server.handle
        if container is not None:
            await self._do(container, lambda: self._containers.remove(container))

    async def why_gone(self, server: Server) -> str | None:
        container: Container | None = server.handle
        if container is None:
            return "was stopped"
        now = asyncio.get_running_loop().time()
        if self._seen is None or now - self._seen_at > GLANCE_S:  # concurrent callers share one request
            labels = {PROVIDER: type(self).__name__, OWNER: str(OwnerProcess.this())}
            self._seen = start_task(on_thread(lambda: self._containers.running(labels)))
            self._seen_at = now
        if container.key in await shielded(self._seen):
            return None
        return await on_thread(lambda: self._containers.end_of(container))

    async def refresh_servers(self, deployment: Deployment) -> None:
        self._seen = None  # the list is out of date
        await super().refresh_servers(deployment)

    async def read_log(self, server: Server, lines: int) -> str:
        container: Container | None = server.handle
        return "" if container is None else await on_thread(lambda: self._containers.log(container, lines))

    async def find_leftovers(self) -> list[Leftover]:
        return await on_thread(lambda: self._containers.labelled(type(self).__name__))

    async def remove_leftover(self, leftover: Leftover) -> None:
        if leftover.kind == "network":
            await on_thread(lambda: self._containers.remove_network(str(leftover.handle)))
        else:
            found = Container(leftover.handle, leftover.deployment, {})
            await on_thread(lambda: self._containers.remove(found))

    async def _do(self, what: Container | Network, call: Callable[[], T]) -> T:
        """Runs calls on one object one by one, each to its end: a half-made object could not be removed."""
        while what.work is not None and not what.work.done():
            await asyncio.wait([what.work])
        work = what.work = start_task(on_thread(call))
        return await shielded(work)


def _check_several(spec: LaunchSpec, count: int) -> None:
    if count > 1 and {"host_port", "name"} & spec.options.keys():
        raise UsageError("several containers cannot share a name or a host_port: leave out both")
