"""`openenv eval`: score a policy in an environment."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from ..errors import LaunchFailed, OpenEnvError
from . import terminal
from .model import (
    LOOK_S,
    RateNote,
    begin_run,
    budget_of,
    case_options,
    check_run_file,
    evaluated_server,
    model_of,
    model_options,
    play_options,
    run_facts,
    run_watched,
    sampling_of,
    write_run_file,
)

if TYPE_CHECKING:
    from ..evals.evaluation import Evaluation
    from ..evals.model_evaluation import ModelEvaluation
    from ..evals.report import EvalReport, EvalSummary
    from ..evals.rescore import RescoreSummary
    from ..evals.runner import EpisodeResult
    from ..evals.server import EvalServer, LocalEvalServer
    from ..evals.statistics import PassAtK, Share

_FAULTS = {
    "policy": "by the policy's fault",
    "environment": "by the environment's fault",
    "infrastructure": "by a fault of the infrastructure",
}
MESSAGE_WIDTH = 200
# Episodes at a time, of `rescore`.
SESSIONS = 16
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
    name = terminal.tame(about.environment or about.target)
    head = f"{about.policy} in {name}: {_episodes(summary)} in {about.seconds:.1f} s"
    lines = [click.style(head, bold=True), *_score_lines(report)]
    if not summary.scored:
        lines.append("  no episode has a return")
    elif summary.intervals_over is not None:
        lines.append(f"  {_INTERVALS[summary.intervals_over]}")
    lines += _task_lines(summary, "seed" if about.split is None else "task")
    if summary.ends.get("max_steps"):
        lines.append(f"  {summary.ends['max_steps']} were cut short after {about.max_steps} steps (--max-steps)")
    out = {end.removeprefix("out_of_"): count for end, count in summary.ends.items() if end.startswith("out_of_")}
    lines += [f"  {count} were cut short, out of {limit} (--budget {limit}=N)" for limit, count in out.items()]
    if summary.cost is not None:
        lines.append(f"  cost {summary.cost:.4g}")
    if summary.repeated:
        lines.append(f"  {summary.repeated} were played again, after failures of the infrastructure")
    for blame, counts in summary.failures.items():
        lines.append(click.style(f"  {sum(counts.values())} failed {_FAULTS[blame]}, and have no score:", fg="red"))
        for error, count in counts.items():
            message = " ".join(summary.examples.get(error, "").split())
            # The message comes from an environment and is not trusted.
            lines.append(terminal.tame(f"    {count} x {error}: {terminal.cut(message, MESSAGE_WIDTH)}"))
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
    for option in ("max_steps", "success_at", "sampling", "budget"):
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
    rubric = [(terminal.tame(f"rubric {name}"[:NAME_WIDTH]), sample) for name, sample in summary.rubric.items()]
    rows += [
        [
            name,
            _number(sample.mean),
            _interval(sample.low, sample.high),
            *map(_number, (sample.least, sample.median, sample.most)),
            str(sample.count),
        ]
        for name, sample in (
            ("return", summary.returns),
            *rubric,
            ("length", summary.lengths),
            ("tokens", summary.tokens),
        )
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


def _task_lines(summary: EvalSummary, noun: str) -> list[str]:
    """The tasks or seeds that were repeated, those with the lowest returns and successes first."""
    if not summary.tasks:
        return []
    rows = [[noun, "mean return", "least", "most", "success", "episodes"]]
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
    return [*_indented(rows), *([f"  and {more} {noun}s with higher figures (--json has all)"] if more > 0 else [])]


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in terminal.table_lines(rows, range(1, len(rows[0])))]


def _what(report: EvalReport) -> str:
    about = report.about
    return terminal.tame(f"{about.policy} in {about.environment or about.target}, {_episodes(report.summary)}")


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_number(low)} to {_number(high)}"


def _percents(share: Share | PassAtK) -> str:
    return "-" if share.low is None or share.high is None else f"{share.low:.1%} to {share.high:.1%}"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


@click.command(short_help="Compare two evaluations.")
@click.argument("first", metavar="A.json", type=terminal.FILE)
@click.argument("second", metavar="B.json", type=terminal.FILE)
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


MAX_STEPS = 1000


@click.group(
    "eval",
    cls=terminal.TargetGroup,
    subcommand_metavar="",
    no_args_is_help=True,
)
@click.argument("target", shell_complete=terminal.complete_target)
@click.option("--policy", metavar="MODULE:FUNCTION", help="Function that plays; `random` takes any valid action.")
@model_options
@case_options
@click.option(
    "--repeats", type=terminal.COUNT, default=1, show_default=True, help="Episodes per task (of a model: or seed)."
)
@click.option(
    "--max-steps",
    type=terminal.COUNT,
    show_default="1000",
    help="Steps after which an episode of a policy is cut short.",
)
@click.option(
    "--success-at",
    type=float,
    show_default="as the observations report",
    help="Minimum return of a successful episode.",
)
@play_options
@click.option(
    "--record", type=terminal.FOLDER, help="Record the episodes in this folder, from which --model goes on."
)
@click.option("-o", "--output", type=terminal.FILE, help="Write the result to this file, for later comparisons.")
@click.option("--against", type=terminal.FILE, help="Compare with this result of an earlier run.")
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
    """Plays a policy or a model in TARGET and scores it. TARGET is the address of a server, or a target of
    `openenv serve` (a bundled name, a folder, module:attribute, gymnasium:ENV_ID, ...), which is then served for the
    run.

    A policy is a function from observation (a dict) to action (a dict), sync or async, or a class with a method
    `act`; docs/evaluation.md says more. A model plays by conversations, as in `openenv rollout`. A failed episode
    does not score 0: failed episodes are reported separately. Episodes that the infrastructure lost are first played
    again, with the same seed.

    Exit code 0: every episode was played; 1: some failed; 130: interrupted, with the result of what was played.

    \b
    Examples:
      openenv eval echo --policy random --episodes 20 --max-steps 10
      openenv eval gymnasium:CartPole-v1 --policy my_policy:act -o first.json
      openenv eval http://127.0.0.1:8000 --policy my_policy:Agent --split test
      openenv eval ./my_env --model qwen --base-url http://gpu:8000/v1 --repeats 8
      openenv eval compare first.json second.json
      openenv eval rescore runs/qwen
    """

    from ..evals.report import check_output, read_report, write_report

    if (asked["policy"] is None) == (asked["model"] is None):
        raise click.UsageError("give --policy MODULE:FUNCTION, or --model NAME: what plays")
    play = _policy_player(target, asked) if asked["model"] is None else _model_player(target, asked)
    if output is not None:
        check_output(output)
    earlier = None if against is None else read_report(against)
    with (
        terminal.ended_in_order(),
        terminal.message_on_interrupt("interrupted before the first episode"),
        ExitStack() as stack,
    ):
        report, code = play(*evaluated_server(stack, target, workers, asked["concurrency"], api_key))
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


@click.command(short_help="Score a stored run again.")
@click.argument("run", type=terminal.PATH)
@click.option(
    "--target",
    shell_complete=terminal.complete_target,
    help="Environment to play in, as for `openenv serve`. [default: the one that the run names]",
)
@click.option("--base-url", metavar="URL", help="Play in a running server instead of a target.")
@click.option("--api-key", envvar="OPENENV_API_KEY", help="API key for that server. [OPENENV_API_KEY]")
@click.option("--concurrency", type=terminal.COUNT, default=SESSIONS, show_default=True, help="Concurrent episodes.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=1e-6,
    show_default=True,
    help="Relative difference of rewards that is allowed.",
)
@terminal.call_timeout
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")
def rescore(
    run: Path,
    target: str | None,
    base_url: str | None,
    api_key: str | None,
    concurrency: int,
    tolerance: float,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Plays the stored actions of RUN in the environment, with the stored seeds and tasks, and compares the rewards.
    RUN is the folder of `openenv rollout` or `openenv eval --record`, or any recording. No model is called.

    Use it after a correction of the grader, or to see whether scores repeat.

    Exit code 0: all scores are the same; 1: some differ, or could not be computed; 2: no episode could be scored.

    \b
    Examples:
      openenv eval rescore runs/qwen
      openenv eval rescore runs/qwen --target ./my_env --json
    """

    from ..evals import rescore as rescoring
    from .replay import ReplayTargets

    if target is not None and base_url is not None:
        raise click.UsageError("give either --target or --base-url, not both")
    targets = ReplayTargets(target, base_url, api_key)
    summary = rescoring.RescoreSummary(tolerance)
    try:
        episodes = rescoring.stored_episodes(run)
        with redirect_stdout(sys.stderr):  # environments in this process may print
            work = rescoring.rescore(episodes, targets.of, timeout_s, concurrency, summary.add)
            asyncio.run(targets.closed_after(work))
    except OpenEnvError as error:
        raise terminal.NoAnswer(terminal.tame(error.message)) from error
    click.echo(json.dumps(summary.facts()) if as_json else "\n".join(_rescore_lines(summary)))
    if not summary.compared:
        raise click.exceptions.Exit(terminal.NoAnswer.exit_code)
    if summary.different or summary.failed:
        raise click.exceptions.Exit(1)


def _rescore_lines(summary: RescoreSummary) -> list[str]:
    lines = []
    for each in summary.different[:MOST_TASKS]:
        step = each.first_difference(summary.tolerance)
        note = f"; {each.fault}" if each.fault else ""
        lines.append(f"  {each.stored.name}: {each.stored.total} stored, {each.total} now, from step {step} on{note}")
    lines += [f"  {each.stored.name}: not scored again, since {each.fault}" for each in summary.failed[:MOST_TASKS]]
    facts = summary.facts()
    counts = f"{summary.same} the same, {len(summary.different)} different, {len(summary.failed)} not scored again"
    means = "" if not summary.compared else f"; mean {facts['mean_stored']:.4g} stored, {facts['mean_again']:.4g} now"
    return [terminal.tame(terminal.cut(line, MESSAGE_WIDTH)) for line in [*lines, f"{counts}{means}"]]


eval_.add_command(rescore)

Play = Callable[["EvalServer", "LocalEvalServer | None"], "tuple[EvalReport, int]"]
_MODEL_ONLY = ("model", "base_urls", "provider", "price", "sampling", "budget")


def _policy_player(target: str, asked: Mapping[str, Any]) -> Play:
    """Plays the episodes with a policy. After an interruption, it returns the played ones, with its exit code."""
    from ..evals.evaluation import EvalRequest
    from ..evals.runner import EvalOptions

    options = EvalOptions(asked["concurrency"], asked["max_steps"] or MAX_STEPS, asked["retries"])
    mine = {name: asked[name] for name in asked.keys() - {*_MODEL_ONLY, "concurrency", "max_steps", "retries"}}
    record = None if asked["record"] is None else str(asked["record"])
    request = EvalRequest(target=target, options=options, **{**mine, "record": record})
    policy = request.chosen_policy()

    def play(served: EvalServer, here: LocalEvalServer | None) -> tuple[EvalReport, int]:
        with terminal.ProgressBar() as progress, warnings.catch_warnings(record=True) as warned:
            looked = time.monotonic()

            def heard(_: object) -> None:
                nonlocal looked
                if (now := time.monotonic()) - looked >= LOOK_S:
                    looked = now
                    progress.show(
                        "episodes", len(run.episodes), run.planned, progress_note(run.episodes, run.planned)
                    )

            run = request.prepare(served, policy, heard)
            progress.show("episodes", 0, run.planned)
            try:
                return asyncio.run(run.run() if here is None else here.beside(run.run())), 0
            except (KeyboardInterrupt, LaunchFailed) as ended:
                return _interrupted(run, ended, progress)
            finally:
                run.close()
                if run.players < min(options.concurrency, run.planned):
                    progress.say(f"the server had room for {run.players} episodes at once")
                for words in dict.fromkeys(str(warning.message) for warning in warned):
                    progress.say(f"warning: {words}")

    return play


def _model_player(target: str, asked: Mapping[str, Any]) -> Play:
    """The same with a model. With a folder, an interrupted evaluation goes on."""
    from ..evals.evaluation import CaseChoice
    from ..evals.model_evaluation import ModelEvaluation, tasks_of
    from ..evals.report import RunInfo

    if asked["max_steps"] is not None:
        raise click.UsageError("--max-steps is for policies: limit the turns of a model (--budget turns=20)")
    repeats, episodes = asked["repeats"], asked["episodes"]
    tasks = None if episodes is None else -(-episodes // repeats)
    choice = CaseChoice(episodes=tasks, **{name: asked[name] for name in ("seeds", "seed", "split")})
    model = model_of(*(asked[name] for name in ("model", "base_urls", "provider", "price")))
    sampling, budget, folder = sampling_of(asked["sampling"]), budget_of(asked["budget"]), asked["record"]
    facts = run_facts(model, choice, repeats, sampling, budget)
    if folder is not None:
        check_run_file(folder, facts)

    def play(served: EvalServer, here: LocalEvalServer | None) -> tuple[EvalReport, int]:
        cases, environment = tasks_of(choice.cases(served)), served.environment()
        if folder is not None:
            write_run_file(folder, {"environment": environment, **facts})
        about = RunInfo(
            target=target,
            environment=environment,
            policy=model.name,
            sampling=facts["sampling"],
            budget=facts["budget"],
            max_steps=0,
            record=None if folder is None else str(folder),
            **{name: asked[name] for name in ("split", "concurrency", "retries", "success_at")},
        )
        options = {"sampling": sampling, "budget": budget, "folder": folder, "group_size": repeats}
        options |= {name: asked[name] for name in ("concurrency", "timeout_s", "retries")}
        run = ModelEvaluation(
            partial(begin_run, served, model, cases, **options), len(cases) * repeats, about, folder
        )
        note = RateNote(run.progress, run.planned)
        with terminal.ProgressBar() as progress:
            try:
                return run_watched(run.run(), model, here, partial(note.show, progress)), 0
            except (KeyboardInterrupt, LaunchFailed) as ended:
                played = Counter((each.index, each.seed) for each in run.report().episodes)
                groups = len(cases) - sum(count >= repeats for count in played.values())
                left = terminal.plural(run.planned - played.total(), "episode")
                resume = (
                    "give --record DIR, and the same command goes on after an interruption"
                    if folder is None
                    else "the same command goes on with them"
                )
                progress.say(f"{left} of {terminal.plural(groups, 'group')} unfinished: {resume}")
                return _interrupted(run, ended, progress)

    return play


def _interrupted(
    run: Evaluation | ModelEvaluation, ended: KeyboardInterrupt | LaunchFailed, progress: terminal.ProgressBar
) -> tuple[EvalReport, int]:
    """The report on the episodes that were played before an interruption, and the exit code."""
    report = run.report()
    if not report.episodes:
        raise ended
    if isinstance(ended, LaunchFailed):
        progress.say(f"error: {ended.message}")
    return report, terminal.INTERRUPTED if isinstance(ended, KeyboardInterrupt) else 1
