"""What is asked of a swarm's manager, by the Docker SDK: every call on a thread of its own, its errors ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..background import on_thread, to_its_end
from ..errors import ProviderFailed
from .engine import connected, translated
from .owner import DEPLOYMENT, PROVIDER
from .swarm_tasks import logged_by

__all__ = ["Manager"]

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
# A log may be on a node that does not answer.
LOG_S = 5.0
# Attempts to change a service that somebody else changes, too.
ATTEMPTS = 5
# Seconds until a network knows that its last container is gone.
DETACH_S = 5.0
_NOWHERE = {"", "0.0.0.0", LOOPBACK}  # noqa: S104 - what nodes say that have no address of their own


class Manager:
    """The engine that DOCKER_HOST names, as the manager of a swarm.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine.

    Attributes:
        host: Where this process reaches what is published at the engine's own machine.
    """

    def __init__(self) -> None:
        self._engine = connected()
        place = urlsplit(self._engine.api.base_url)
        self.host = (place.hostname or LOOPBACK) if place.scheme in {"http", "https"} else LOOPBACK
        self._nodes: dict[str, str] = {}

    def close(self) -> None:
        """Leaves the engine."""
        self._engine.close()

    def active(self) -> bool:
        """Whether the engine is in a swarm. Blocks."""
        with translated("looking for a swarm", {}):
            state = self._engine.info().get("Swarm", {}).get("LocalNodeState")
        return bool(state == "active")

    async def manages(self) -> bool:
        """Whether it is a manager of a swarm."""
        info = await self._ask("looking for a swarm", self._engine.info)
        return bool(info.get("Swarm", {}).get("ControlAvailable"))

    async def join(self, auto_init: bool) -> None:
        """Sees to it that the engine is the manager of a swarm.

        Raises:
            ProviderFailed: It is in none, or a worker.
        """
        if await self.manages():
            return
        if await on_thread(self.active):
            raise ProviderFailed("this Docker engine is a worker of its swarm: let DOCKER_HOST name a manager")
        if not auto_init:
            raise ProviderFailed("this Docker engine is in no swarm: docker swarm init, or auto_init_swarm")
        swarm = self._engine.swarm
        await self._whole(
            "making a swarm", lambda: swarm.init(advertise_addr=LOOPBACK, listen_addr=f"{LOOPBACK}:2377")
        )

    async def image(self, name: str) -> str:
        """What to call an image, so that nodes do not look at registries for one that was never at any."""

        def identity() -> str:
            from docker.errors import ImageNotFound

            try:
                image = self._engine.images.get(name)
            except ImageNotFound:
                return name
            return name if image.attrs.get("RepoDigests") else str(image.id)

        return await self._ask(f"looking for {name}", identity)

    async def create(self, image: str, arguments: dict[str, Any], variables: Mapping[str, str]) -> str:
        """Makes a service, also when this is cancelled meanwhile; returns its identifier."""

        def create() -> str:
            given = {**arguments, "secrets": self._secrets(arguments.get("secrets"))}
            return str(self._engine.services.create(image, **given).id)

        return await self._whole(f"starting a service of {arguments['name']}", create, variables)

    async def scale(self, service: str, replicas: int) -> None:
        """Sets how many tasks a service has. Those that stay are left alone, which the SDK's own `scale` does not."""

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
        """The port of the mesh that a service is published at, once it has one."""
        found = await self._ask("looking at a service", lambda: self._engine.api.inspect_service(service))
        ports = found.get("Endpoint", {}).get("Ports") or [{}]
        port: int | None = ports[0].get("PublishedPort")
        return port

    async def tasks(self, deployment: str) -> list[dict[str, Any]]:
        """The tasks of a deployment's service, those on their way out among them."""
        label = f"{DEPLOYMENT}={deployment}"
        found: list[dict[str, Any]] = await self._ask(
            "looking at a service", lambda: self._engine.api.tasks(filters={"label": label})
        )
        return found

    async def address(self, node: str) -> str:
        """Where a node is reached."""
        if node not in self._nodes:
            found = await self._ask("looking at the swarm's nodes", self._engine.api.nodes)
            self._nodes.update((each["ID"], _address(each)) for each in found)
        address = self._nodes.get(node, "")
        return self.host if address in _NOWHERE else address

    async def log(self, service: str, tasks: tuple[str, ...], lines: int) -> str:
        """The last lines that tasks of a service have written; "" where it cannot be read."""

        def read() -> bytes:
            parts = self._engine.api.service_logs(service, details=True, stdout=True, stderr=True, tail=lines)
            return b"".join(parts)

        try:
            async with asyncio.timeout(LOG_S):
                whole = await self._ask("reading a service's log", read)
        except (ProviderFailed, TimeoutError):
            return ""  # some log drivers cannot be read
        return "\n".join(logged_by(tasks, whole).splitlines()[-lines:])

    async def services(self, *labels: str) -> list[dict[str, Any]]:
        """The services with some labels."""
        found: list[dict[str, Any]] = await self._ask(
            "listing services", lambda: self._engine.api.services(filters={"label": list(labels)})
        )
        return found

    async def remove(self, service: str) -> None:
        """Removes a service; the swarm ends its tasks after that."""

        def remove() -> None:
            from docker.errors import NotFound

            try:
                self._engine.api.remove_service(service)
            except NotFound:
                return

        await self._whole("removing a service", remove)

    async def networks(self, provider: str) -> list[dict[str, Any]]:
        """The networks that a kind of provider has made."""
        label = f"{PROVIDER}={provider}"
        found: list[dict[str, Any]] = await self._ask(
            "listing networks", lambda: self._engine.api.networks(filters={"label": label})
        )
        return found

    async def network(self, name: str, labels: Mapping[str, str]) -> None:
        """Makes a network, if it is not there."""

        def make() -> None:
            from docker.errors import APIError

            networks = self._engine.networks
            try:
                if not networks.list(names=[f"^{name}$"]):
                    networks.create(name, driver="overlay", attachable=True, labels=dict(labels))
            except APIError:
                if not networks.list(names=[f"^{name}$"]):  # somebody else was faster
                    raise

        await self._whole(f"making the network {name}", make)

    async def remove_network(self, network: str) -> None:
        """Removes a network that no service is in; the others keep theirs."""

        def remove() -> None:
            from docker.errors import APIError, NotFound

            limit = time.monotonic() + DETACH_S
            while not self._joined(network):
                try:
                    self._engine.api.remove_network(network)
                except NotFound:
                    return
                except APIError:
                    if time.monotonic() > limit:
                        raise
                    time.sleep(0.1)
                else:
                    return

        await self._whole("removing a network", remove)

    def _joined(self, network: str) -> bool:
        templates = (service["Spec"]["TaskTemplate"] for service in self._engine.api.services())
        return any(network == each["Target"] for template in templates for each in template.get("Networks") or ())

    def _secrets(self, wanted: list[Any] | None) -> list[Any] | None:
        """Secrets of the swarm, of which the SDK wants more than the names."""
        from docker.types import SecretReference

        if not wanted or not any(isinstance(each, str) for each in wanted):
            return wanted
        found = {secret.name: secret.id for secret in self._engine.secrets.list()}
        missing = [each for each in wanted if isinstance(each, str) and each not in found]
        if missing:
            raise ProviderFailed(f"the swarm has no secret {', '.join(missing)}: docker secret create NAME FILE")
        return [SecretReference(found[each], each) if isinstance(each, str) else each for each in wanted]

    async def _ask(self, what: str, call: Callable[[], T], variables: Mapping[str, str] | None = None) -> T:
        def translated_call() -> T:
            with translated(what, variables or {}):
                return call()

        return await on_thread(translated_call)

    async def _whole(self, what: str, call: Callable[[], T], variables: Mapping[str, str] | None = None) -> T:
        """For what changes something: that must not happen after what is done about a cancellation."""
        return await to_its_end(self._ask(what, call, variables))


def _address(node: Mapping[str, Any]) -> str:
    address = str(node.get("Status", {}).get("Addr") or "")
    if address in _NOWHERE:
        address = str(node.get("ManagerStatus", {}).get("Addr") or "").rpartition(":")[0].strip("[]")
    return f"[{address}]" if ":" in address else address
