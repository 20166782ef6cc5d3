"""Start servers for a block of code (`deploy`), or a client together with its server (`from_docker_image`, ...)."""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

from .._asyncio import on_shared, on_thread, shared_loop
from .._exceptions import undo_async_on_error, undo_on_error
from ..client.base import ManagedServer, Urls
from ..client.env_client import EnvClient, SyncEnvClient
from ..errors import UsageError
from ..settings import ClientSettings
from .base import BlockingContainers, BlockingRuntime, Provider
from .deployment import Deployment, StoppedOnExit
from .docker import LocalDockerProvider
from .local import LocalProvider
from .spec import LaunchSpec
from .swarm import DockerSwarmProvider
from .uv import UVProvider

ClientT = TypeVar("ClientT", bound=EnvClient[Any, Any, Any])
_OF_PROVIDERS = {"base_url", "provider", "app", "image", "port", "env_vars"}


class Launch(Coroutine[Any, Any, ClientT], Generic[ClientT]):
    """A client and the start of its server: `await` and `async with` start it; `.sync()` and `with` do so and block.

    It is a coroutine since programs pass it to `asyncio.create_task`.

    Args:
        cls: The client's class.
        hosting: How to start its server.
        arguments: Further arguments of the client.
    """

    def __init__(self, cls: type[ClientT], hosting: ManagedServer, arguments: dict[str, Any]):
        self._cls = cls
        self._hosting = hosting
        self._arguments = arguments
        self._client: ClientT | None = None
        self._starting: Coroutine[Any, Any, ClientT] | None = None

    def started(self) -> ClientT:
        """Starts the server, blocks until it is ready, and returns the client."""
        if self._client is None:
            self._client = self._made(self._hosting.start())
        return self._client

    def sync(self) -> SyncEnvClient[Any, Any, Any]:
        """The client for code that cannot await. Blocks until its server is ready."""
        return self.started().sync()

    def __await__(self) -> Generator[Any, None, ClientT]:
        return self._start().__await__()

    def send(self, value: Any) -> Any:
        """See `Coroutine.send`."""
        self._starting = self._starting or self._start()
        return self._starting.send(value)

    def throw(self, *exc_info: Any) -> Any:
        """See `Coroutine.throw`."""
        self._starting = self._starting or self._start()
        return self._starting.throw(*exc_info)

    def close(self) -> None:
        """See `Coroutine.close`; close a started client by its own `close`."""
        if self._starting is not None:
            self._starting.close()

    async def __aenter__(self) -> ClientT:
        client = await self._start()
        async with undo_async_on_error(client.close):
            return await client.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._client is not None:
            await self._client.__aexit__(*exc_info)

    def __enter__(self) -> ClientT:
        client = self.started()
        with undo_on_error(lambda: client.sync().close()):
            return client.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        if self._client is not None:
            self._client.__exit__(*exc_info)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name}: the server of this {self._cls.__name__} is not started yet: await the "
            "result of from_docker_image, from_env or from_hub, or call its sync() outside of a running event loop"
        )

    async def _start(self) -> ClientT:
        if self._client is None:
            url = await on_thread(self._hosting.start, self._hosting.stop)
            if self._client is None:
                self._client = self._made(url)
        return self._client

    def _made(self, url: Urls) -> ClientT:
        hosting = self._hosting.hand_over()
        with undo_on_error(hosting.stop):
            return make_client(self._cls, url, hosting, self._arguments)


def make_client(cls: type[ClientT], url: Urls, hosting: ManagedServer, arguments: dict[str, Any]) -> ClientT:
    """A client of a ready server. The constructor of `cls` may have fewer arguments than that of `EnvClient`."""
    parameters = inspect.signature(cls).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    whole = anything or "provider" in parameters
    client = cls(base_url=url, **({"provider": hosting.provider} if whole else {}), **arguments)
    client._managed_server = hosting
    return client


def from_docker_image(cls: type[ClientT], image: str, provider: Any = None, **kwargs: Any) -> Launch[ClientT]:
    """See `EnvClient.from_docker_image`."""
    if provider is None:
        provider = DockerSwarmProvider() if "replicas" in kwargs else LocalDockerProvider()
        stop = provider.close  # no other caller uses it
    elif not callable(getattr(provider, "start_container", None)):
        raise UsageError(f"{type(provider).__name__} does not start containers: pass a ContainerProvider")
    else:
        stop = provider.stop_container
    return _launch(cls, provider, partial(provider.start_container, image), stop, kwargs)


def from_env(
    cls: type[ClientT], repo_id: str, use_docker: bool = True, provider: Any = None, **kwargs: Any
) -> Launch[ClientT]:
    """See `EnvClient.from_env`."""
    owner, _, name = repo_id.partition("/")
    if not (owner and name) or "/" in name:
        raise UsageError(f"{repo_id!r} is not the name of a Space: write owner/name")
    runs = provider is not None and not hasattr(provider, "start_container")
    if use_docker and not runs:
        tag = kwargs.pop("tag", None) or "latest"
        image = f"{ClientSettings.read().hub_registry}/{hf_space_subdomain(repo_id)}:{tag}"
        return from_docker_image(cls, image, provider, **kwargs)
    if provider is None:
        of_uv = {key: kwargs.pop(key) for key in ("app", "host", "reload", "context_timeout_s") if key in kwargs}
        revision = f"@{kwargs.pop('tag')}" if "tag" in kwargs else ""
        project = f"git+{ClientSettings.read().hub_url.rstrip('/')}/spaces/{owner}/{name}{revision}"
        provider = UVProvider(project_path=project, **of_uv)
    elif not runs:
        raise UsageError(
            f"{type(provider).__name__} starts containers: set use_docker=True, or pass a RuntimeProvider"
        )
    return _launch(cls, provider, provider.start, provider.stop, kwargs)


def from_hub(
    cls: type[ClientT], repo_id: str, provider: Any = None, replicas: int | None = None, **kwargs: Any
) -> Launch[ClientT]:
    """See `EnvClient.from_hub`."""
    if replicas is not None:
        kwargs["replicas"] = replicas
    return from_env(cls, repo_id, True, provider, **kwargs)


def _launch(
    cls: type[ClientT], provider: Any, start: Callable[..., str], stop: Callable[[], None], kwargs: dict[str, Any]
) -> Launch[ClientT]:
    timeout_s = kwargs.pop("ready_timeout_s", None)
    known = {*inspect.signature(cls).parameters, *inspect.signature(EnvClient).parameters} - _OF_PROVIDERS
    arguments = {name: kwargs.pop(name) for name in known & kwargs.keys()}
    # Without a key, every client that reaches the address could use the server, also other users of this machine.
    if isinstance(provider, BlockingContainers | BlockingRuntime):
        kwargs["keyed"] = True
    elif getattr(provider, "public", False) is True and "OPENENV_API_KEYS" not in (kwargs.get("env_vars") or {}):
        key = secrets.token_urlsafe(24)
        kwargs["env_vars"] = {**(kwargs.get("env_vars") or {}), "OPENENV_API_KEYS": f"control:{key}"}

    def started() -> Urls:
        url = start(**kwargs)
        deployment = provider.current if isinstance(provider, BlockingContainers | BlockingRuntime) else None
        return deployment.urls if deployment is not None and len(deployment.urls) > 1 else url

    def ready(urls: Urls) -> None:
        url = urls if isinstance(urls, str) else urls[0]
        limits = () if timeout_s is None else (timeout_s,)
        provider.wait_for_ready(*((url,) if hasattr(provider, "start_container") else ()), *limits)

    launch = Launch(cls, ManagedServer(started, ready, stop, provider=provider), arguments)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # No event loop runs here, so blocking delays only the caller.
        return cast("Launch[ClientT]", launch.started())
    return launch


def hf_space_subdomain(repo_id: str) -> str:
    """A space's name in host names and in the Hub's registry: `o-echo-env` for `o/Echo_env`."""
    return re.sub("[^a-z0-9]", "-", repo_id.lower())


def deploy(
    spec: LaunchSpec,
    provider: Provider | None = None,
    replicas: int | None = None,
    *,
    ready_timeout_s: float | None = None,
) -> Deploying:
    """Starts servers, waits until they are ready, and stops them at the end of the block.

    Example::

        async with deploy(LaunchSpec(target="echo"), replicas=4) as servers:
            async with EchoEnv(servers.urls, api_key=servers.api_key) as env:
                await env.reset()

    Args:
        spec: The servers to start.
        provider: The provider; None takes this machine: processes for a target or a command, `uv run` for a
            project, Docker for an image.
        replicas: Number of servers. Overrides that of the specification.
        ready_timeout_s: Seconds until all servers are ready. None takes the timeout of the provider.

    Returns:
        A context manager for `async with` or `with`, which stops the servers. `await` returns a `Deployment`,
        which the caller must stop.

    Raises:
        UsageError: The provider cannot start this specification.
    """
    if not isinstance(spec, LaunchSpec):
        raise UsageError(f"spec is {spec!r}: write LaunchSpec(target=...), or image=..., project=..., command=...")
    if provider is not None and not isinstance(provider, Provider):
        raise UsageError(f"provider is a {type(provider).__name__}: pass a Provider, such as LocalProvider()")
    wanted = spec if replicas is None else spec.changed(replicas=replicas, one_per_gpu=False)
    by_form: dict[str, type[Provider]] = {"image": LocalDockerProvider, "project": UVProvider}
    place = by_form.get(wanted.form, LocalProvider)() if provider is None else provider
    return Deploying(place, place.deployment(wanted), ready_timeout_s, owned=provider is None)


class Deploying(StoppedOnExit):
    """A deployment and its start: `await` and `async with` start it; `with` does so and blocks.

    Args:
        provider: The provider of the deployment.
        deployment: The deployment to start.
        ready_timeout_s: Seconds until all servers are ready.
        owned: Whether the provider has only this deployment, and is closed with it.
    """

    def __init__(self, provider: Provider, deployment: Deployment, ready_timeout_s: float | None, *, owned: bool):
        self._provider = provider
        self._deployment = deployment
        self._ready_timeout_s = ready_timeout_s
        self._owned = owned

    def __await__(self) -> Generator[Any, None, Deployment]:
        return self._started().__await__()

    async def __aenter__(self) -> Deployment:
        return await self._started()

    def __enter__(self) -> Deployment:
        return shared_loop().run(self._start())

    async def stop(self) -> None:
        """Stops the servers. Leaving the block does that."""
        await on_shared(self._stop())

    async def _started(self) -> Deployment:
        # After a cancellation the servers may be ready, and the caller has no deployment to stop.
        async with undo_async_on_error(self.stop, asyncio.CancelledError):
            return await on_shared(self._start())

    async def _start(self) -> Deployment:
        async with undo_async_on_error(self._stop):
            await self._deployment._start()
            await self._deployment._ready(self._ready_timeout_s)
        return self._deployment

    async def _stop(self) -> None:
        try:
            await self._deployment._stop()
        finally:
            close = getattr(self._provider, "close", None)
            if self._owned and close is not None:
                await on_thread(close)
