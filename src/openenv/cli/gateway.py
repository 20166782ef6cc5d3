"""`openenv gateway`: one address before many servers, by Envoy, HAProxy or nginx."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from .._asyncio import on_thread
from .._processes import on_signal
from ..errors import LaunchFailed, OpenEnvError, UsageError
from .terminal import COUNT, PATH, plural, together, variable

if TYPE_CHECKING:
    from ..providers import Gateway, LaunchSpec, Provider, ScalingRule
    from ..providers.gateway import Topology

# Seconds between checks of the file of backends and of Envoy.
LOOK_S = 0.5
# Checks before a server is reported as silent: an answer may take 5 s, and comes a second later.
LOOKS_BEFORE_SILENCE = 13
ASKING_S = 5.0

_shared = together(
    click.option(
        "--backends", help="Servers, with commas between them: host:port, https://host:port, NAME=host:port."
    ),
    click.option("--backends-file", type=PATH, help="File with one server per line."),
    click.option(
        "--listen", default="127.0.0.1:8000", show_default=True, help="Address for clients, e.g. 0.0.0.0:8000."
    ),
    click.option("--tls-cert", type=PATH, help="Certificate chain of the gateway, for TLS."),
    click.option("--tls-key", type=PATH, help="Private key of that certificate."),
    click.option("--backend-ca", type=PATH, help="Certificate authorities of the backends' certificates."),
    click.option(
        "--admin-port", type=click.IntRange(0, 65535), default=0, help="Port of the statistics, on 127.0.0.1."
    ),
    click.option(
        "--max-sessions", type=COUNT, help="Maximum concurrent connections to all backends.  [default: 16384]"
    ),
    click.option(
        "--health-path",
        default="/health",
        show_default=True,
        help="Path of the health check, requested every second.",
    ),
)


@click.group()
def gateway() -> None:
    """Spreads sessions evenly over servers. After a lost connection, a session returns to its server. A server that
    does not answer gets no sessions. API keys are passed on to the servers, which check them.

    \b
    Examples:
      openenv gateway run --backends 10.0.0.1:8000,10.0.0.2:8000
      openenv gateway render --backends 10.0.0.1:8000,10.0.0.2:8000
    """


@gateway.command(short_help="Write the configuration of a balancer.")
@_shared
@click.option(
    "--format",
    "kind",
    type=click.Choice(["envoy", "haproxy", "nginx"]),
    default="envoy",
    show_default=True,
    help="The balancer.",
)
@click.option("--output-dir", type=PATH, default="out/gateway", show_default=True, help="Folder for the files.")
@click.option("--folder", help="Final folder of the files, which name one another.  [default: the output folder]")
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Check the files with the balancer if it is installed.",
)
def render(kind: str, output_dir: Path, folder: str | None, check: bool, **options: Any) -> None:
    """Writes the configuration of a balancer for running servers.

    \b
    Examples:
      openenv gateway render --backends env-a:8000 --listen 0.0.0.0:8000
      openenv gateway render --backends a=env-a:8000,b=env-b:8000 --format haproxy
    """

    from ..providers.gateway.programs import BALANCERS

    topology = _topology(options, _listed(options))
    balancer = BALANCERS[kind]
    place = PurePath(folder or output_dir.absolute())
    files = balancer.render(topology, place)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output_dir / name).write_text(text, encoding="utf-8")
            click.echo(f"written: {output_dir / name}")
    except OSError as error:
        raise UsageError(f"--output-dir {output_dir} cannot be written to: {error}") from None
    program = balancer.program()
    if check and program is not None:
        try:
            balancer.check(program, topology, output_dir)
        except UsageError as error:
            raise UsageError(f"{error.message}\n(--no-check skips this check of files for another machine)") from None
        click.echo(f"checked by {program}")
    else:
        click.echo(f"not checked: {f'{kind} is not installed here' if check else '--no-check'}")
    click.echo(f"start it with: {balancer.command.format(place)}")  # nginx looks for relative ones elsewhere


@gateway.command(short_help="Run Envoy in front of servers.")
@_shared
@click.option("--provider", help="Also start the servers, with this provider (`openenv providers list`).")
@click.option("--target", help="Target of the servers, as for `openenv serve`.")
@click.option("--image", help="Container image of the servers.")
@click.option("--project", help="Project of the servers: a folder, or git+https://...")
@click.option("--replicas", type=COUNT, help="Number of servers.  [default: 1]")
@click.option("--scale", metavar="MIN:MAX", help="Start and drain servers as sessions come and go.")
@click.option(
    "--utilization",
    type=float,
    default=0.8,
    show_default=True,
    help="With --scale: part of the slots that sessions take before a server is added.",
)
@click.option(
    "--settle",
    "settle_s",
    type=float,
    default=60.0,
    show_default=True,
    help="With --scale: seconds for which fewer servers must have been enough before one drains.",
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(min=0, min_open=True),
    help="With --scale: seconds until a draining server is stopped with its sessions.  [default: after its last one]",
)
@click.option("--env", multiple=True, help="Variable of the servers: NAME=VALUE, or NAME to take this shell's.")
@click.option("--threads", type=COUNT, help="Threads of Envoy.  [default: one for each processor, 8 at most]")
def run(**options: Any) -> None:
    """Runs Envoy until Ctrl-C or SIGTERM, which also stop the servers that this command started. The file of
    --backends-file is read again when it changes, and on SIGHUP; sessions continue.

    \b
    Examples:
      openenv gateway run --backends 127.0.0.1:8001,127.0.0.1:8002
      openenv gateway run --provider local --target echo --replicas 4
      openenv gateway run --provider local --target echo --scale 1:8
      openenv gateway run --backends-file servers.txt --listen 0.0.0.0:8443
    """
    topology = _topology(options, _listed(options) if options["provider"] is None else [])
    if asyncio.run(GatewayRun(topology, options).until_it_ends()):
        raise KeyboardInterrupt


def _listed(options: Mapping[str, Any]) -> list[str]:
    """The named backends."""
    given, file = options["backends"], options["backends_file"]
    if (given is None) == (file is None):
        raise UsageError("give the servers by --backends host:port,... or by --backends-file FILE, not both")
    return given.split(",") if given is not None else read_backends(file)


def read_backends(file: Path) -> list[str]:
    """The lines of a file with backends; `#` begins a comment.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--backends-file {file} cannot be read: {error}") from None
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def _topology(options: Mapping[str, Any], backends: list[str]) -> Topology:
    from ..providers.gateway import Backend, Topology
    from ..providers.gateway.gateway import authorities

    host, colon, port = options["listen"].rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"--listen must be an address and a port, as 0.0.0.0:8000, got {options['listen']!r}")
    files = {"tls_certificate": "tls_cert", "tls_key": "tls_key", "backend_ca": "backend_ca"}
    paths = {name: str(options[given].absolute()) for name, given in files.items() if options[given] is not None}
    most = {} if options["max_sessions"] is None else {"max_sessions": options["max_sessions"]}
    return Topology(
        backends=tuple(Backend.parse(backend) for backend in backends),
        host=host.strip("[]") or "0.0.0.0",  # noqa: S104 - an empty host means all addresses
        port=int(port),
        admin_port=options["admin_port"],
        health_path=options["health_path"],
        **{"backend_ca": authorities(), **paths, **most},
    )


class GatewayRun:
    """A gateway in the foreground, with its servers if it has started them.

    Args:
        topology: The requested topology.
        options: The command's.
    """

    def __init__(self, topology: Topology, options: Mapping[str, Any]):
        self._topology = topology
        self._options = options
        self._file: Path | None = options["backends_file"]
        self._interrupted = False
        self._reload = False
        # Not the current file: it may have changed since the command read it.
        self._read_at: tuple[int, int] | None = None

    async def until_it_ends(self) -> bool:
        """Runs until a signal. Returns whether that was Ctrl-C.

        Raises:
            LaunchFailed: Envoy has ended.
        """
        work = asyncio.create_task(self._work())
        on_signal("SIGINT", self._end, work, True)
        on_signal("SIGTERM", self._end, work, False)
        on_signal("SIGHUP", setattr, self, "_reload", True)
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return self._interrupted

    def _end(self, work: asyncio.Task[None], interrupted: bool) -> None:
        self._interrupted = self._interrupted or interrupted
        if not work.cancelling():  # a second signal does not interrupt the cleanup
            work.cancel()

    async def _work(self) -> None:
        from ..providers import Autoscaler, Gateway, deploy

        async with contextlib.AsyncExitStack() as stack:
            rule, launch = self._rule(), await self._launch(stack)
            facts = asdict(self._topology) | {"threads": self._options["threads"]}
            del facts["backends"]
            if launch is None or rule is not None:
                gateway = Gateway(self._topology.backends, **facts)
            else:
                gateway = Gateway(await stack.enter_async_context(deploy(*launch)), **facts)
            await stack.enter_async_context(gateway)
            fleet = None
            if launch is not None and rule is not None:
                fleet = Autoscaler(gateway, *launch, rule, drain_s=self._options["drain_s"])
                await stack.enter_async_context(fleet)
            await self._announce(gateway, gateway.api_key if fleet is None else fleet.api_key)
            looks, states = 0, ["accepting"] * len(gateway.topology.backends)
            while gateway.end is None:
                await asyncio.sleep(LOOK_S)
                await self._reread(gateway)
                if fleet is not None and states != (states := sorted(server.state for server in fleet.servers)):
                    _say(f"{plural(len(states), 'server')}: {', '.join(states)}")
                looks += 1
                for backend in await gateway.silent() if looks == LOOKS_BEFORE_SILENCE else ():
                    _warn(
                        f"{backend.name} does not answer GET {gateway.topology.health_path} at {backend.place}: "
                        "it gets no session until it does"
                    )
            raise LaunchFailed(f"Envoy {gateway.end}")

    def _rule(self) -> ScalingRule | None:
        """The rule of --scale."""
        from ..providers import ScalingRule

        scale = self._options["scale"]
        if scale is None:
            return None
        if self._options["provider"] is None or self._options["replicas"] is not None:
            raise UsageError("--scale MIN:MAX needs --provider NAME, which starts the servers, and no --replicas")
        least, _, most = scale.partition(":")
        if not least.isdecimal() or not most.isdecimal():
            raise UsageError(f"--scale must be MIN:MAX, as 1:8, got {scale!r}")
        given = {name: self._options[name] for name in ("utilization", "settle_s")}
        return ScalingRule(least=int(least), most=int(most), **given)

    async def _launch(self, stack: contextlib.AsyncExitStack) -> tuple[LaunchSpec, Provider] | None:
        """The requested servers and their provider, which the stack closes."""

        from ..providers.catalog import catalog_entry
        from ..providers.spec import LaunchSpec

        options = self._options
        forms = {form: options[form] for form in ("target", "image", "project") if options[form] is not None}
        if options["provider"] is None:
            if forms:
                raise UsageError(f"--{next(iter(forms))} needs --provider NAME, which starts the servers")
            return None
        if options["backends"] is not None or self._file is not None:
            raise UsageError("--provider starts servers, and --backends names running ones: give either, not both")
        spec = LaunchSpec(**forms, replicas=options["replicas"] or 1, env_vars=dict(map(variable, options["env"])))
        provider = catalog_entry(options["provider"]).make()
        close: Callable[[], None] | None = getattr(provider, "close", None)
        if close is not None:
            stack.push_async_callback(on_thread, close)
        number = options["scale"] or spec.count
        click.echo(f"starting {number} x {next(iter(forms.values()), '')} ({options['provider']}) ...", err=True)
        return spec, provider

    async def _announce(self, gateway: Gateway, key: str | None) -> None:
        from ..settings import is_loopback

        backends = gateway.topology.backends
        _say(f"{click.style(gateway.url, bold=True)} before {plural(len(backends), 'server')}")
        for backend in backends:
            _say(f"  {backend.name}  {backend.place}")
        _say(f"statistics: {gateway.admin_url}/clusters")
        if key is not None:
            _say(f"key of the servers: {key}  (OPENENV_API_KEY for clients)")
        elif not is_loopback(gateway.topology.host):
            plain = [backend for backend in backends if not backend.tls]
            asked = (on_thread(partial(_open, backend.place), detached=True) for backend in plain)
            for backend, is_open in zip(plain, await asyncio.gather(*asked), strict=True):
                if is_open:
                    _warn(
                        f"{backend.name} asks for no key, so every client of {gateway.topology.listen} may use it "
                        "(openenv serve --api-key)"
                    )

    async def _reread(self, gateway: Gateway) -> None:
        """Loads the backends of the file; an invalid file is reported and changes nothing."""
        changed_at = None
        with contextlib.suppress(OSError):
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
    try:
        with contextlib.closing(http.client.HTTPConnection(place, timeout=ASKING_S)) as connection:
            connection.request("GET", "/schema")
            return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
