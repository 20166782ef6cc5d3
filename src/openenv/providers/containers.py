"""What is done to containers at a Docker engine. These calls block: they are made on threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import LaunchFailed, ProviderBusy, UsageError
from .docker_request import LOOPBACK
from .engine import translated
from .owner import DEPLOYMENT, OWNER, PROVIDER, Owner
from .provider import Leftover
from .secrecy import masked, secrets_of
from .tail import TAIL_LINES, with_tail

__all__ = ["Container", "Containers", "Network"]

# Seconds between the request to end and the end.
GRACE_S = 5
# How often the removal is tried of what the engine is still busy with, and the first pause, in seconds.
REMOVALS, PAUSE_S = 6, 0.1
_OVER = {"exited", "dead", "removing"}
_PORT_TAKEN = ("already allocated", "already in use")


@dataclass(eq=False, slots=True)
class Container:
    """What is known of a container, from before the engine is asked for it.

    Attributes:
        name: Its name.
        deployment: What it belongs to; one of the same name that does not is left alone.
        variables: Its environment variables, whose secrets no error repeats.
        gpus: The GPUs that it has.
        id: The engine's name of it.
        work: What is being done to it.
    """

    name: str
    deployment: str
    variables: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    id: str | None = None
    work: asyncio.Future[Any] | None = None

    @property
    def key(self) -> str:
        return self.id or self.name


@dataclass(eq=False, slots=True)
class Network:
    """A network of one deployment.

    Attributes:
        name: Its name.
        work: What is being done to it.
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
        """Raises `UsageError` for a runtime that the engine does not have."""
        with translated("asking the engine for its runtimes", {}):
            known = self._engine.info().get("Runtimes") or {}
        if runtime not in known:
            raise UsageError(
                f"this Docker engine has no runtime {runtime!r}, it has {', '.join(sorted(known))}: install it and "
                "name it in the engine's daemon.json (runtimes), or leave out runtime"
            )

    def has(self, image: str) -> bool:
        """Whether an image is here."""
        from docker.errors import ImageNotFound

        with translated(f"looking for {image}", {}):
            try:
                self._api.inspect_image(image)
            except ImageNotFound:
                return False
        return True

    def create(self, container: Container, image: str, given: Mapping[str, Any]) -> bool:
        """Makes a container. False: its image is not here."""
        from docker.errors import ImageNotFound

        with translated(f"starting a container of {image}", container.variables):
            try:
                container.id = self._engine.containers.create(image, **given).id
            except ImageNotFound:
                return False
        return True

    def start(self, container: Container, image: str, port: int, network: str | None, any_port: bool) -> str:
        """Starts a container, and says where it is reached.

        Args:
            container: One that was made.
            image: For errors.
            port: What it listens on.
            network: The network that it is reached in; None: its port is published.
            any_port: Whether the engine has chosen the port of this machine.
        """
        try:
            with translated(f"starting a container of {image}", container.variables):
                self._api.start(container.id)
                facts = self._api.inspect_container(container.id)
        except LaunchFailed as error:
            if any_port and any(words in str(error) for words in _PORT_TAKEN):
                raise ProviderBusy(str(error)) from None  # by somebody else who takes free ones; the next is another
            raise
        place = _address(facts, network, port) if network is not None else _published(facts, port)
        if place is None:
            raise LaunchFailed(f"the container {self._unreachable(container, facts)}")
        return f"http://{place}"

    def running(self, labels: Mapping[str, str]) -> frozenset[str]:
        """The ids of all containers with these labels that run."""
        filters = {"label": [f"{name}={value}" for name, value in labels.items()], "status": ["running"]}
        with translated("listing containers", {}):
            return frozenset(each["Id"] for each in self._api.containers(filters=filters))

    def end_of(self, container: Container) -> str | None:
        """Why it is gone, to go on with after "the server"; None while it is there."""
        from docker.errors import NotFound

        with translated("looking at the container", container.variables):
            try:
                return _ending(self._api.inspect_container(container.key))
            except NotFound:
                return "was removed"

    def log(self, container: Container, lines: int) -> str:
        """The last lines that it wrote, without secrets."""
        from docker.errors import NotFound

        with translated("reading the container's log", container.variables):
            try:
                text: bytes = self._api.logs(container.key, tail=lines)
            except NotFound:
                return ""
        return masked(text.decode(errors="replace").rstrip(), secrets_of(container.variables))

    def remove(self, container: Container) -> None:
        """Asks it to end, and removes it with its volumes: by force, if it would not be asked."""
        from docker.errors import APIError, NotFound

        with translated("removing a container", container.variables):
            try:
                facts = self._api.inspect_container(container.key)
                if (facts["Config"].get("Labels") or {}).get(DEPLOYMENT) != container.deployment:
                    return  # somebody else's, who has the name
                if facts["State"].get("Status") == "running":
                    with contextlib.suppress(APIError):
                        self._api.stop(facts["Id"], timeout=GRACE_S)
                _insist(lambda: self._api.remove_container(facts["Id"], force=True, v=True))
            except NotFound:
                return

    def add_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Makes a network that leads nowhere, in which containers do not see one another."""
        with translated("making a network", {}):
            self._api.create_network(
                name,
                driver="bridge",
                internal=True,
                labels=dict(labels),
                options={"com.docker.network.bridge.enable_icc": "false"},
            )

    def remove_network(self, key: str) -> None:
        """Removes a network, if it is there."""
        with translated("removing a network", {}):
            _insist(lambda: self._api.remove_network(key))

    def labelled(self, provider: str) -> list[Leftover]:
        """All that a provider's class has made here."""
        filters = {"label": f"{PROVIDER}={provider}"}
        with translated("listing containers", {}):
            containers = self._api.containers(all=True, filters=filters)
            networks = self._api.networks(filters=filters)
        found = [_leftover("container", each, (each["Names"] or [each["Id"]])[0].lstrip("/")) for each in containers]
        return found + [_leftover("network", each, each["Name"]) for each in networks]

    def _unreachable(self, container: Container, facts: Mapping[str, Any]) -> str:
        how = _ending(facts) or "was given no port: is its network one that ports are published in?"
        return with_tail(how, self.log(container, TAIL_LINES))


def _insist(removal: Callable[[], object]) -> None:
    """Removes something, also when somebody else is at it, or the engine still uses it for a moment."""
    from docker.errors import APIError, NotFound

    pause = PAUSE_S
    for attempt in range(1, REMOVALS + 1):
        try:
            removal()
        except NotFound:
            return
        except APIError:
            if attempt == REMOVALS:
                raise
            time.sleep(pause)
            pause *= 2
        else:
            return


def _address(facts: Mapping[str, Any], network: str, port: int) -> str | None:
    address = (facts["NetworkSettings"]["Networks"].get(network) or {}).get("IPAddress")
    return f"{address}:{port}" if address else None


def _published(facts: Mapping[str, Any], port: int) -> str | None:
    places = facts["NetworkSettings"]["Ports"].get(f"{port}/tcp")
    return f"{LOOPBACK}:{places[0]['HostPort']}" if places else None


def _ending(facts: Mapping[str, Any]) -> str | None:
    state = facts["State"]
    if state.get("Status") not in _OVER:
        return None
    if state.get("OOMKilled"):
        return f"was killed with exit code {state.get('ExitCode')}: it took more than its memory (resources.memory)"
    return f"ended with exit code {state.get('ExitCode')}"


def _leftover(kind: str, facts: Mapping[str, Any], name: str) -> Leftover:
    labels = facts.get("Labels") or {}
    return Leftover(kind, name, labels.get(DEPLOYMENT, ""), Owner.read(labels.get(OWNER, "")), facts["Id"])
