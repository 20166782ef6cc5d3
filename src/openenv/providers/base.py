"""Base classes of providers: the asynchronous contract, the rate of starts, and the blocking calls."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from .._asyncio import on_shared, shared_loop
from .._backoff import Backoff, jittered_pause, system_random
from .._exceptions import add_cleanup_note, undo_on_error
from ..errors import LaunchFailed, ProviderBusy, ProviderFailed, UsageError
from .deployment import Deployment, Server
from .owner import DEPLOYMENT, OWNER, OwnerProcess
from .redaction import KEYS
from .spec import Capabilities, LaunchSpec, Resources

T = TypeVar("T")


@dataclass(kw_only=True)
class StartRate:
    """Limits how fast servers are started, so that a place does not get all requests at once.

    Attributes:
        rate: Maximum of starts per second.
        jitter: Random delay of each start, as a part (0 to 1) of the time between two starts.
        at_once: Maximum of concurrent starts.
        attempts: Attempts of a start that fails for a temporary reason (`ProviderFailed.retryable`).
        pause_s: Seconds before the second attempt; each further pause is twice as long, up to `longest_pause_s`, and
            is shortened at random by up to a half. The place may ask for a longer pause (`retry_after_s`).
        longest_pause_s: The longest of those pauses, in seconds.
    """

    rate: float = 20.0
    jitter: float = 0.2
    at_once: int = 8
    attempts: int = 3
    pause_s: float = 0.5
    longest_pause_s: float = 10.0
    _next: float = field(default=0.0, init=False, repr=False)
    _room: asyncio.Semaphore | None = field(default=None, init=False, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rate", "at_once", "attempts", "pause_s", "longest_pause_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} of a StartRate must be more than 0, got {getattr(self, name)!r}")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter of a StartRate must be from 0 to 1, got {self.jitter!r}")

    async def start(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs an attempt within the limits, and retries it while it fails for a temporary reason.

        Args:
            attempt: The start. An attempt that fails must leave nothing behind.

        Raises:
            ProviderFailed: The error of the last attempt.
        """
        loop = asyncio.get_running_loop()
        if self._room is None or self._loop is not loop:  # after a fork, only the parent releases it
            self._room, self._loop, self._next = asyncio.Semaphore(self.at_once), loop, 0.0
        backoff = Backoff(self.pause_s, self.longest_pause_s)
        for number in range(1, self.attempts + 1):
            try:
                async with self._room:
                    now, gap = loop.time(), 1.0 / self.rate
                    turn = max(now, self._next)
                    self._next = turn + gap
                    if turn > now:
                        await asyncio.sleep(turn - now + gap * self.jitter * system_random.random())
                    return await attempt()
            except ProviderFailed as error:
                if not error.retryable or number == self.attempts:
                    raise
                asked_for = min(error.retry_after_s or 0.0, self.longest_pause_s)
            await asyncio.sleep(max(jittered_pause(backoff.grow()), asked_for))
        raise AssertionError("an attempt returns or raises")


PRIVATE_SERVER_VARIABLES: Mapping[str, str] = {"OPENENV_GRACE_S": "0"}
"""Variables of a server with one client program: when that stops the server, no episode is waited for."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A labelled object that a provider finds at its place, of any owner.

    Attributes:
        kind: Its kind, as the place calls it: container, service, process, job, actor.
        name: Its name at the place.
        deployment: The deployment that it belongs to.
        owner: The process that started it. None if the label cannot be read.
        handle: Its identifier at the place. Only for its provider.
    """

    kind: str
    name: str
    deployment: str
    owner: OwnerProcess | None
    handle: Any = None

    @classmethod
    def from_labels(cls, kind: str, name: str, labels: Mapping[str, str], handle: Any) -> Self:
        """A leftover from an object with `Deployment.labels`."""
        return cls(kind, name, labels.get(DEPLOYMENT, ""), OwnerProcess.read(labels.get(OWNER, "")), handle)


@dataclass(frozen=True, slots=True)
class ConnectionRefusal:
    """Why a connection to an existing server failed.

    Attributes:
        reason: The place's message.
        lasting: Whether the place will refuse the next connection too.
    """

    reason: str
    lasting: bool


class Provider(ABC):
    """A place for servers. Its abstract methods are called on one event loop of this process, and must not block it.

    A subclass implements five methods (`SingleServerProvider` makes one of them from two simpler ones), and passes
    `testing.ProviderConformance`.

    Attributes:
        capabilities: What it can do; checked before a start.
        public: Whether its servers can be reached from other machines.
        variables: Environment variables of every server there.
        ready_timeout_s: Seconds that servers have to become ready, unless a call gives another timeout.
        start_rate: How fast servers are started.
    """

    capabilities: ClassVar[Capabilities]
    public: bool = False
    variables: Mapping[str, str] = {}
    ready_timeout_s: float = 60.0
    start_rate: StartRate

    async def launch(self, spec: LaunchSpec) -> Deployment:
        """Starts servers, and does not wait until they are ready (`Deployment.ready` does).

        Raises:
            UsageError: The place does not support the specification.
            LaunchFailed: The start failed; nothing is left of it.
        """
        return await self.deployment(spec).start()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """A deployment that is not started yet. Raises `UsageError` as `launch` does."""
        self.capabilities.check(type(self).__name__, spec)
        return Deployment(self, spec)

    async def leftovers(self) -> list[Leftover]:
        """All objects at this place with our labels, of any owner."""
        return await on_shared(self.find_leftovers())

    async def discard(self, leftover: Leftover) -> None:
        """Removes an object that `leftovers` found, of any owner. Does nothing if it is gone already."""
        await on_shared(self.remove_leftover(leftover))

    @abstractmethod
    async def resize(self, deployment: Deployment, replicas: int) -> None:
        """Starts or stops servers until there are `replicas`; with 0, removes the whole deployment.

        `deployment.servers` has every server from before its start until after its end, also when this is cancelled.
        The `url` of each is set at the end.

        Raises:
            LaunchFailed: It failed (`ProviderBusy`: for a temporary reason).
        """

    @abstractmethod
    async def why_gone(self, server: Server) -> str | None:
        """Why a server is gone, phrased to follow "the server". None while it exists or is being started."""

    def last_refusal(self, server: Server) -> ConnectionRefusal | None:
        """Why the last connection to a server failed, if the place knows more than the connection shows."""
        return None

    @abstractmethod
    async def read_log(self, server: Server, lines: int) -> str:
        """The last lines of a server's log, or "" if it has none. Secrets are not masked yet."""

    @abstractmethod
    async def find_leftovers(self) -> list[Leftover]:
        """See `leftovers`."""

    @abstractmethod
    async def remove_leftover(self, leftover: Leftover) -> None:
        """See `discard`."""

    async def refresh_servers(self, deployment: Deployment) -> None:
        """Sets `gone` and `url` of each server, and adds servers that the place itself has started.

        May be called during `resize`: a server that is being started is not gone.
        """
        for server in list(deployment.servers):
            if server.url is not None:  # else the place may not know it yet
                server.gone = await self.why_gone(server)


class ContainerProvider(ABC):
    """Runs a server from an image. A provider has at most one server; a stopped one may be replaced.

    A subclass that implements the three abstract methods works wherever a provider is accepted. Leaving
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
        """Starts a server, and does not wait until it is ready.

        Args:
            image: Name of the image.
            port: Port of this machine at which clients reach it; None takes a free one.
            env_vars: Environment variables of the server.
            kwargs: Further options of the place.

        Returns:
            The address of the server.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stops and removes the server. May be called repeatedly."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Waits until sessions can be opened at an address that `start_container` returned.

        Raises:
            NotReady: Not within `timeout_s`.
        """

    def close(self) -> None:
        """Stops the running server."""
        self.stop_container()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class RuntimeProvider(ABC):
    """Runs one server at a time, without an image. A stopped server may be started again.

    A subclass that implements the three abstract methods works wherever a provider is accepted. Entering
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
            kwargs: Further options of the place.

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
        with undo_on_error(self.stop):
            self.start()
            self.wait_for_ready()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class SingleServerProvider(Provider):
    """A provider that starts and stops servers one by one."""

    @abstractmethod
    async def start_server(self, deployment: Deployment, server: Server) -> None:
        """Starts a server and sets its `url`. When this is cancelled or fails, `stop_server` is called for it.

        Raises:
            LaunchFailed: It failed (`ProviderBusy`: for a temporary reason, and is retried).
        """

    @abstractmethod
    async def stop_server(self, server: Server) -> None:
        """Stops and removes a server, also one with an incomplete start. May be called repeatedly."""

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        there = [server for server in deployment.servers if server.gone is None]
        kept = there[:replicas]
        await gather_all(*(self._end(deployment, server) for server in deployment.servers if server not in kept))

        async def begin() -> None:
            server = deployment.new_server()
            try:
                await self.start_server(deployment, server)
            except BaseException as error:
                with add_cleanup_note(error):
                    await self._end(deployment, server)
                if server in deployment.servers:
                    server.gone = "did not start, and could not be removed"
                    if isinstance(error, ProviderBusy):  # no retry: that would start a second server beside it
                        raise LaunchFailed(f"{error.message} (and the server could not be removed)") from error
                raise

        await gather_all(*(self.start_rate.start(begin) for _ in range(replicas - len(kept))))

    async def _end(self, deployment: Deployment, server: Server) -> None:
        await self.stop_server(server)
        deployment.servers.remove(server)


async def gather_all(*calls: Awaitable[object]) -> None:
    """Runs calls concurrently, waits for all of them, and then raises the first failure."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failure = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failure is not None:
        raise failure


_claim_lock = threading.Lock()


class _SingleDeploymentProvider(Provider):
    """A provider with one deployment, which its blocking calls start and stop."""

    _current: Deployment | None = None

    @property
    def current(self) -> Deployment | None:
        """The deployment that the blocking calls have started."""
        return self._current

    def _begin_current(self, spec: LaunchSpec, keyed: bool) -> str:
        open_to_all = not self.public and not keyed
        if open_to_all and spec.api_key is None and KEYS not in {**self.variables, **spec.env_vars}:
            # Programs that call this give their clients only the address, without a key.
            spec = spec.changed(api_key="")
        with _claim_lock:
            if self._current is not None:
                raise UsageError(
                    f"this {type(self).__name__} already has a server: stop it, or create another provider"
                )
            self._current = deployment = self.deployment(spec)
        self.api_key = deployment.api_key
        with undo_on_error(self._end_current):
            shared_loop().run(deployment._start())
            return deployment.url

    def _end_current(self) -> None:
        deployment = self._current
        if deployment is None:
            return
        shared_loop().run(deployment._stop())  # if this fails, it may be called again
        if self._current is deployment:
            self._current = None

    def _await_current(self, timeout_s: float | None) -> None:
        if self._current is None:
            raise UsageError(f"this {type(self).__name__} has no server: start it first")
        shared_loop().run(self._current._ready(timeout_s))


class BlockingContainers(_SingleDeploymentProvider, ContainerProvider):
    """Implements `ContainerProvider` with a deployment."""

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        keyed: bool = False,
        **kwargs: Any,
    ) -> str:
        """See `ContainerProvider.start_container`. The docstring of the class lists `kwargs`.

        Args:
            keyed: Whether a server of this machine asks for a key that was made for it; it is `api_key` then.

        Raises:
            LaunchFailed: The place refuses the server.
            UsageError: The provider has a server already, or an argument is unknown.
        """
        return self._begin_current(self.spec_of(image, port, dict(env_vars or {}), kwargs), keyed)

    def stop_container(self) -> None:
        """See `ContainerProvider.stop_container`."""
        self._end_current()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """See `ContainerProvider.wait_for_ready`.

        Raises:
            NotReady: Not in time; with the end of the log.
            LaunchFailed: The server is gone; with the end of the log. Raised at once.
        """
        self._await_current(timeout_s)

    @abstractmethod
    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """The specification from the arguments of `start_container`."""


def spec_of_options(image: str, env_vars: dict[str, str], options: dict[str, Any], gpus: int = 0) -> LaunchSpec:
    """A specification from the options of `start_container` for a cluster.

    Args:
        image: The image.
        env_vars: Environment variables.
        options: `replicas`, `cpu_limit`, `memory_limit`, `command`, `container_port`, and options of the place.
        gpus: GPUs of each server.
    """
    command = options.pop("command", None)
    cpus, memory = options.pop("cpu_limit", None), options.pop("memory_limit", None)
    return LaunchSpec(
        image=image,
        command=command.split() if isinstance(command, str) else command,
        port=options.pop("container_port", None),
        replicas=options.pop("replicas", 1),
        env_vars=env_vars,
        resources=Resources(cpus=cpus, memory=memory, gpus=gpus),
        options=options,
    )


class BlockingRuntime(_SingleDeploymentProvider, RuntimeProvider):
    """Implements `RuntimeProvider` with a deployment."""

    _target: str | None = None

    @property
    def base_url(self) -> str:
        """The server's address.

        Raises:
            UsageError: It was not started.
        """
        if self._current is None:
            raise UsageError(f"this {type(self).__name__} has no server: call start(), or use it in `with`")
        return self._current.url

    def start(
        self,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        keyed: bool = False,
        **kwargs: Any,
    ) -> str:
        """See `RuntimeProvider.start`.

        Args:
            keyed: Whether a server of this machine asks for a key that was made for it; it is `api_key` then.

        Raises:
            LaunchFailed: It ended, or did not listen in its time; with the end of its log.
            UsageError: It runs already, or an argument is unknown.
        """
        return self._begin_current(self.spec_of(port, dict(env_vars or {}), kwargs), keyed)

    def stop(self) -> None:
        """See `RuntimeProvider.stop`."""
        self._end_current()

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """See `RuntimeProvider.wait_for_ready`; None takes the timeout of the start."""
        self._await_current(timeout_s)

    def spec_of(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """The specification from the arguments of `start` and the target of the provider."""
        if self._target is None:
            name = type(self).__name__
            raise UsageError(f'{name}() has no target: use {name}("echo"), or launch() a LaunchSpec')
        # The clients of a public server may have the provider's key already.
        keyed = self.public and KEYS not in {**self.variables, **env_vars}
        key = self.api_key if keyed else None
        return LaunchSpec(target=self._target, port=port, env_vars=env_vars, api_key=key, options=options)
