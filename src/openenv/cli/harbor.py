"""`openenv harbor`: tasks in Harbor's format, and Terminal-Bench's, run in sandboxes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import terminal

if TYPE_CHECKING:
    from ..harbor.models import HarborRolloutResult
    from ..harbor.sandboxes import SandboxKind

_sandbox = click.option(
    "--sandbox",
    type=click.Choice(["process", "docker"]),
    default="process",
    show_default=True,
    help="process: what the Dockerfile copies, over this machine's programs; docker: its image.",
)
_at_once = click.option(
    "--at-once", type=terminal.COUNT, default=2, show_default=True, help="Tasks at the same time."
)
_allow = click.option(
    "--allow", multiple=True, metavar="HOST:PORT", help="What the sandboxes may connect to; by default nothing."
)
_programs = click.option(
    "--programs", type=terminal.FOLDER, multiple=True, help="Folder where agents are installed: the sandbox sees it."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def harbor() -> None:
    """Runs tasks in the format of Harbor or Terminal-Bench: an agent works in a sandbox, tests score what it left.

    DATASET is the folder of a task, a folder of tasks, or a dataset of the Hub (ORG/NAME).

    \b
    Examples:
      openenv harbor list tasks
      openenv harbor check tasks
      openenv harbor run tasks --agent 'my-agent "$INSTRUCTION"' -o trials
    """


@harbor.command("list")
@click.argument("dataset")
@_json
def list_(dataset: str, as_json: bool) -> None:
    """Lists the tasks of DATASET, and whether each runs in the process sandbox. Nothing runs.

    \b
    Examples:
      openenv harbor list tasks
    """
    from ..errors import UsageError
    from ..harbor.sandboxes import layout_of
    from ..harbor.tasks import HarborTask, resolve_task_dirs

    rows: list[dict[str, Any]] = []
    for index, folder in enumerate(resolve_task_dirs(dataset)):
        row: dict[str, Any] = {"index": index, "task": folder.name, "sandboxes": [], "problem": None}
        try:
            task = HarborTask.read(folder)
            task.check_tests()
            row |= {"format": task.kind, "instruction": task.instruction, "sandboxes": ["docker"]}
            layout_of(task)
            row["sandboxes"].insert(0, "process")
        except UsageError as error:
            row["problem"] = error.message
        rows.append(row)
    if as_json:
        terminal.print_json({"dataset": dataset, "tasks": rows})
        return
    width = max(len(row["task"]) for row in rows)
    for row in rows:
        asked = " ".join(row.get("instruction", row["problem"] or "").split())
        text = f"{row['index']:>4}  {row['task']:{width}}  {', '.join(row['sandboxes']) or '-':15}  {asked}"
        click.echo(terminal.tame(terminal.cut(text, terminal.columns(120))))


@harbor.command()
@click.argument("dataset")
@_sandbox
@_at_once
@_allow
@_json
def check(dataset: str, sandbox: SandboxKind, at_once: int, allow: tuple[str, ...], as_json: bool) -> None:
    """Checks the tasks of DATASET: the solution of each must score 1, and doing nothing 0.

    Exit code 0: all tasks are sound; 1: one is not, and a sentence says why.

    \b
    Examples:
      openenv harbor check tasks
      openenv harbor check tasks/one --sandbox docker
    """
    from ..harbor.checks import TaskCheck, check_tasks
    from ..harbor.tasks import resolve_task_dirs

    folders = resolve_task_dirs(dataset)

    async def run() -> list[TaskCheck]:
        found = []
        async for each in check_tasks(folders, sandbox, at_once, allow):
            found.append(each)
            if not as_json:
                mark = click.style("ok  ", fg="green") if each.passed else click.style("FAIL", fg="red")
                rewards = f"solution {_reward_text(each.oracle)}, nothing {_reward_text(each.nothing)}"
                click.echo(f"{mark} {each.name}: {rewards}")
                for fault in each.faults:
                    click.echo(f"     {terminal.tame(fault)}")
        return found

    with terminal.ended_in_order():
        found = asyncio.run(run())
    passed = sum(each.passed for each in found)
    if as_json:
        rows = [
            {"task": each.name, "oracle": each.oracle, "nothing": each.nothing, "faults": each.faults}
            for each in sorted(found, key=lambda each: each.name)
        ]
        terminal.print_json({"tasks": rows, "passed": passed, "failed": len(found) - passed})
    else:
        click.echo(f"{passed} of {terminal.plural(len(found), 'task')} sound")
    if passed < len(found):
        raise click.exceptions.Exit(1)


def _reward_text(reward: float | None) -> str:
    return "no reward" if reward is None else f"{reward:g}"


def _play(dataset: str, as_json: bool, **options: Any) -> list[HarborRolloutResult]:
    """Plays tasks, prints a line for each, and exits with 1 if one has no reward."""
    from ..harbor.runner import run_batch
    from ..settings import CaptureSettings

    def show(result: HarborRolloutResult) -> None:
        if not as_json:
            calls = f", {terminal.plural(result.n_turns, 'call')} of the model" if options["llm_url"] else ""
            said = f"reward {result.reward:g}{calls}" if result.reward is not None else result.error or "no reward"
            click.echo(terminal.tame(f"{result.trial_name}: {said}"))

    with terminal.ended_in_order(), terminal.message_on_interrupt("interrupted: the same command goes on"):
        run = run_batch(dataset=dataset, api_key=CaptureSettings.read().api_key, on_result=show, **options)
        results = asyncio.run(run)
    rewards = [each.reward for each in results if each.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    if as_json:
        rows = [each.model_dump(mode="json", exclude={"turns", "conversations"}) for each in results]
        terminal.print_json({"mean_reward": mean, "failed": len(results) - len(rewards), "trials": rows})
    else:
        text = _reward_text(mean) if mean is None else f"mean reward {mean:.4g}"
        click.echo(f"{terminal.plural(len(results), 'trial')}, {len(results) - len(rewards)} failed; {text}")
    return results


@harbor.command()
@click.argument("dataset")
@click.option("--agent", "harness", required=True, help="oracle, nop, a name as codex, or a command.")
@click.option("--task", "names", multiple=True, help="Name of a task; by default all.")
@click.option("--attempts", type=terminal.COUNT, default=1, show_default=True, help="Trials of each task.")
@click.option("--llm-url", default="", help="A model for the agent; its calls are recorded.")
@click.option("--model", help="Name of the model there; by default the one that the agent names.")
@click.option("--reward-key", default="", help="Which reward to take, if the tests write several.")
@click.option("-o", "--output", "trials_dir", type=terminal.FOLDER, required=True, help="Folder of the trials.")
@_sandbox
@_at_once
@_allow
@_programs
@_json
def run(dataset: str, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Has an agent play the tasks of DATASET. Each trial has a folder with its reward, logs and trajectory (ATIF).

    A command finds the instruction in $INSTRUCTION. It has no network, except --allow and the model behind --llm-url,
    to which OPENAI_BASE_URL, ANTHROPIC_BASE_URL and GOOGLE_GEMINI_BASE_URL lead. The key of the model comes from
    OPENENV_LLM_API_KEY. The agents aider, claude-code, codex, gemini-cli, mini-swe-agent, opencode and openhands are
    known by name. The same command goes on with an interrupted run.

    Exit code 0: all trials have a reward; 1: one has none.

    \b
    Examples:
      openenv harbor run tasks --agent oracle -o trials
      openenv harbor run tasks --agent 'my-agent "$INSTRUCTION"' -o trials \\
          --llm-url http://localhost:8000/v1
      openenv harbor run tasks --agent codex --programs /opt/agents -o trials \\
          --llm-url http://localhost:8000/v1 --model policy
    """
    from ..errors import UsageError
    from ..harbor.tasks import resolve_task_dirs

    known = [folder.name for folder in resolve_task_dirs(dataset)]
    for name in names:
        if name not in known:
            raise UsageError(f"{dataset} has no task {name!r}: `openenv harbor list {dataset}` lists them")
    options["task_indices"] = [known.index(name) for name in names] or None
    results = _play(dataset, as_json, **options)
    if any(not each.ok for each in results):
        raise click.exceptions.Exit(1)


@harbor.command()
@click.option("--llm-url", required=True, help="The model; its calls are recorded.")
@click.option("--model", help="Its name there.")
@click.option("--dataset", required=True, help="As for the other commands.")
@click.option("--task-index", default=0, show_default=True, help="Number of the first task.")
@click.option("--n-tasks", "-n", type=terminal.COUNT, default=1, show_default=True, help="Number of tasks.")
@click.option("--harness", required=True, help="As --agent of `run`.")
@click.option("--port", default=8100, show_default=True, help="Port of the proxy.")
@click.option("--trials-dir", type=terminal.FOLDER, default=Path("trials"), show_default=True)
@click.option("--reward-key", default="", help="Which reward to take, if the tests write several.")
@click.option("--auth-header", default="Authorization", show_default=True, help="Header of the model's key.")
@click.option("--out", type=terminal.FILE, help="File for the results with their tokens, as JSON.")
@_sandbox
@_allow
@_programs
def rollout(task_index: int, n_tasks: int, out: Path | None, **options: Any) -> None:
    """As `run`, with the options of the released command: plays tasks by their numbers with a model.

    \b
    Examples:
      openenv harbor rollout --llm-url http://localhost:8000/v1 \\
          --dataset tasks --harness my-agent --out all.json
    """
    import json

    indices = list(range(task_index, task_index + n_tasks))
    results = _play(options.pop("dataset"), False, task_indices=indices, **options)
    if out is not None:
        out.write_text(json.dumps([each.model_dump(mode="json") for each in results]), encoding="utf-8")
    if any(not each.ok for each in results):
        raise click.exceptions.Exit(1)


@harbor.command()
@click.option("--dataset", "datasets", multiple=True, required=True, help="As for the other commands; repeatable.")
@click.option("--agent", "agents", multiple=True, default=("oracle", "nop"), help="An agent that clients may choose.")
@click.option("--llm-url", default="", help="A model for the agents; its calls are recorded.")
@click.option("--model", default="", help="Name of the model there; by default the one that the agent names.")
@click.option("--auth-header", default="Authorization", show_default=True, help="Header of the model's key.")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one. [default: 8000]")
@click.option(
    "--at-once", type=terminal.COUNT, default=4, show_default=True, help="Sessions, and so rollouts, at once."
)
@click.option("--trials-dir", type=terminal.FOLDER, default=Path("trials"), show_default=True)
@_allow
@_programs
def serve(host: str | None, port: int | None, at_once: int, **options: Any) -> None:
    """Serves tasks: clients (openenv.harbor.client.HarborEnv) have them played here, and get rewards and tokens.

    Clients choose among the agents that --agent names. The key of the model comes from OPENENV_LLM_API_KEY.

    \b
    Examples:
      openenv harbor serve --dataset tasks
      openenv harbor serve --dataset tasks --agent 'my-agent "$INSTRUCTION"' \\
          --llm-url http://localhost:8000/v1 --port 8001
    """
    from ..harbor.environment import HarborEnvironment, HarborService
    from ..mcp.types import CallToolAction, CallToolObservation
    from ..server.app import create_app
    from ..settings import CaptureSettings, ServerSettings
    from .serve import serve_app

    settings = ServerSettings.read(host=host, port=port, max_sessions=at_once)
    with HarborService(api_key=CaptureSettings.read().api_key, **options) as service:

        def app(settings: ServerSettings) -> Any:
            return create_app(
                partial(HarborEnvironment, service),
                action=CallToolAction,
                observation=CallToolObservation,
                name="harbor_env",
                settings=settings,
            )

        serve_app(app, settings)
