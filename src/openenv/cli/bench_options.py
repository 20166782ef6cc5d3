"""Options of the `openenv bench` commands: what is measured, and where servers are launched."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import MissingExtra, UsageError
from ..providers.catalog import CATALOG
from .options import COUNT, together

if TYPE_CHECKING:
    from ..bench.load import LoadCounts
    from ..bench.scale import LaunchPlan
    from ..bench.served import ServedTarget
    from .bench_display import Display

T = TypeVar("T")

# Room for sessions whose close is still under way.
SPARE_SESSIONS = 64

url_option = click.option("--url", help="Address of a running server.")
serve_option = click.option(
    "--serve", metavar="TARGET", help="Serve this for the measurement, as `openenv serve` would."
)
workers_option = click.option(
    "--workers", type=COUNT, default=1, show_default=True, help="Worker processes, with --serve."
)
processes_option = click.option(
    "--processes",
    type=COUNT,
    show_default="by the sessions and cores",
    help="Processes of the load, each with its share.",
)


def command_line() -> str:
    """What was typed."""
    return shlex.join(["openenv", *sys.argv[1:]])


def display_module() -> ModuleType:
    """How results look. Raises `MissingExtra` where rich is not installed."""
    try:
        from . import bench_display
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "rich", "bench") from None
    return bench_display


def served(stack: ExitStack, display: Display, target: str, workers: int, sessions: int) -> ServedTarget:
    """Serves a target until the stack is left."""
    from ..bench.served import ServedTarget

    display.say(f"serving {target} with {workers} worker{'s' if workers > 1 else ''}")
    return stack.enter_context(ServedTarget(target, workers, max_sessions=sessions + SPARE_SESSIONS))


def served_by(serve: str | None, url: str, workers: int) -> str:
    """What the server is, in words."""
    return f"{serve}, {workers} worker(s)" if serve else url


def phases(total: int, counts: LoadCounts) -> dict[str, tuple[int, int]]:
    """How far sessions are, as bars."""
    done = {"connect": counts.connected, "reset": counts.reset, "step": counts.steps, "close": counts.closed}
    return {name: (count, total) for name, count in done.items()}


def failures(counts: LoadCounts) -> str:
    """How many failed, if any did."""
    return f"{counts.failed:,} failed" if counts.failed else ""


def numbers(text: str, kind: Callable[[str], T], option: str) -> list[T]:
    """Numbers with commas between them."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r}: it must be numbers with commas between them") from None


launch_options = together(
    click.option("--provider", type=click.Choice(list(CATALOG)), help="Launch servers there for the measurement."),
    click.option("--image", help="Image of the servers, with --provider."),
    click.option("--target", help="What the servers serve, as for `openenv serve`, with --provider."),
    click.option("--replicas", type=COUNT, help="How many servers, with --provider.  [default: 1]"),
    click.option(
        "--gateway",
        type=click.Choice(["none", "envoy"]),
        help="What spreads sessions over the servers: the load itself (none), or Envoy.  [default: none]",
    ),
    click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Processors of each server."),
    click.option("--memory", help="Memory of each server, as 512m."),
    click.option(
        "--option", "given", multiple=True, metavar="NAME=VALUE", help="An option of the place, as its page says."
    ),
    click.option("--provider-option", multiple=True, metavar="NAME=VALUE", help="An argument of the provider."),
)


def launching(
    options: Mapping[str, Any], url: str | None, serve: str | None, workers: int, sessions: int
) -> LaunchPlan | None:
    """What is to be launched; None: nothing, since there is a `--url` or something to serve.

    Args:
        options: Those of `launch_options`.
        url, serve, workers: What else was typed.
        sessions: How many there will be at one time.

    Raises:
        UsageError: Not exactly one of `--url`, `--serve` and `--provider` is given.
    """
    if sum(each is not None for each in (url, serve, options["provider"])) != 1:
        raise UsageError(
            "what shall be measured? give either --url of a running server, or --serve TARGET, or --provider"
        )
    if options["provider"] is None:
        for name, value in options.items():
            if value:
                raise UsageError(f"--{name.replace('given', 'option').replace('_', '-')} needs --provider")
        return None
    from ..bench.scale import LaunchPlan
    from ..providers.local import variables_of
    from ..providers.spec import LaunchSpec, Resources
    from .options import yaml_pairs

    if (options["image"] is None) == (options["target"] is None):
        raise UsageError("what shall be served? give one of --image and --target (as `--target benchmark`)")
    variables = variables_of({"max_sessions": sessions, "workers": workers})
    spec = LaunchSpec(
        image=options["image"],
        target=options["target"],
        replicas=options["replicas"] or 1,
        resources=Resources(cpus=options["cpus"], memory=options["memory"]),
        env_vars=variables,
        name="bench",
        options=yaml_pairs("--option", options["given"]),
    )
    return LaunchPlan(
        provider=options["provider"],
        provider_options=yaml_pairs("--provider-option", options["provider_option"]),
        spec=spec,
        gateway=options["gateway"] or "none",
        sessions=sessions,
    )
