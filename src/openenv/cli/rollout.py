"""`openenv rollout`: play episodes with a model, record them to the token, and make datasets of them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import terminal
from .model import (
    RateNote,
    begin_run,
    budget_of,
    case_options,
    check_run_file,
    consume,
    errors_text,
    evaluated_server,
    model_of,
    model_options,
    play_options,
    progress_facts,
    run_facts,
    run_watched,
    sampling_of,
    write_run_file,
)

if TYPE_CHECKING:
    from ..rollouts.export import DatasetKind
    from ..rollouts.groups import RolloutProgress

# The kinds of `openenv.rollouts.export`, which is imported when a command runs.
KINDS = ("rollouts", "sft", "preference", "grpo", "openai", "atif")


@click.group("rollout", cls=terminal.TargetGroup, subcommand_metavar="", no_args_is_help=True)
@click.argument("target", shell_complete=terminal.complete_target)
@model_options
@case_options
@click.option(
    "--group", "group_size", type=terminal.COUNT, default=1, show_default=True, help="Rollouts of each task."
)
@click.option(
    "-o", "--output", type=terminal.FOLDER, required=True, help="Folder of the run. The same folder resumes it."
)
@play_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the run.")
def rollout(target: str, output: Path, as_json: bool, **given: Any) -> None:
    """Plays episodes of TARGET with a model, and records them in a folder: messages, tool calls, rewards, and the
    token ids and log probabilities that the endpoint sends. TARGET is the address of a server, or a target of
    `openenv serve`, which is then served for the run.

    The API key of the model comes from OPENAI_API_KEY, ANTHROPIC_API_KEY or API_KEY. An interrupted run goes on with
    the same command: no finished rollout is played again, and no answer is sampled twice. A failed rollout has no
    return.

    Exit code 0: the run is complete; 1: no rollout has a return; 130: interrupted.

    \b
    Examples:
      openenv rollout echo --model random --episodes 20 -o runs/try
      openenv rollout my_env --model qwen --base-url http://gpu:8000/v1 \\
        --split train --group 8 --sampling temperature=1 -o runs/monday
      openenv rollout export runs/monday --to sft -o sft.jsonl
      openenv episodes view runs/monday
    """

    from ..evals.evaluation import CaseChoice
    from ..evals.model_evaluation import tasks_of
    from ..rollouts.groups import RolloutProgress
    from ..rollouts.journal import read_rollouts

    if given["model"] is None:
        raise click.UsageError("--model NAME is missing: the model that plays (`random` needs no endpoint)")
    choice = CaseChoice(**{name: given.pop(name) for name in ("split", "episodes", "seeds", "seed")})
    model = model_of(*(given.pop(name) for name in ("model", "base_urls", "provider", "price")))
    given |= {"sampling": sampling_of(given["sampling"]), "budget": budget_of(given["budget"])}
    workers, api_key = given.pop("workers"), given.pop("api_key")
    facts = run_facts(model, choice, given["group_size"], given["sampling"], given["budget"])
    progress = RolloutProgress()
    with terminal.ended_in_order(), terminal.message_on_interrupt(_RESUME), ExitStack() as stack:
        check_run_file(output, facts)
        served, here = evaluated_server(stack, target, workers, given["concurrency"], api_key)
        tasks = tasks_of(choice.cases(served))
        write_run_file(output, {"environment": served.environment(), **facts})
        for finished in read_rollouts(output):
            progress.add(finished)
        note = RateNote(progress, len(tasks) * given["group_size"])
        begin = partial(begin_run, served, model, tasks, folder=output, **given)
        with terminal.ProgressBar() as bar:
            run_watched(consume(begin, progress), model, here, partial(note.show, bar))
    if as_json:
        terminal.print_json({"folder": str(output), "seconds": round(note.seconds, 3), **progress_facts(progress)})
    else:
        click.echo("\n".join(summary_lines(output, progress, note.seconds)))
    if not any(outcome.has_return for outcome in progress.outcomes):
        raise click.exceptions.Exit(1)


_RESUME = "interrupted: the same command goes on with the run"


def summary_lines(folder: Path, progress: RolloutProgress, seconds: float) -> list[str]:
    """What a run has done, as text."""
    facts = progress_facts(progress)
    lines = [click.style(f"{folder}: {terminal.plural(facts['rollouts'], 'rollout')} in {seconds:.1f} s", bold=True)]
    outcomes = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in facts["outcomes"].items())
    lines.append(f"  {outcomes}")
    if progress.rewarded:
        lines.append(f"  mean return {facts['mean_return']:.4g}, of {terminal.plural(progress.rewarded, 'rollout')}")
    tokens = f"{facts['prompt_tokens']:,} tokens of prompts, {facts['completion_tokens']:,} of completions"
    cost = "" if facts["cost"] is None else f", cost {facts['cost']:.4g}"
    lines.append(f"  {terminal.plural(progress.turns, 'turn')}, {tokens}{cost}")
    if progress.errors:
        errors = ", ".join(errors_text(progress.errors))
        lines.append(click.style(f"  failed, and without a return: {terminal.tame(errors)}", fg="red"))
    return lines


@rollout.command(short_help="Make a dataset of recorded rollouts.")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--to",
    "kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="The rows: whole rollouts; conversations, pairs or token ids for TRL; chat messages for OpenAI; ATIF.",
)
@click.option(
    "-o",
    "--output",
    type=terminal.FILE,
    required=True,
    help="The new file: .jsonl, or .parquet for rollouts and grpo.",
)
@click.option(
    "--min-reward", type=float, help="Lowest return of a rollout to learn from (of a pair, the better one)."
)
@click.option("--push-to-hub", metavar="REPO", help="Upload the file as this dataset of the Hub.")
@click.option("--private", is_flag=True, help="Make the dataset private.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the file.")
def export(
    folder: Path,
    kind: DatasetKind,
    output: Path,
    min_reward: float | None,
    push_to_hub: str | None,
    private: bool,
    as_json: bool,
) -> None:
    """Writes the rollouts of DIR as a dataset. Each completion of the model is in it once, also if the history was
    rewritten; failed rollouts are left out, except in `rollouts`. The file appears only when it is complete. With
    --push-to-hub, it is without the messages of failures, which may name hosts.

    \b
    rollouts    all that is recorded, one row for each rollout
    sft         prompt, completion and tools, for TRL's SFTTrainer
    preference  prompt, chosen and rejected of a group, for TRL's DPOTrainer
    grpo        token ids with masks, log probabilities and the return
    openai      messages and tools, for OpenAI's fine-tuning
    atif        trajectories in the format of Harbor's tools

    \b
    Examples:
      openenv rollout export runs/monday --to sft --min-reward 1 -o sft.jsonl
      openenv rollout export runs/monday --to grpo -o ids.parquet
      openenv rollout export runs/monday -o all.parquet --push-to-hub team/all
    """

    from ..rollouts.export import export_rollouts

    with terminal.ProgressBar() as progress:
        counts = export_rollouts(
            folder,
            output,
            kind,
            min_reward=min_reward,
            public=push_to_hub is not None,
            on_row=lambda done: progress.show("exporting", done, 0, f"{done:,} rows"),
        )
        page = None
        if push_to_hub is not None:
            from ..project.hub import dataset_card, push_dataset

            path = f"data/{output.name}"
            text = f"{counts['rows']:,} rows of the kind `{kind}`, from rollouts recorded by openenv."
            files: dict[str, Path | bytes] = {path: output, "README.md": dataset_card(push_to_hub, path, text)}
            progress.show("uploading", 0, 0)
            page = push_dataset(
                push_to_hub, files, private=private, message="openenv rollout export", say=progress.say
            )
    rows = counts.pop("rows")
    if as_json:
        terminal.print_json({"file": str(output), "kind": kind, "rows": rows, "left_out": counts, "page": page})
        return
    left_out = f"; left out: {', '.join(f'{count:,} with {why}' for why, count in counts.items())}" if counts else ""
    click.echo(f"{output}: {terminal.plural(rows, 'row')}{left_out}")
    if page is not None:
        click.echo(f"uploaded to {page}")
