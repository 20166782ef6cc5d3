"""A server as a service of a Docker swarm: so many containers behind one port."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LaunchFailed, NotReady, ProviderFailed, UsageError
from .docker import CONTAINER_PORT, LOOPBACK
from .engine import LABEL, connected, new_name, translated
from .process import TAIL_LINES
from .provider import ContainerProvider
from .readiness import wait_until_ready
from .secrecy import key_of, masked, secrets_of

__all__ = ["DockerSwarmProvider"]

# Seconds in which a swarm says which port it has given a service.
PORT_S = 10.0
_FAILED = {"failed", "rejected"}


class DockerSwarmProvider(ContainerProvider):
    """Runs a service. A swarm publishes its port on every address of every node. (Extra `docker`.)

    Args:
        auto_init_swarm: Whether an engine that is in no swarm becomes one of its own.
        overlay_network: A network that the service joins; made if it is not there.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine, or it is in no swarm.
    """

    public = True

    def __init__(self, *, auto_init_swarm: bool = True, overlay_network: str | None = None):
        self._engine = connected()
        self._service: Any = None
        self._variables: dict[str, str] = {}
        self._network = overlay_network
        self._owner = os.getpid()
        try:
            self._join(auto_init_swarm)
        except BaseException:
            self._engine.close()
            raise

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        replicas: int = 1,
        cpu_limit: float | None = None,
        memory_limit: str | int | None = None,
        constraints: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        command: str | Sequence[str] | None = None,
        container_port: int = CONTAINER_PORT,
        **kwargs: Any,
    ) -> str:
        """Starts a service.

        Args:
            image: Name of the image.
            port: Port on every node; None has the swarm take a free one.
            env_vars: Environment variables of the servers.
            replicas: How many containers.
            cpu_limit: Processors that each may use.
            memory_limit: Memory of each, in bytes or as "512m".
            constraints: Where they may run, as in `node.role==worker`.
            labels: Further labels of the service.
            command: What they run, in place of the image's own.
            container_port: Port that the server listens on in its container.
            kwargs: Further arguments of `docker.services.create`, which win.

        Returns:
            The address of the service, on this machine.

        Raises:
            LaunchFailed: Whatever the engine says.
            UsageError: It runs one already, or an argument that there is not.
        """
        if self._service is not None:
            raise UsageError("this DockerSwarmProvider runs a service already: stop it first, or make another")
        if replicas < 1:
            raise UsageError(f"replicas must be 1 or more, got {replicas}")
        self._variables = dict(env_vars or {})
        self.api_key = key_of(self._variables)
        with translated(f"starting a service of {image}", self._variables):
            self._service = self._engine.services.create(
                image,
                **{
                    "name": new_name(image),
                    **_places(replicas, port, container_port, cpu_limit, memory_limit),
                    **kwargs,
                    "env": [f"{name}={value}" for name, value in self._variables.items()],
                    "labels": {**(labels or {}), LABEL: type(self).__name__},
                    "constraints": list(constraints or ()),
                    "networks": [self._network] if self._network else None,
                    "args": command.split() if isinstance(command, str) else command,
                },
            )
            atexit.register(self.stop_container)
            try:
                return f"http://{LOOPBACK}:{self._published()}"
            except BaseException:
                self.stop_container()
                raise

    def stop_container(self) -> None:
        """Removes the service; the swarm ends its containers."""
        service, self._service = self._service, None
        if service is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.stop_container)
        from docker.errors import NotFound

        with translated("removing a service", self._variables):
            try:
                service.remove()
            except NotFound:
                return

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """See `ContainerProvider.wait_for_ready`. With replicas, that one of them is ready.

        Raises:
            NotReady: Not in time; with the end of the service's log.
            LaunchFailed: One of its containers has failed; with the reason and the end of the log.
        """
        wait_until_ready(base_url, timeout_s, gone=self._gone, log=self._log, api_key=self.api_key)

    def close(self) -> None:
        """Removes what runs, and leaves the engine."""
        self.stop_container()
        self._engine.close()

    def _join(self, auto_init_swarm: bool) -> None:
        with translated("joining a swarm", {}):
            if self._engine.info().get("Swarm", {}).get("LocalNodeState") != "active":
                if not auto_init_swarm:
                    raise ProviderFailed("this Docker engine is in no swarm: docker swarm init, or auto_init_swarm")
                self._engine.swarm.init(advertise_addr=LOOPBACK, listen_addr=LOOPBACK)
            if self._network and not self._engine.networks.list(names=[f"^{self._network}$"]):
                self._engine.networks.create(self._network, driver="overlay", attachable=True)

    def _published(self) -> int:
        deadline = time.monotonic() + PORT_S
        while time.monotonic() < deadline:
            self._service.reload()
            ports = self._service.attrs.get("Endpoint", {}).get("Ports") or [{}]
            if "PublishedPort" in ports[0]:
                return int(ports[0]["PublishedPort"])
            time.sleep(0.1)
        raise NotReady(f"the swarm gave the service no port within {PORT_S:g} s")

    def _gone(self) -> str | None:
        service = self._service
        if service is None:
            return "was stopped"
        with translated("looking at the service", self._variables):
            states = [task.get("Status", {}) for task in service.tasks()]
        failed = next((state for state in states if state.get("State") in _FAILED), None)
        if failed is None:
            return None
        return f"was {failed['State']} ({masked(str(failed.get('Err')), secrets_of(self._variables))})"

    def _log(self) -> str:
        service = self._service
        if service is None:
            return ""
        try:
            with translated("reading the service's log", self._variables):
                lines = b"".join(service.logs(stdout=True, stderr=True, tail=TAIL_LINES))
        except LaunchFailed:
            return ""  # some log drivers cannot be read
        return masked(lines.decode(errors="replace").rstrip(), secrets_of(self._variables))


def _places(
    replicas: int, port: int | None, container_port: int, cpu_limit: float | None, memory_limit: str | int | None
) -> dict[str, Any]:
    """How many containers, with what, behind which port, in the words of the SDK."""
    from docker.types import EndpointSpec, Resources, ServiceMode
    from docker.utils import parse_bytes

    published: dict[str, Any] = {"Protocol": "tcp", "TargetPort": container_port, "PublishMode": "ingress"}
    if port is not None:
        published["PublishedPort"] = port
    return {
        "mode": ServiceMode("replicated", replicas),
        "endpoint_spec": EndpointSpec(mode="vip", ports=[published]),
        "resources": Resources(
            cpu_limit=None if cpu_limit is None else int(cpu_limit * 1_000_000_000),
            mem_limit=None if memory_limit is None else parse_bytes(memory_limit),
        ),
    }
