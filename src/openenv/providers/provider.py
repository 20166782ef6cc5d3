"""What a place for servers looks like, to those who start one there and to those who write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..background import on_shared
from .capabilities import Capabilities
from .deployment import Deployment, Server
from .owner import Owner
from .pace import Pace
from .spec import LaunchSpec

__all__ = ["FOR_ITS_OWNER", "ContainerProvider", "Leftover", "Provider", "Refusal", "RuntimeProvider"]

FOR_ITS_OWNER: Mapping[str, str] = {"OPENENV_GRACE_S": "0"}
"""Variables of a server that one program has for itself: when that stops it, nobody's episode is waited for."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something labelled that a provider finds at its place, of whatever owner.

    Attributes:
        kind: What it is, in the words of the place: container, service, process, job, actor.
        name: What it is called there.
        deployment: The deployment that it belongs to.
        owner: Who started it; None where the label cannot be read.
        handle: What the place knows it by. Only for its provider.
    """

    kind: str
    name: str
    deployment: str
    owner: Owner | None
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection to a server that is there failed.

    Attributes:
        reason: What the place said.
        lasting: Whether it will refuse the next one too.
    """

    reason: str
    lasting: bool


class Provider(ABC):
    """A place for servers. What is abstract here is called on one event loop of this process, and must not block it.

    A subclass implements five methods (`OneByOne` makes one of them from two simpler ones), and holds
    `testing.ProviderConformance`.

    Attributes:
        capabilities: What it can do; asked before anything is started.
        public: Whether its servers can be reached from other machines.
        variables: Environment variables of every server there.
        ready_timeout_s: Seconds that servers have to become ready, where nobody says otherwise.
        pace: How fast servers are started.
    """

    capabilities: ClassVar[Capabilities]
    public: bool = False
    variables: Mapping[str, str] = {}
    ready_timeout_s: float = 60.0
    pace: Pace

    async def launch(self, spec: LaunchSpec) -> Deployment:
        """Starts servers, and does not wait until they are ready (`Deployment.ready` does).

        Raises:
            UsageError: The place cannot do what is asked.
            LaunchFailed: It did not do it; nothing is left of the attempt.
        """
        return await self.deployment(spec).start()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """A deployment that is still to be started. Raises `UsageError` as `launch` does."""
        self.capabilities.check(type(self).__name__, spec)
        return Deployment(self, spec)

    async def leftovers(self) -> list[Leftover]:
        """Everything at this place that carries our labels, of whatever owner."""
        return await on_shared(self._leftovers())

    async def discard(self, leftover: Leftover) -> None:
        """Removes what `leftovers` found, whoever's it is. What is gone already is no error."""
        await on_shared(self._discard(leftover))

    @abstractmethod
    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        """Starts or stops servers until there are so many; with 0, removes all that there is of the deployment.

        `deployment.servers` has every server from before its start until after its end, whatever happens: also when
        this is cancelled. The `url` of each is set at the end.

        Raises:
            LaunchFailed: It cannot be done (`ProviderBusy`: at the moment).
        """

    @abstractmethod
    async def _gone(self, server: Server) -> str | None:
        """Why a server is gone, to go on with after "the server"; None while it is there or on its way."""

    def _refusal(self, server: Server) -> Refusal | None:
        """Why the last connection to a server failed, where the place knows more than the connection shows."""
        return None

    @abstractmethod
    async def _log(self, server: Server, lines: int) -> str:
        """The last lines of a server's log, or "" where there is none to be had. Not yet without secrets."""

    @abstractmethod
    async def _leftovers(self) -> list[Leftover]:
        """See `leftovers`."""

    @abstractmethod
    async def _discard(self, leftover: Leftover) -> None:
        """See `discard`."""

    async def _survey(self, deployment: Deployment) -> None:
        """Sets `gone` and `url` of each server, and adds those that the place has started by itself.

        May be called while `_resize` is at work: what is on its way is not gone.
        """
        for server in list(deployment.servers):
            if server.url is not None:  # else the place may not know it yet
                server.gone = await self._gone(server)


class ContainerProvider(ABC):
    """Runs a server from an image. One provider has one server at a time; a new one may follow when it was stopped.

    A subclass of yours works wherever a provider is asked for, if it implements the three abstract methods. Leaving
    `with provider:` closes it.

    Attributes:
        public: Whether its servers can be reached from other machines: clients then give them a key.
        api_key: The key that its server asks for, if the provider knows it.
    """

    public: bool = False
    api_key: str | None = None

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Starts a server, and does not wait for it.

        Args:
            image: Name of the image.
            port: Port of this machine that it is to be reached at; None takes a free one.
            env_vars: Environment variables of the server.
            kwargs: What else the place can do.

        Returns:
            The address of the server.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stops the server and removes what is left of it. May be called repeatedly."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Waits until sessions can be opened at an address that `start_container` returned.

        Raises:
            NotReady: Not within `timeout_s`.
        """

    def close(self) -> None:
        """Stops what runs."""
        self.stop_container()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class RuntimeProvider(ABC):
    """Runs one server that it knows how to make. One at a time; it may be started again when it was stopped.

    A subclass of yours works wherever a provider is asked for, if it implements the three abstract methods. Entering
    `with provider:` starts the server and waits until it is ready; leaving stops it.

    Attributes:
        public: Whether its servers can be reached from other machines: clients then give them a key.
        api_key: The key that its server asks for, if the provider knows it.
    """

    public: bool = False
    api_key: str | None = None

    @abstractmethod
    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        """Starts the server, and does not wait until it is ready.

        Args:
            port: Port that it listens on; None takes a free one.
            env_vars: Environment variables of the server.
            kwargs: What else the place can do.

        Returns:
            The address of the server.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stops the server. May be called repeatedly."""

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Waits until sessions can be opened.

        Raises:
            NotReady: Not within `timeout_s`.
        """

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_for_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
