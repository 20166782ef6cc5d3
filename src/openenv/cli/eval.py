"""`openenv eval`: how good a policy is in an environment."""

from __future__ import annotations

import asyncio
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import LaunchFailed, OpenEnvError
from .bench_options import SPARE_SESSIONS, ended_in_order
from .completing import TARGET
from .eval_compare import compare, show_comparison
from .eval_tables import progress_note, summary_lines
from .interruption import INTERRUPTED, leave, told_when_interrupted
from .progress import Progress

if TYPE_CHECKING:
    from ..evals.evaluation import Evaluation
    from ..evals.report import Report
    from ..evals.request import Request
    from ..evals.served import Served, ServedHere

__all__ = ["eval_"]

COUNT = click.IntRange(min=1)
_FILE = click.Path(dir_okay=False, path_type=Path)
# Seconds between two notes about what is found so far.
LOOK_S = 0.2
# In what a server says whose environment allows one session only.
_EXCLUSIVE = "does not support concurrent sessions"


class _Evaluating(click.Group):
    """A command with others below it: what is none of their names is its own target."""

    allow_interspersed_args = True
    allow_extra_args = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        # Of the path of a command below, the target is no part.
        return found if ctx.command is self else [each for each in found if not isinstance(each, click.Argument)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.meta[__name__] = list(args)
            return []
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if __name__ not in ctx.meta:
            return click.Command.invoke(self, ctx)
        name, *rest = ctx.meta[__name__]
        with self.commands[name].make_context(name, rest, parent=ctx) as inner:
            return inner.command.invoke(inner)


@click.group(
    "eval",
    cls=_Evaluating,
    short_help="Play a policy in an environment, and say how good it is.",
    subcommand_metavar="",
    no_args_is_help=True,
)
@click.argument("target", shell_complete=TARGET)
@click.option("--policy", required=True, metavar="MODULE:FUNCTION", help="Who acts; `random` takes any valid action.")
@click.option("--episodes", type=COUNT, show_default="one for each seed or task, else 100", help="How many.")
@click.option("--seeds", metavar="RANGE", help="One episode for each: 0-199, or 1,2,5, or both (0-9,20).")
@click.option("--seed", type=int, default=0, show_default=True, help="What seeds are derived from, without --seeds.")
@click.option("--split", help="Play the tasks of this split, each once.")
@click.option("--repeats", type=COUNT, default=1, show_default=True, help="How often each task is played.")
@click.option("--concurrency", type=COUNT, default=64, show_default=True, help="Episodes at once.")
@click.option("--max-steps", type=COUNT, default=1000, show_default=True, help="After so many an episode is over.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds for each step.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="How often an episode is played again that was lost to the infrastructure.",
)
@click.option(
    "--success-at", type=float, show_default="as observations say", help="The least return that is a success."
)
@click.option("--workers", type=COUNT, default=1, show_default=True, help="Processes of the server that is started.")
@click.option("--api-key", help="Key to show to a server at an address. [OPENENV_API_KEY]")
@click.option("--record", type=click.Path(file_okay=False), help="Record the episodes in this folder.")
@click.option("-o", "--output", type=_FILE, help="Write the result there, to compare others with.")
@click.option("--against", type=_FILE, help="Compare with this result of an earlier run.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
def eval_(
    target: str,
    workers: int,
    api_key: str | None,
    output: Path | None,
    against: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Plays a policy in TARGET and tells how good it is: what `openenv serve` takes (a bundled name, a folder,
    module:attribute, gymnasium:ENV_ID, pettingzoo:MODULE), which is served for that time, or the address of a server.

    A policy is a function from observation (a dict) to action (a dict), sync or async, or a class with a method
    `act`; docs/evaluation.md says more. Episodes that fail are no scores of 0: they are told of apart from the
    scores. Those that were lost to the infrastructure are played again first, with the same seed.

    Exit code 0: every episode was played; 1: some failed; 130: interrupted, with the result of what was played.

    \b
    Examples:
      openenv eval echo --policy random --episodes 20 --max-steps 10
      openenv eval gymnasium:CartPole-v1 --policy my_policy:act --seeds 0-199 -o first.json
      openenv eval http://127.0.0.1:8000 --policy my_policy:Agent --split test --record episodes
      openenv eval compare first.json second.json
    """
    from ..evals.report import check_output, read_report, write_report
    from ..evals.served import Served, is_address
    from ..settings import ClientSettings

    request = _request(target, asked)
    if output is not None:
        check_output(output)
    earlier = None if against is None else read_report(against)
    policy = request.chosen_policy()
    with ended_in_order(), told_when_interrupted("interrupted before the first episode"), ExitStack() as stack:
        here = None if is_address(target) else _serve(stack, target, workers, request.options.concurrency)
        served = Served(target, api_key or ClientSettings.read().api_key) if here is None else Served(here.url)
        report, code = _played(request, served, here, policy)
        try:
            if output is not None:
                write_report(report, output)
        finally:
            _tell(report, earlier, as_json)
    _end(code or int(report.summary.failed > 0))


eval_.add_command(compare)


def _request(target: str, asked: dict[str, Any]) -> Request:
    from ..evals.request import Request
    from ..evals.runner import Options

    named = asked["record"] is not None
    options = Options(asked.pop("concurrency"), asked.pop("max_steps"), asked.pop("retries"), named)
    return Request(target=target, options=options, **asked)


def _serve(stack: ExitStack, target: str, workers: int, concurrency: int) -> ServedHere:
    """Serves a target until the stack is left."""
    from ..evals.served import ServedHere

    click.echo(f"serving {target}", err=True)
    sessions = 1 if concurrency == 1 else concurrency + SPARE_SESSIONS
    try:
        return stack.enter_context(ServedHere(target, workers, max_sessions=sessions))
    except LaunchFailed as error:
        said = error.message.splitlines()
        if len(said) != 2 or not said[1].startswith("error: "):
            raise
        more = "; or play one episode at a time: --concurrency 1" if _EXCLUSIVE in said[1] else ""
        raise LaunchFailed(said[1].removeprefix("error: ") + more) from None


def _played(request: Request, served: Served, here: ServedHere | None, policy: Any) -> tuple[Report, int]:
    """Plays what is asked for; where that was ended early, what is played by then, and the exit code that says so."""
    with Progress() as progress, warnings.catch_warnings(record=True) as warned:
        looked = time.monotonic()

        def heard(_: object) -> None:
            nonlocal looked
            if (now := time.monotonic()) - looked >= LOOK_S:
                looked = now
                progress.show("episodes", len(run.episodes), run.planned, progress_note(run.episodes, run.planned))

        run: Evaluation = request.prepare(served, policy, heard)
        progress.show("episodes", 0, run.planned)
        try:
            return asyncio.run(run.run() if here is None else here.beside(run.run())), 0
        except (KeyboardInterrupt, LaunchFailed) as ended:
            if not run.episodes:
                raise
            if isinstance(ended, LaunchFailed):
                progress.say(f"error: {ended.message}")
            return run.report(), INTERRUPTED if isinstance(ended, KeyboardInterrupt) else 1
        finally:
            run.close()
            if run.players < min(request.options.concurrency, run.planned):
                progress.say(f"the server had room for {run.players} episodes at once")
            for words in dict.fromkeys(str(warning.message) for warning in warned):
                progress.say(f"warning: {words}")


def _tell(report: Report, earlier: Report | None, as_json: bool) -> None:
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        click.echo("\n".join(summary_lines(report)))
    if earlier is not None:
        try:
            show_comparison(earlier, report, on_stderr=as_json)
        except OpenEnvError as error:
            raise click.ClickException(error.message) from None


def _end(code: int) -> None:
    if code == INTERRUPTED:
        leave()  # a policy may be stuck on its thread
    if code:
        raise click.exceptions.Exit(code)
