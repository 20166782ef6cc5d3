"""Whether tasks are sound: their solution scores 1, and doing nothing scores 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OpenEnvError
from .sandboxes import SandboxKind
from .tasks import HarborTask, task_name
from .trial import TrialResult, nothing, oracle, run_trial


@dataclass(slots=True)
class TaskCheck:
    """What the check of a task found.

    Attributes:
        name: Name of its folder.
        oracle, nothing: Reward of the solution, and of doing nothing; None: no reward.
        faults: What is wrong, a sentence each.
        seconds: Duration.
    """

    name: str
    oracle: float | None = None
    nothing: float | None = None
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


async def check_task(folder: Path, sandbox: SandboxKind = "process", allow: Sequence[str] = ()) -> TaskCheck:
    """Plays a task twice: with its solution, and with an agent that does nothing.

    Args:
        folder: Folder of the task.
        sandbox: Where it runs.
        allow: Addresses (`host:port`) that the solution and the verifier may connect to.

    Returns:
        The rewards and the faults. What is wrong with the task, or with the place, is a fault and no exception.
    """
    check = TaskCheck(task_name(folder))
    started = time.monotonic()
    try:
        task = HarborTask.read(folder)
        solved = await run_trial(task, oracle, sandbox=sandbox, allow=allow)
        check.oracle = solved.reward
        check.faults += _solution_faults(solved)
        idle = await run_trial(task, nothing, sandbox=sandbox, allow=allow)
        check.nothing = idle.reward
        if idle.error is not None and str(idle.error) not in check.faults:
            check.faults.append(f"doing nothing: {idle.error}")
        elif idle.reward:
            check.faults.append(
                f"doing nothing scores {idle.reward:g}, not 0: test.sh must check what the agent made"
            )
    except OpenEnvError as error:
        check.faults.append(error.message)
    check.seconds = time.monotonic() - started
    return check


def _solution_faults(trial: TrialResult) -> list[str]:
    task, agent = trial.task, trial.agent
    if agent is not None and agent.timed_out:
        return [f"the solution did not end within {task.agent_timeout_s:g} s, the time of the agent"]
    if trial.error is not None:
        return [str(trial.error)]
    faults = []
    if agent is not None and agent.exit_code:
        said = (agent.stderr.strip() or agent.stdout.strip()).splitlines()
        faults.append(f"the solution ended with exit code {agent.exit_code}: {said[-1] if said else 'no output'}")
    if trial.reward != 1.0:
        said = trial.verifier.stdout.strip().splitlines() if trial.verifier else []
        faults.append(f"the solution scores {trial.reward:g}, not 1{f': {said[-1]}' if said else ''}")
    return faults


async def check_tasks(
    folders: Sequence[Path], sandbox: SandboxKind = "process", at_once: int = 2, allow: Sequence[str] = ()
) -> AsyncIterator[TaskCheck]:
    """Checks tasks, `at_once` at the same time, and yields them as they end."""
    limit = asyncio.Semaphore(at_once)

    async def check(folder: Path) -> TaskCheck:
        async with limit:
            return await check_task(folder, sandbox, allow)

    running = [asyncio.ensure_future(check(folder)) for folder in folders]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
