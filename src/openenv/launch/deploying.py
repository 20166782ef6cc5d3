"""Servers for whoever needs them: started, ready, and gone with the block that asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from ..background import on_shared, on_thread, shared_loop
from ..cleanup import kept
from ..errors import UsageError
from ..providers.deployment import Deployment
from ..providers.provider import Provider
from ..providers.spec import LaunchSpec

__all__ = ["Deploying", "deploy"]


def deploy(
    spec: LaunchSpec,
    provider: Provider | None = None,
    replicas: int | None = None,
    *,
    ready_timeout_s: float | None = None,
) -> Deploying:
    """Servers of a specification, ready to be used.

    Example::

        async with deploy(LaunchSpec(target="echo"), replicas=4) as servers:
            async with EchoEnv(servers.urls, api_key=servers.api_key) as env:
                await env.reset()

    Args:
        spec: What to start.
        provider: Where; None takes this machine: processes for a target or a command, `uv run` for a project,
            Docker for an image.
        replicas: How many, in place of what the specification says.
        ready_timeout_s: Seconds for all of them to become ready; None takes the provider's.

    Returns:
        To be entered by `async with` or `with`, which stop the servers, or awaited for a `Deployment`, which its
        caller stops.

    Raises:
        UsageError: The place cannot do that.
    """
    if not isinstance(spec, LaunchSpec):
        raise UsageError(f"spec is {spec!r}: write LaunchSpec(target=...), or image=..., project=..., command=...")
    if provider is not None and not isinstance(provider, Provider):
        raise UsageError(f"provider is a {type(provider).__name__}: pass a Provider, such as LocalProvider()")
    wanted = spec if replicas is None else spec.changed(replicas=replicas, one_per_gpu=False)
    place = _usual(wanted) if provider is None else provider
    return Deploying(place, place.deployment(wanted), ready_timeout_s, owned=provider is None)


def _usual(spec: LaunchSpec) -> Provider:
    if spec.form == "image":
        from ..providers.docker import LocalDockerProvider

        return LocalDockerProvider()
    if spec.form == "project":
        from ..providers.uv import UVProvider

        return UVProvider()
    from ..providers.local import LocalProvider

    return LocalProvider()


class Deploying:
    """A deployment that is still to be started: by `await` or `async with`; by `with`, which blocks.

    Args:
        provider: Where.
        deployment: What.
        ready_timeout_s: Seconds to become ready.
        owned: Whether nobody else has the provider.
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

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with kept(error):
            await on_shared(self._stop())

    def __enter__(self) -> Deployment:
        return shared_loop().run(self._start())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with kept(error):
            shared_loop().run(self._stop())

    async def _started(self) -> Deployment:
        try:
            return await on_shared(self._start())
        except asyncio.CancelledError as error:  # perhaps just when they were ready, and then nobody has them
            with kept(error):
                await on_shared(self._stop())
            raise

    async def _start(self) -> Deployment:
        try:
            await self._deployment._start()
            await self._deployment._ready(self._ready_timeout_s)
        except BaseException as error:
            with kept(error):
                await self._stop()
            raise
        return self._deployment

    async def _stop(self) -> None:
        try:
            await self._deployment._stop()
        finally:
            close = getattr(self._provider, "close", None)
            if self._owned and close is not None:
                await on_thread(close)
