"""`openenv gateway run`, as long as it runs."""

from __future__ import annotations

import asyncio
import http.client
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from .._asyncio import on_thread
from ..errors import LaunchFailed, OpenEnvError, UsageError
from ..providers import Gateway, deploy
from ..providers.catalog import catalog_entry
from ..providers.deployment import Deployment
from ..providers.gateway import Topology
from ..providers.spec import LaunchSpec
from ..settings import is_loopback
from .gateway import read_backends
from .terminal import variable

# Between two looks at the file of backends, and at Envoy.
LOOK_S = 0.5
# After which a server that has not answered is said not to: an answer may take 5 s, and comes a second later.
LOOKS_BEFORE_SILENCE = 13
ASKING_S = 5.0


class GatewayRun:
    """A gateway in the foreground, with its servers if it has started them.

    Args:
        topology: What was asked for.
        options: The command's.
    """

    def __init__(self, topology: Topology, options: Mapping[str, Any]):
        self._topology = topology
        self._options = options
        self._file: Path | None = options["backends_file"]
        self._ended = asyncio.Event()
        self._interrupted = False
        self._reload = False
        # Not what it is now: the file may have changed since the command read it.
        self._read_at: tuple[int, int] | None = None

    async def until_it_ends(self) -> bool:
        """Runs until a signal. Returns whether that was Ctrl-C.

        Raises:
            LaunchFailed: Envoy has ended.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._end, True)
        loop.add_signal_handler(signal.SIGTERM, self._end, False)
        loop.add_signal_handler(signal.SIGHUP, setattr, self, "_reload", True)
        work = asyncio.create_task(self._work())
        ending = asyncio.create_task(self._ended.wait())
        await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not work.done():  # a signal, perhaps during the start
            work.cancel()
            await asyncio.wait([work])
        if not work.cancelled():
            work.result()
        return self._interrupted

    def _end(self, interrupted: bool) -> None:
        self._interrupted = self._interrupted or interrupted
        self._ended.set()

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            deployment = await self._servers(stack)
            facts = asdict(self._topology) | {"threads": self._options["threads"]}
            del facts["backends"]
            gateway = Gateway(self._topology.backends if deployment is None else deployment, **facts)
            await stack.enter_async_context(gateway)
            await self._announce(gateway)
            looks = 0
            while gateway.end is None:
                await asyncio.sleep(LOOK_S)
                await self._reread(gateway)
                looks += 1
                for backend in await gateway.silent() if looks == LOOKS_BEFORE_SILENCE else ():
                    _warn(
                        f"{backend.name} does not answer GET {gateway.topology.health_path} at {backend.place}: "
                        "it gets no session until it does"
                    )
            raise LaunchFailed(f"Envoy {gateway.end}")

    async def _servers(self, stack: AsyncExitStack) -> Deployment | None:
        """Starts the servers, if that was asked for."""
        options = self._options
        forms = {form: options[form] for form in ("target", "image", "project") if options[form] is not None}
        if options["provider"] is None:
            if forms:
                raise UsageError(f"--{next(iter(forms))} needs --provider NAME: where the servers are started")
            return None
        if options["backends"] is not None or self._file is not None:
            raise UsageError("either --provider starts the servers, or --backends names those that run")
        spec = LaunchSpec(**forms, replicas=options["replicas"], env_vars=dict(map(variable, options["env"])))
        provider = catalog_entry(options["provider"]).make()
        close: Callable[[], None] | None = getattr(provider, "close", None)
        if close is not None:
            stack.push_async_callback(on_thread, close)
        click.echo(f"starting {spec.count} x {next(iter(forms.values()), '')} ({options['provider']}) ...", err=True)
        return await stack.enter_async_context(deploy(spec, provider))

    async def _announce(self, gateway: Gateway) -> None:
        backends = gateway.topology.backends
        _say(f"{click.style(gateway.url, bold=True)} before {len(backends)} server{'s' * (len(backends) != 1)}")
        for backend in backends:
            _say(f"  {backend.name}  {backend.place}")
        _say(f"statistics: {gateway.admin_url}/clusters")
        if gateway.api_key is not None:
            _say(f"key of the servers: {gateway.api_key}  (OPENENV_API_KEY for clients)")
        elif not is_loopback(gateway.topology.host):
            plain = [backend for backend in backends if not backend.tls]
            asked = (on_thread(partial(_open, backend.place), detached=True) for backend in plain)
            for backend, is_open in zip(plain, await asyncio.gather(*asked), strict=True):
                if is_open:
                    _warn(
                        f"{backend.name} asks for no key, so whoever reaches {gateway.topology.listen} may use it "
                        "(openenv serve --api-key)"
                    )

    async def _reread(self, gateway: Gateway) -> None:
        """Takes over the backends of the file; a file with a mistake is reported, and changes nothing."""
        changed_at = None
        with suppress(OSError):
            if self._file is not None:
                stat = self._file.stat()
                changed_at = stat.st_mtime_ns, stat.st_ino
        if self._file is None or (changed_at == self._read_at and not self._reload):
            return
        self._reload, self._read_at = False, changed_at
        before = gateway.topology.backends
        try:
            await gateway.update(read_backends(self._file))
        except OpenEnvError as error:
            _say(click.style("backends unchanged: ", fg="yellow") + error.message)
            return
        now = gateway.topology.backends
        if now != before:
            _say(f"{len(now)} backends: {', '.join(backend.name for backend in now)}")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _warn(text: str) -> None:
    _say(click.style("warning: ", fg="yellow") + text)


def _open(place: str) -> bool:
    """Whether a server answers requests without a key."""
    connection = http.client.HTTPConnection(place, timeout=ASKING_S)
    try:
        connection.request("GET", "/schema")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
