"""`openenv bench steps`: what a step costs."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from . import bench_options as options

if TYPE_CHECKING:
    from ..bench.closed_loop import Metered
    from ..bench.step_cost import StepCost

__all__ = ["steps"]


@click.command(short_help="What a step costs, in time and in CPU of both sides.")
@options.url_option
@options.serve_option
@click.option("--sessions", type=options.COUNT, default=64, show_default=True, help="Sessions that step at once.")
@click.option("--vector", type=options.COUNT, help="Instead: so many sessions of one vector client, a batch a step.")
@click.option(
    "--duration", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds of each trial."
)
@click.option("--action", default="{}", show_default=True, help="What each step does, as JSON.")
@click.option("--server-pid", type=int, multiple=True, help="With --url: process of the server, for its CPU time.")
@options.workers_option
@options.processes_option
@click.option("--trials", type=options.COUNT, default=1, show_default=True, help="How often to measure.")
@click.option("--floor", is_flag=True, help="Put the load on an empty server too, in turns, and tell the ratio.")
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
    """Every session steps again as soon as it is answered. CPU time is read from the operating system, so it means
    the same whatever else the machine does. From 256 sessions on, so is the memory of a session.

    \b
    Examples:
      openenv bench steps --serve gymnasium:CartPole-v1 --action '{"action": 1}'
      openenv bench steps --serve benchmark --vector 256 --trials 5 --json > vector.json
    """
    shown = options.display_module()
    from ..bench.file_limit import check_share, enough_processes, raise_file_limit
    from ..bench.procfs import Processes
    from ..bench.result import steps_document
    from ..bench.served import probe
    from ..bench.step_cost import mean_cost
    from ..bench.stepper import Loop
    from ..bench.trials import measure_trials

    what = _action(action)
    options.one_server(url, serve)
    total = vector or sessions
    load = processes or (1 if vector else enough_processes(total, raise_file_limit()))
    check_share(total, load, raise_file_limit())
    with ExitStack() as stack:
        stack.enter_context(options.ended_in_order())
        display = stack.enter_context(shown.Display())
        server: Metered | None = Processes(server_pid) if server_pid else None
        if serve is not None:
            server = served = options.served(stack, display, serve, workers, total)
            url = served.url
        assert url is not None
        probe(url)
        loop = Loop(url, total, duration, what, vector=vector is not None, connections=workers)
        found = measure_trials(loop, trials, load, server, floor=floor, stage=display.say)
    if as_json:
        by = options.served_by(serve, url, workers)
        print(json.dumps(steps_document(loop, options.command_line(), serve, by, found.server, found.floor)))
    else:
        floor_cost = mean_cost(found.floor) if found.floor else None
        shown.stdout().print(shown.step_table(mean_cost(found.server), floor_cost))
    _end(mean_cost(found.server))


def _end(cost: StepCost) -> None:
    """Tells failures; they are the exit code's business too."""
    for error, count in cost.errors.items():
        print(f"{count} session(s) failed: {error}", file=sys.stderr)
    if cost.failed:
        raise click.exceptions.Exit(1)


def _action(text: str) -> dict[str, Any]:
    try:
        action = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--action is no JSON: {error}") from None
    if not isinstance(action, dict):
        raise UsageError(f"--action is {text}: it must be a JSON object")
    return action
