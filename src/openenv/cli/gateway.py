"""`openenv gateway`: one address before many servers, by Envoy, HAProxy or nginx."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .terminal import COUNT, PATH, together

if TYPE_CHECKING:
    from ..providers.gateway import Topology


_shared = together(
    click.option(
        "--backends", help="Servers, with commas between them: host:port, https://host:port, NAME=host:port."
    ),
    click.option("--backends-file", type=PATH, help="A file with one of them a line."),
    click.option("--listen", default="127.0.0.1:8000", show_default=True, help="Where clients find it."),
    click.option("--tls-cert", type=PATH, help="Certificate chain that clients are shown."),
    click.option("--tls-key", type=PATH, help="Its key."),
    click.option("--backend-ca", type=PATH, help="Authorities of backends' certificates."),
    click.option(
        "--admin-port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 of its statistics."
    ),
    click.option("--max-sessions", type=COUNT, help="Connections at one time, to all backends.  [default: 16384]"),
    click.option("--health-path", default="/health", show_default=True, help="What backends are asked every second."),
)


@click.group(short_help="One address before many servers.")
def gateway() -> None:
    """Sessions are spread evenly over servers, and come back to their own when a connection was lost. A server that
    does not answer gets none. Keys go through to the servers, which ask for them.

    \b
    Examples:
      openenv gateway run --backends 10.0.0.1:8000,10.0.0.2:8000
      openenv gateway render --backends 10.0.0.1:8000,10.0.0.2:8000 --format haproxy
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
@click.option("--output-dir", type=PATH, default="out/gateway", show_default=True, help="Where files go.")
@click.option("--folder", help="Where the files will lie in the end, since they name one another; there, otherwise.")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Have the program look at them, if it is here."
)
def render(kind: str, output_dir: Path, folder: str | None, check: bool, **options: Any) -> None:
    """Writes the configuration of a balancer for servers that run somewhere.

    \b
    Examples:
      openenv gateway render --backends 10.0.0.1:8000,10.0.0.2:8000 --listen 0.0.0.0:8000
      openenv gateway render --backends a=env-a:8000,b=env-b:8000 --format haproxy --output-dir deploy
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
            raise UsageError(f"{error.message}\n(--no-check: it is for another machine)") from None
        click.echo(f"checked by {program}")
    else:
        click.echo(f"not checked: {f'there is no {balancer.name} here' if check else 'as you wish'}")
    click.echo(f"start it with: {balancer.command.format(place)}")  # nginx looks for relative ones elsewhere


@gateway.command(short_help="Run Envoy before servers.")
@_shared
@click.option("--provider", help="Start the servers too, at this place (`openenv providers list`).")
@click.option("--target", help="What they serve, as for `openenv serve`.")
@click.option("--image", help="The container image that they run.")
@click.option("--project", help="The project that they run: a folder, or git+https://...")
@click.option("--replicas", type=COUNT, default=1, show_default=True, help="How many servers.")
@click.option("--env", multiple=True, help="A variable for them: NAME=VALUE, or NAME for the one of this process.")
@click.option("--threads", type=COUNT, help="Threads of Envoy.  [default: one for each processor, 8 at most]")
def run(**options: Any) -> None:
    """Stays in the foreground until Ctrl-C or SIGTERM, which end Envoy, and the servers that it has started. When
    --backends-file changes, or on SIGHUP, it is read again; sessions go on.

    \b
    Examples:
      openenv gateway run --backends 127.0.0.1:8001,127.0.0.1:8002
      openenv gateway run --provider local --target echo --replicas 4
      openenv gateway run --backends-file servers.txt --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
    """
    from .gateway_run import GatewayRun

    source = _listed(options) if options["provider"] is None else None
    topology = _topology(options, source or [])
    if asyncio.run(GatewayRun(topology, options).until_it_ends()):
        raise KeyboardInterrupt


def _listed(options: Mapping[str, Any]) -> list[str]:
    """The backends that were named."""
    given, file = options["backends"], options["backends_file"]
    if options.get("provider") is not None:
        return []
    if (given is None) == (file is None):
        raise UsageError("name the servers: --backends host:port,... or --backends-file FILE, and not both")
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
    files = {
        "tls_certificate": options["tls_cert"],
        "tls_key": options["tls_key"],
        "backend_ca": options["backend_ca"],
    }
    paths = {name: str(file.absolute()) for name, file in files.items() if file is not None}
    most = {} if options["max_sessions"] is None else {"max_sessions": options["max_sessions"]}
    return Topology(
        backends=tuple(Backend.parse(backend) for backend in backends),
        host=host.strip("[]") or "0.0.0.0",  # noqa: S104 - an empty host means all addresses
        port=int(port),
        admin_port=options["admin_port"],
        health_path=options["health_path"],
        **{"backend_ca": authorities(), **paths, **most},
    )
