"""`openenv bench`: measure an environment server."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

import openenv

from .._plots import require_matplotlib
from .._processes import raise_file_limit
from ..errors import UsageError
from ..providers.catalog import CATALOG
from .terminal import COUNT, FOLDER, display_module, ended_in_order, together, yaml_pairs

if TYPE_CHECKING:
    from ..bench.batch import RequestBatch
    from ..bench.load import LoadCounts
    from ..bench.scale import Grid, LaunchPlan
    from ..bench.served import ServedTarget
    from ..bench.steps import Metered
    from .display import Display


T = TypeVar("T")

# Room for sessions that are still closing.
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
    help="Processes that make the load.",
)


def command_line() -> str:
    """The command line options."""
    return shlex.join(["openenv", *sys.argv[1:]])


def served(stack: ExitStack, display: Display, target: str, workers: int, sessions: int) -> ServedTarget:
    """Serves a target until the stack exits."""

    from ..bench.served import ServedTarget

    display.say(f"serving {target} with {workers} worker{'s' if workers > 1 else ''}")
    return stack.enter_context(ServedTarget(target, workers, max_sessions=sessions + SPARE_SESSIONS))


def phases(total: int, counts: LoadCounts) -> dict[str, tuple[int, int]]:
    """Progress of sessions, as bars."""
    done = {"connect": counts.connected, "reset": counts.reset, "step": counts.steps, "close": counts.closed}
    return {name: (count, total) for name, count in done.items()}


def failures(counts: LoadCounts) -> str:
    """Number of failures, if any."""
    return f"{counts.failed:,} failed" if counts.failed else ""


def numbers(text: str, kind: Callable[[str], T], option: str, between: str = ",") -> list[T]:
    """Numbers with a separator between them."""
    try:
        return [kind(part) for part in text.split(between)]
    except ValueError:
        raise UsageError(f"{option} is {text!r}: it must be numbers with {between!r} between them") from None


launch_options = together(
    click.option(
        "--provider",
        type=click.Choice(list(CATALOG)),
        metavar="NAME",
        help="Launch servers with this provider (`openenv providers list`).",
    ),
    click.option("--image", help="Image of the servers, with --provider."),
    click.option("--target", help="Target of the servers, as for `openenv serve`, with --provider."),
    click.option("--replicas", type=COUNT, help="Number of servers, with --provider.  [default: 1]"),
    click.option(
        "--gateway",
        type=click.Choice(["none", "envoy"]),
        help="What spreads sessions over the servers: the load itself (none), or Envoy.  [default: none]",
    ),
    click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Processors of each server."),
    click.option("--memory", help="Memory of each server, e.g. 512m."),
    click.option(
        "--option",
        "given",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the servers; see the page of the provider.",
    ),
    click.option("--provider-option", multiple=True, metavar="NAME=VALUE", help="Argument of the provider."),
)


def launching(
    options: Mapping[str, Any], url: str | None, serve: str | None, workers: int, sessions: int
) -> LaunchPlan | None:
    """The specification to launch; None with a `--url` or a target to serve.

    Args:
        options: Those of `launch_options`.
        url, serve, workers: Other options.
        sessions: Number of concurrent sessions.

    Raises:
        UsageError: Not exactly one of `--url`, `--serve` and `--provider` is given.
    """

    from ..bench.scale import LaunchPlan
    from ..providers.local import variables_of
    from ..providers.spec import LaunchSpec, Resources

    if sum(each is not None for each in (url, serve, options["provider"])) != 1:
        raise UsageError(
            "nothing to measure, or more than one server: give one of --url ADDRESS, --serve TARGET and --provider"
        )
    if options["provider"] is None:
        for name, value in options.items():
            if value:
                raise UsageError(f"--{name.replace('given', 'option').replace('_', '-')} needs --provider")
        return None

    if (options["image"] is None) == (options["target"] is None):
        raise UsageError("--provider needs one of --image and --target (e.g. `--target benchmark`)")
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


@click.command(short_help="What a step costs, in time and in CPU of both sides.")
@url_option
@serve_option
@click.option("--sessions", type=COUNT, default=64, show_default=True, help="Concurrent sessions.")
@click.option("--vector", type=COUNT, help="Number of sessions of one vector client, which steps all in a batch.")
@click.option(
    "--duration", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds of each trial."
)
@click.option("--action", default="{}", show_default=True, help="Action of each step, as JSON.")
@click.option("--server-pid", type=int, multiple=True, help="With --url: process of the server, for its CPU time.")
@workers_option
@processes_option
@click.option("--trials", type=COUNT, default=1, show_default=True, help="Number of measurements.")
@click.option("--floor", is_flag=True, help="Also measure an empty server, in turns, and show the ratio.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for `openenv bench compare`.")
def steps(
    url: str | None,
    serve: str | None,
    sessions: int,
    vector: int | None,
    duration: float,
    action: str,
    server_pid: tuple[int, ...],
    workers: int,
    processes: int | None,
    trials: int,
    floor: bool,
    as_json: bool,
) -> None:
    """Measures a step. Each session sends the next one as soon as it has the reply. CPU time comes from the operating
    system, so it means the same on a busy machine. From 256 sessions on, the memory of a session is also measured.

    \b
    Examples:
      openenv bench steps --serve gymnasium:CartPole-v1 --action '{"action": 1}'
      openenv bench steps --serve benchmark --vector 256 --json > vector.json
    """

    from ..bench.load import check_share, enough_processes
    from ..bench.machine import Processes
    from ..bench.served import probe
    from ..bench.steps import ClosedLoop, mean_cost, measure_trials, steps_document

    shown = display_module()

    try:
        what = json.loads(action)
    except ValueError as error:
        raise UsageError(f"--action is not valid JSON: {error}") from None
    if not isinstance(what, dict):
        raise UsageError(f"--action is {action}: it must be a JSON object")
    if (url is None) == (serve is None):
        raise UsageError("give one server to measure: either --url of a running one, or --serve TARGET")
    total = vector or sessions
    load = processes or (1 if vector else enough_processes(total, raise_file_limit()))
    check_share(total, load, raise_file_limit())
    with ExitStack() as stack:
        stack.enter_context(ended_in_order())
        display = stack.enter_context(shown.Display())
        server: Metered | None = Processes(server_pid) if server_pid else None
        if serve is not None:
            server = target = served(stack, display, serve, workers, total)
            url = target.url
        assert url is not None
        by = f"{serve}, {workers} worker(s)" if serve else url
        probe(url)
        loop = ClosedLoop(url, total, duration, what, vector=vector is not None, connections=workers)
        found = measure_trials(loop, trials, load, server, floor=floor, stage=display.say)
    if as_json:
        print(json.dumps(steps_document(loop, command_line(), serve, by, found.server, found.floor)))
    else:
        floor_cost = mean_cost(found.floor) if found.floor else None
        shown.console().print(shown.step_table(mean_cost(found.server), floor_cost))
    cost = mean_cost(found.server)
    for reason, count in cost.errors.items():
        print(f"{count} session(s) failed: {reason}", file=sys.stderr)
    if cost.failed:
        raise click.exceptions.Exit(1)


@click.command(short_help="How many sessions at once a server carries.")
@url_option
@serve_option
@launch_options
@click.option("--requests-grid", default="32,128,512", show_default=True, help="Numbers of concurrent sessions.")
@click.option("--wait-grid", default="1.0", show_default=True, help="Seconds that each step takes, e.g. 0.1,1.0.")
@click.option("--reps", type=COUNT, default=3, show_default=True, help="Repetitions of each batch.")
@click.option(
    "--mode",
    type=click.Choice(["ws", "http"]),
    default="ws",
    show_default=True,
    help="A session over WebSocket, or one POST /reset and one POST /step.",
)
@click.option("--output-dir", type=FOLDER, default="out/scale", show_default=True, help="Folder for the results.")
@workers_option
@processes_option
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for each of connect, reset and step.")
@click.option("--server-cores", type=COUNT, help="Cores of the server's machine, if it is another one.")
@click.option(
    "--expected-hosts",
    type=COUNT,
    help="Fail (exit code 1) if fewer hosts than these had sessions.",
)
def scale(
    url: str | None,
    serve: str | None,
    requests_grid: str,
    wait_grid: str,
    reps: int,
    mode: str,
    output_dir: Path,
    workers: int,
    processes: int | None,
    timeout: float,
    server_cores: int | None,
    expected_hosts: int | None,
    **place: Any,
) -> None:
    """Each session connects, resets, steps once (the action is {"wait_seconds": W}) and closes. All sessions of a
    batch begin together. Writes raw.jsonl, summary.csv, result.json (for `openenv bench compare`), and in a checkout
    pictures and report.html (elsewhere: `openenv bench report`). Requests that fail are part of the result; the exit
    code is 1 if none succeeded.

    With --provider, servers are launched for the measurement, balanced, and removed after it, also when it fails or
    is interrupted. A server that requires a key gets the one in OPENENV_API_KEY.

    \b
    Examples:
      openenv bench scale --serve benchmark --requests-grid 1024,16384
      openenv bench scale --provider swarm --image my-env:1 --replicas 4
    """

    from ..bench.batch import Mode
    from ..bench.scale import Grid, check_grid, measure_scale, too_few_hosts

    shown = display_module()

    grid = Grid(
        requests=numbers(requests_grid, int, "--requests-grid"),
        waits=numbers(wait_grid, float, "--wait-grid"),
        reps=reps,
        mode=Mode(mode),
        timeout_s=timeout,
        processes=processes,
    )
    plan = launching(place, url, serve, workers, max(grid.requests, default=0) + SPARE_SESSIONS)
    check_grid(grid)
    root = checkout()
    if root is not None:
        require_matplotlib()
    if expected_hosts is not None and max(grid.requests) < expected_hosts:
        raise UsageError(
            f"{max(grid.requests)} sessions cannot reach {expected_hosts} hosts (--expected-hosts): "
            "raise --requests-grid"
        )
    with ExitStack() as stack:
        stack.enter_context(ended_in_order())
        display = stack.enter_context(shown.Display())

        def show(batch: RequestBatch, repetition: int, counts: LoadCounts) -> None:
            label = f"{batch.sessions:,} sessions, {batch.wait_seconds:g} s wait, repetition {repetition}"
            display.show(label, phases(batch.sessions, counts), failures(counts))

        result = measure_scale(
            grid,
            output_dir=output_dir,
            command=command_line(),
            cores=server_cores,
            progress=show,
            **_measured(stack, display, plan, url, serve, workers, grid),
        )
    console = shown.console()
    console.print(shown.scale_table(result.summaries))
    console.print("\n".join(result.verdicts()))
    for (kind, message), count in result.errors.most_common(5):
        console.print(f"{count:,} x {kind}: {message}", style="red", markup=False)
    if root is not None:
        _from_checkout(root, "report").write_scale_report(output_dir)
        console.print(f"written: {output_dir}/report.html, result.json, summary.csv, raw.jsonl", markup=False)
    else:
        console.print(f"written: {output_dir}/result.json, summary.csv, raw.jsonl", markup=False)
        console.print(f"report.html and figures: `openenv bench report {output_dir}` in a checkout", markup=False)
    if not any(summary.successful for summary in result.summaries):
        raise click.exceptions.Exit(1)
    missing = None if expected_hosts is None else too_few_hosts(result.summaries, expected_hosts)
    if missing is not None:
        click.echo(f"Error: {missing} (--expected-hosts)", err=True)
        raise click.exceptions.Exit(1)


def _measured(
    stack: ExitStack,
    display: Display,
    plan: LaunchPlan | None,
    url: str | None,
    serve: str | None,
    workers: int,
    grid: Grid,
) -> dict[str, Any]:
    """Provides a server until the stack exits; returns the facts that `measure_scale` needs."""

    from ..bench.scale import launched, settle
    from ..bench.served import probe
    from ..settings import ClientSettings

    if plan is not None:
        display.say(f"launching {plan.words}")
        deployment, urls = stack.enter_context(launched(plan))
        return {
            "url": urls,
            "served_by": plan.words,
            "target": plan.spec.target or plan.spec.image,
            "api_key": deployment.api_key,
            "settle": partial(settle, deployment),
        }
    if serve is not None:
        server = served(stack, display, serve, workers, max(grid.requests))
        probe(server.url)
        words = f"{serve}, {workers} worker(s)"
        return {"url": server.url, "served_by": words, "target": serve, "settle": server.settle}
    assert url is not None
    probe(url)
    return {"url": url, "served_by": url, "api_key": ClientSettings.read().api_key}


# Commands that need a checkout, with their line in the overview: the command's own `short_help`.
CHECKOUT_COMMANDS = {
    "batched": "Many worlds in one environment, next to other ways to step them.",
    "compare": "Compare two measurements.",
    "demo": "Serve, drive and measure on this machine, in under a minute.",
    "frames": "Image observations, next to Gymnasium's vector environments.",
    "report": "Write the report and figures of `bench scale`.",
    "sandbox": "Measure how a provider starts, runs and removes jobs.",
}


def checkout() -> Path | None:
    """The folder of the repository, or of the source distribution, of this openenv; None for a wheel."""
    root = Path(openenv.__file__).resolve().parents[2]
    parts = (root / "pyproject.toml", root / "benchmarks" / "commands.py")
    return root if all(part.is_file() for part in parts) else None


def _from_checkout(root: Path, module: str) -> ModuleType:
    """A module of `benchmarks/`. Load processes import it too: they inherit `sys.path`."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    found = importlib.import_module(f"benchmarks.{module}")
    if not Path(found.__file__ or "").resolve().is_relative_to(root):
        raise UsageError(f"{found.__file__} is another package `benchmarks`: take it out of PYTHONPATH")
    return found


class BenchGroup(click.Group):
    """The commands of the wheel, and those that need a checkout."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *CHECKOUT_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in CHECKOUT_COMMANDS:
            return super().get_command(ctx, cmd_name)
        root = checkout()
        if root is not None:
            command = getattr(_from_checkout(root, "commands"), cmd_name)
            assert isinstance(command, click.Command)
            return command

        def refuse() -> None:
            raise UsageError(
                f"`openenv bench {cmd_name}` is not in the wheel: it is in the folder benchmarks/ of openenv's "
                "source distribution and repository; run `make install` there, and use its .venv/bin/openenv"
            )

        return click.Command(
            cmd_name,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            callback=refuse,
            short_help=CHECKOUT_COMMANDS[cmd_name],
            add_help_option=False,
        )


@click.group("bench", cls=BenchGroup)
def app() -> None:
    """Measures environment servers: the cost of a step, and the number of sessions at one time.

    \b
    Examples:
      openenv bench demo
      openenv bench steps --serve echo
      openenv bench scale --serve benchmark --requests-grid 1024,4096
    """


app.add_command(scale)
app.add_command(steps)
