"""Many rollouts of the tasks of a dataset, with a proxy in front of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from ..capture import CaptureServer
from ..errors import UsageError
from .models import HarborRolloutResult
from .rollout import RESULT, agent_of, run_rollout
from .sandboxes import SandboxKind
from .tasks import resolve_task_dirs, task_name

__all__ = ["CaptureServer", "run_batch"]


async def run_batch(
    *,
    llm_url: str = "",
    dataset: str,
    task_indices: Sequence[int] | None = None,
    harness: str,
    sandbox: SandboxKind = "process",
    model: str | None = None,
    port: int = 0,
    trials_dir: str | Path,
    reward_key: str = "",
    api_key: str | None = None,
    auth_header: str = "Authorization",
    attempts: int = 1,
    at_once: int = 2,
    programs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    on_result: Callable[[HarborRolloutResult], None] = lambda result: None,
) -> list[HarborRolloutResult]:
    """Plays tasks, several at the same time. A call with the same folder goes on where an interrupted one ended.

    Args:
        llm_url: Address of the model; empty: the agent reaches no model.
        dataset: As for `resolve_task_dirs`.
        task_indices: Numbers of the tasks, in the order of names; None: all.
        harness, sandbox, reward_key, programs, allow: As for `run_rollout`.
        model: Name of the model at `llm_url`; None: the one that the agent names.
        port: Port of the proxy; 0 takes a free one.
        trials_dir: Folder of the trials. A trial that has a scored result there is not played again.
        api_key, auth_header: The key of the model, and its header.
        attempts: Rollouts of each task.
        at_once: Rollouts at the same time.
        on_result: Gets each result as soon as it is there.

    Returns:
        The results, by task and attempt.

    Raises:
        UsageError: The dataset has no such task, the folder has trials of another agent, or the agent needs a model.
    """
    agent_of(harness, llm_url, "", model or "")
    folders = resolve_task_dirs(dataset)
    chosen = range(len(folders)) if task_indices is None else task_indices
    for index in chosen:
        if not 0 <= index < len(folders):
            raise UsageError(f"{dataset} has the tasks 0 to {len(folders) - 1}, not {index}")
    limit = asyncio.Semaphore(at_once)

    names = [(folders[index], f"{task_name(folders[index])}.{n}") for index in chosen for n in range(attempts)]
    finished = {name: _finished(Path(trials_dir) / name / RESULT, harness) for _, name in names}

    async def play(folder: Path, name: str, proxy: CaptureServer | None) -> HarborRolloutResult:
        result = finished[name]
        if result is None:
            async with limit:
                result = await run_rollout(
                    task_dir=folder,
                    harness=harness,
                    sandbox=sandbox,
                    registry=proxy,
                    model=model or "",
                    trials_dir=trials_dir,
                    dataset=dataset,
                    reward_key=reward_key,
                    trial_name=name,
                    programs=programs,
                    allow=allow,
                )
        on_result(result)
        return result

    with ExitStack() as stack:
        proxy = None
        if llm_url:
            proxy = stack.enter_context(
                CaptureServer(port=port, llm_url=llm_url, model=model, api_key=api_key, auth_header=auth_header)
            )
        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(play(folder, name, proxy)) for folder, name in names]
    return [task.result() for task in playing]


def _finished(path: Path, harness: str) -> HarborRolloutResult | None:
    """The scored result in a file; None if there is none."""
    try:
        found = HarborRolloutResult.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    if found.harness != harness:
        raise UsageError(
            f"{path.parent} is a trial of the agent {found.harness!r}: choose another folder for {harness!r}"
        )
    return found if found.ok else None
