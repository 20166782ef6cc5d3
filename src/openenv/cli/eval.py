"""`openenv eval`: score a policy in an environment."""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from ..errors import LaunchFailed, OpenEnvError
from . import terminal
from .bench import SPARE_SESSIONS
from .terminal import (
    COUNT,
    FILE,
    ProgressBar,
    complete_target,
    cut,
    ended_in_order,
    is_address,
    message_on_interrupt,
    table_lines,
    tame,
)

if TYPE_CHECKING:
    from ..evals.evaluation import EvalRequest, Evaluation
    from ..evals.report import EvalReport, EvalSummary
    from ..evals.runner import EpisodeResult
    from ..evals.server import EvalServer, LocalEvalServer
    from ..evals.statistics import PassAtK, Share

_FAULTS = {
    "policy": "by the policy's fault",
    "environment": "by the environment's fault",
    "infrastructure": "by a fault of the infrastructure",
}
MESSAGE_WIDTH = 200
NAME_WIDTH = 40
# Rows of the table of tasks; `--json` has all.
MOST_TASKS = 20
_INTERVALS = {
    "seeds": "intervals: of the mean over other seeds",
    "tasks": "intervals: of the mean over other tasks like these; repeats of one task are one cluster",
    "repeats": "intervals: of the mean over other repeats of this task, and not over other tasks",
}
_COLOURED = {"higher": click.style("higher", fg="green"), "lower": click.style("lower", fg="red")}


def progress_note(episodes: Sequence[EpisodeResult], planned: int) -> str:
    """The results so far."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    failed = sum(episode.failure is not None for episode in episodes)
    said = [f"{len(episodes)} of {planned}"]
    said += [f"mean return {fmean(scores):.4g}"] if scores else []
    return ", ".join([*said, *([f"{failed} failed"] if failed else [])])


def summary_lines(report: EvalReport) -> list[str]:
    """A report, as text."""
    about, summary = report.about, report.summary
    name = tame(about.environment or about.target)
    head = f"{about.policy} in {name}: {_episodes(summary)} in {about.seconds:.1f} s"
    lines = [click.style(head, bold=True), *_score_lines(report)]
    if not summary.scored:
        lines.append("  no episode has a return")
    elif summary.intervals_over is not None:
        lines.append(f"  {_INTERVALS[summary.intervals_over]}")
    lines += _task_lines(summary)
    if summary.ends.get("max_steps"):
        lines.append(f"  {summary.ends['max_steps']} were cut short after {about.max_steps} steps (--max-steps)")
    if summary.repeated:
        lines.append(f"  {summary.repeated} were played again, after failures of the infrastructure")
    for blame, counts in summary.failures.items():
        lines.append(click.style(f"  {sum(counts.values())} failed {_FAULTS[blame]}, and have no score:", fg="red"))
        for error, count in counts.items():
            message = " ".join(summary.examples.get(error, "").split())
            # The message comes from an environment and is not trusted.
            lines.append(tame(f"    {count} x {error}: {cut(message, MESSAGE_WIDTH)}"))
    if about.record is not None:
        lines.append(f"  recorded in {about.record}")
    return lines


def comparison_lines(first: EvalReport, second: EvalReport) -> list[str]:
    """Two reports side by side, as text.

    Raises:
        UsageError: They cannot be compared.
    """
    from ..evals.report import compare as compare_reports

    head = ["", "A", "B", "B - A", "95 % interval", "", "compared"]
    rows = [
        [
            comparison.figure,
            _number(comparison.first),
            _number(comparison.second),
            f"{comparison.difference:+.4g}",
            _interval(comparison.low, comparison.high),
            _COLOURED.get(comparison.verdict, comparison.verdict),
            f"{comparison.first_count} pairs"
            if comparison.method == "paired"
            else f"{comparison.first_count} and {comparison.second_count} ({comparison.method})",
        ]
        for comparison in compare_reports(first, second)
    ]
    lines = [f"A: {_what(first)}", f"B: {_what(second)}", *_indented([head, *rows])]
    for option in ("max_steps", "success_at"):
        ours, theirs = getattr(first.about, option), getattr(second.about, option)
        if ours != theirs:
            lines.append(
                f"  the runs used different options: --{option.replace('_', '-')} {ours} in A, {theirs} in B"
            )
    for name, report in (("A", first), ("B", second)):
        if report.summary.failed:
            lines.append(
                f"  {report.summary.failed} of {name}'s episodes failed and are not counted in these figures"
            )
    return lines


def _episodes(summary: EvalSummary) -> str:
    if summary.played < summary.planned:
        return f"interrupted after {summary.played} of {summary.planned} episodes"
    return terminal.plural(summary.played, "episode")


def _score_lines(report: EvalReport) -> list[str]:
    summary = report.summary
    rows = [["", "mean", "95 % interval", "least", "median", "most", "episodes"]]
    rubric = [(tame(f"rubric {name}"[:NAME_WIDTH]), sample) for name, sample in summary.rubric.items()]
    rows += [
        [
            name,
            _number(sample.mean),
            _interval(sample.low, sample.high),
            *map(_number, (sample.least, sample.median, sample.most)),
            str(sample.count),
        ]
        for name, sample in (("return", summary.returns), *rubric, ("length", summary.lengths))
        if sample
    ]
    share = summary.success
    if share is not None:
        rows.append(["success", f"{share.share:.1%}", _percents(share), "", "", "", str(share.count)])
    rows += [
        [f"pass@{chance.k}", f"{chance.share:.1%}", _percents(chance), "", "", "", f"{chance.tasks} tasks"]
        for chance in summary.pass_at
    ]
    return _indented(rows) if len(rows) > 1 else []


def _task_lines(summary: EvalSummary) -> list[str]:
    """The tasks that were repeated, those with the lowest returns and successes first."""
    if not summary.tasks:
        return []
    rows = [["task", "mean return", "least", "most", "success", "episodes"]]
    ordered = sorted(
        summary.tasks,
        key=lambda task: (task.success.share if task.success else 0, task.returns.mean if task.returns else 0),
    )
    for task in ordered[:MOST_TASKS]:
        returns, success = task.returns, task.success
        figures = ["-"] * 3 if returns is None else [*map(_number, (returns.mean, returns.least, returns.most))]
        hits = "-" if success is None else f"{success.hits} of {success.count}"
        rows.append([str(task.index), *figures, hits, str(0 if returns is None else returns.count)])
    more = len(ordered) - MOST_TASKS
    return [*_indented(rows), *([f"  and {more} tasks with higher figures (--json has all)"] if more > 0 else [])]


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in table_lines(rows, range(1, len(rows[0])))]


def _what(report: EvalReport) -> str:
    about = report.about
    return tame(f"{about.policy} in {about.environment or about.target}, {_episodes(report.summary)}")


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_number(low)} to {_number(high)}"


def _percents(share: Share | PassAtK) -> str:
    return "-" if share.low is None or share.high is None else f"{share.low:.1%} to {share.high:.1%}"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


@click.command(short_help="Compare two evaluations.")
@click.argument("first", metavar="A.json", type=FILE)
@click.argument("second", metavar="B.json", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object per figure.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Prints the differences of B from A in return, success and length, with their 95 % confidence intervals. A and B
    are files that `openenv eval --output` wrote.

    Episodes of the same seed or task are compared in pairs, which removes the differences between easy and hard
    seeds: give both runs the same --seeds. Runs without common seeds are compared as independent samples (Welch).

    \b
    Examples:
      openenv eval echo --policy my_policy:act --seeds 0-199 -o first.json
      openenv eval echo --policy my_policy:better --seeds 0-199 -o second.json
      openenv eval compare first.json second.json
    """

    from ..evals.report import compare as compare_reports
    from ..evals.report import read_report

    ours, theirs = read_report(first), read_report(second)
    if as_json:
        click.echo(json.dumps([asdict(comparison) for comparison in compare_reports(ours, theirs)]))
    else:
        click.echo("\n".join(comparison_lines(ours, theirs)))


# Seconds between two progress notes.
LOOK_S = 0.2
# In the error of a server that allows one session only.
_EXCLUSIVE = "does not support concurrent sessions"


class _Evaluating(click.Group):
    """A command with subcommands: an argument that is not one of them is its target."""

    allow_interspersed_args = True
    allow_extra_args = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        # The target is not part of the path of a subcommand.
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
    subcommand_metavar="",
    no_args_is_help=True,
)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--policy",
    required=True,
    metavar="MODULE:FUNCTION",
    help="Policy that chooses the actions; `random` takes any valid action.",
)
@click.option(
    "--episodes", type=COUNT, show_default="one for each seed or task, else 100", help="Number of episodes."
)
@click.option("--seeds", metavar="RANGE", help="Seeds, one episode each: 0-199, or 1,2,5, or both (0-9,20).")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Number that seeds are derived from if there are no --seeds.",
)
@click.option("--split", help="Play each task of this split.")
@click.option("--repeats", type=COUNT, default=1, show_default=True, help="Episodes per task.")
@click.option("--concurrency", type=COUNT, default=64, show_default=True, help="Concurrent episodes.")
@click.option(
    "--max-steps", type=COUNT, default=1000, show_default=True, help="Steps after which an episode is cut short."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Time limit of a step, in seconds.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Repetitions of an episode that failed because of the infrastructure.",
)
@click.option(
    "--success-at",
    type=float,
    show_default="as the observations report",
    help="Minimum return of a successful episode.",
)
@click.option("--workers", type=COUNT, default=1, show_default=True, help="Worker processes of the started server.")
@click.option("--api-key", help="API key for the server, if TARGET is an address. [OPENENV_API_KEY]")
@click.option("--record", type=click.Path(file_okay=False), help="Record the episodes in this folder.")
@click.option("-o", "--output", type=FILE, help="Write the result to this file, for later comparisons.")
@click.option("--against", type=FILE, help="Compare with this result of an earlier run.")
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
    """Plays a policy in TARGET and scores it. TARGET is the address of a server, or a target of `openenv serve` (a
    bundled name, a folder, module:attribute, gymnasium:ENV_ID, ...), which is then served for the run.

    A policy is a function from observation (a dict) to action (a dict), sync or async, or a class with a method
    `act`; docs/evaluation.md says more. A failed episode does not score 0: failed episodes are reported separately.
    Episodes that the infrastructure lost are first played again, with the same seed.

    Exit code 0: every episode was played; 1: some failed; 130: interrupted, with the result of what was played.

    \b
    Examples:
      openenv eval echo --policy random --episodes 20 --max-steps 10
      openenv eval gymnasium:CartPole-v1 --policy my_policy:act -o first.json
      openenv eval http://127.0.0.1:8000 --policy my_policy:Agent --split test
      openenv eval compare first.json second.json
    """

    from ..evals.evaluation import EvalRequest
    from ..evals.report import check_output, read_report, write_report
    from ..evals.runner import EvalOptions
    from ..evals.server import EvalServer
    from ..settings import ClientSettings

    options = EvalOptions(*(asked.pop(name) for name in ("concurrency", "max_steps", "retries")))
    request = EvalRequest(target=target, options=options, **asked)
    if output is not None:
        check_output(output)
    earlier = None if against is None else read_report(against)
    policy = request.chosen_policy()
    with (
        ended_in_order(),
        message_on_interrupt("interrupted before the first episode"),
        ExitStack() as stack,
    ):
        here = None if is_address(target) else _serve(stack, target, workers, request.options.concurrency)
        served = (
            EvalServer(target, api_key or ClientSettings.read().api_key) if here is None else EvalServer(here.url)
        )
        report, code = _played(request, served, here, policy)
        try:
            if output is not None:
                write_report(report, output)
        finally:
            click.echo(report.model_dump_json(indent=2) if as_json else "\n".join(summary_lines(report)))
            if earlier is not None:
                try:
                    click.echo("\n".join(comparison_lines(earlier, report)), err=as_json)
                except OpenEnvError as error:
                    raise click.ClickException(error.message) from None
    if code == terminal.INTERRUPTED:
        terminal.exit_now()  # a policy may hang on its thread
    if code or report.summary.failed:
        raise click.exceptions.Exit(code or 1)


eval_.add_command(compare)


def _serve(stack: ExitStack, target: str, workers: int, concurrency: int) -> LocalEvalServer:
    """Serves a target until the stack exits."""

    from ..evals.server import LocalEvalServer

    click.echo(f"serving {target}", err=True)
    sessions = 1 if concurrency == 1 else concurrency + SPARE_SESSIONS
    try:
        return stack.enter_context(LocalEvalServer(target, workers, max_sessions=sessions))
    except LaunchFailed as error:
        said = error.message.splitlines()
        if len(said) != 2 or not said[1].startswith("error: "):
            raise
        more = "; or play one episode at a time: --concurrency 1" if _EXCLUSIVE in said[1] else ""
        raise LaunchFailed(said[1].removeprefix("error: ") + more) from None


def _played(
    request: EvalRequest, served: EvalServer, here: LocalEvalServer | None, policy: Any
) -> tuple[EvalReport, int]:
    """Plays the episodes. After an interruption, returns the played ones, with its exit code."""
    with ProgressBar() as progress, warnings.catch_warnings(record=True) as warned:
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
            return run.report(), terminal.INTERRUPTED if isinstance(ended, KeyboardInterrupt) else 1
        finally:
            run.close()
            if run.players < min(request.options.concurrency, run.planned):
                progress.say(f"the server had room for {run.players} episodes at once")
            for words in dict.fromkeys(str(warning.message) for warning in warned):
                progress.say(f"warning: {words}")
