"""One trial of a task: an agent works in a sandbox, and the verifier scores a snapshot of it in another one."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..agents import AgentProgram, CommandResult, Sandbox
from ..agents.programs import HOME
from ..errors import EnvironmentFailed, StepTimeout, UsageError
from .sandboxes import SandboxKind, resolved, task_sandbox
from .tasks import HarborTask

Agent = Callable[[Sandbox, HarborTask], Awaitable[CommandResult | None]]
"""Works in the sandbox of a task: what its command printed, or None if it ran none."""

LOGS, TESTS, SOLUTION = "/logs", "/tests", "/solution"
_VERIFIER = f"{LOGS}/verifier"
_SETUP_S = 60.0
_SIGNAL = 128
_NAMES = ("reward.json", "reward.txt")
# What a verifier wrote is read up to this size.
_MOST_BYTES = 1024 * 1024


@dataclass(slots=True)
class TrialResult:
    """What came of a trial.

    Attributes:
        task: The task.
        reward: The reward; None if the verifier gave none.
        rewards, reward_key: All that it wrote by name, and the name of the one that was taken.
        agent: How the agent's command ended; None if it ran none.
        verifier: How the verifier ended; None if it did not run.
        timings: Seconds of `setup`, `agent` and `verifier`.
        error: Why there is no reward.
    """

    task: HarborTask
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    reward_key: str = ""
    agent: CommandResult | None = None
    verifier: CommandResult | None = None
    timings: dict[str, float] = field(default_factory=dict)
    error: Exception | None = None


async def run_trial(
    task: HarborTask,
    agent: Agent,
    *,
    sandbox: SandboxKind = "process",
    reward_key: str = "",
    allow: Sequence[str] = (),
    proxy: str = "",
    programs: Sequence[Path] = (),
    folder: Path | None = None,
) -> TrialResult:
    """Plays a task once, and scores it.

    The verifier sees the files that the agent left, but in a sandbox of its own, in which none of the agent's
    processes runs, with the tests and an empty folder for the reward.

    Args:
        task: The task.
        agent: Works in the sandbox.
        sandbox: Where it runs.
        reward_key: Which reward to take, if the verifier writes several; by default the only one, or `reward`.
        allow: Addresses (`host:port`) that the agent and the verifier may connect to.
        proxy: The address of the model's proxy, for the agent alone; empty: it has no model.
        programs: Folders of this machine that the agent sees under the same path, and cannot change.
        folder: Where `agent`, `verifier` and `artifacts` of the sandbox's `/logs` go; None keeps none.

    Returns:
        The rewards. Of a task that the verifier could not score, `error` says why, and the reward is None.

    Raises:
        UsageError: The task cannot run there.
        LaunchFailed, ProviderFailed: The sandbox failed.
    """
    task.check_tests()
    result = TrialResult(task)
    started = time.monotonic()

    def ended(phase: str) -> None:
        nonlocal started
        result.timings[phase] = time.monotonic() - started
        started = time.monotonic()

    async with task_sandbox(task, sandbox, [*allow, *([proxy] if proxy else [])], programs) as place:
        for name in ("agent", "verifier", "artifacts"):
            await place.put({}, f"{LOGS}/{name}")
        ended("setup")
        result.agent = await agent(place, task)
        ended("agent")
        if folder is not None:
            for name in ("agent", "artifacts"):
                await place.get(f"{LOGS}/{name}", folder / name)
        snapshot = await place.snapshot()
    try:
        async with place.from_snapshot(snapshot, allow=allow) as verifier:
            await _empty(verifier, "0" if sandbox == "docker" else None)
            await _verify(verifier, result, reward_key, folder)
    except EnvironmentFailed as error:
        result.error = error
    finally:
        await place.remove_snapshot(snapshot)
    ended("verifier")
    return result


async def _empty(sandbox: Sandbox, user: str | None) -> None:
    """Removes what the agent left where the verifier works."""
    # The owner of a folder may have taken its own right to change it.
    command = f"chmod -R u+rwx {TESTS} {_VERIFIER} 2>/dev/null; rm -rf {TESTS} {_VERIFIER}"
    ended = await sandbox.run(command, timeout_s=_SETUP_S, user=user, cwd="/")
    if ended.exit_code:
        raise EnvironmentFailed(f"the folders of the verifier cannot be emptied: {ended.stderr.strip()[-300:]}")
    await sandbox.put({}, _VERIFIER)


async def _verify(sandbox: Sandbox, result: TrialResult, reward_key: str, folder: Path | None) -> None:
    task = result.task
    await sandbox.put(task.tests, TESTS)
    script = f"{TESTS}/{task.test_script}"
    ended = result.verifier = await sandbox.run(
        f"chmod +x {script}; exec {script}",
        timeout_s=task.verifier_timeout_s,
        # The agent's packages in its home are no part of the verifier.
        env={"TEST_DIR": TESTS, "PYTHONNOUSERSITE": "1", **resolved(task.verifier_variables, task)},
        user=task.verifier_user,
    )
    with tempfile.TemporaryDirectory() as own:
        kept = Path(own) if folder is None else folder / "verifier"
        await sandbox.get(_VERIFIER, kept)
        if ended.timed_out:
            raise StepTimeout(f"the verifier of task {task.name} did not end within {task.verifier_timeout_s:g} s")
        if ended.exit_code > _SIGNAL:
            signal = ended.exit_code - _SIGNAL
            raise EnvironmentFailed(f"the verifier of task {task.name} was killed by signal {signal}: no reward")
        written = {"reward": float(ended.exit_code == 0)} if task.kind == "terminal-bench" else read_rewards(kept)
    result.rewards = written
    result.reward_key = reward_key or (next(iter(written)) if len(written) == 1 else "reward")
    if result.reward_key not in written:
        raise EnvironmentFailed(
            f"the verifier of task {task.name} wrote the rewards {', '.join(written)}, and no {result.reward_key!r}: "
            "choose one with --reward-key"
        )
    result.reward = written[result.reward_key]


def read_rewards(folder: Path) -> dict[str, float]:
    """The rewards that a verifier wrote: a number in `reward.txt`, or numbers by name in `reward.json`.

    Raises:
        EnvironmentFailed: There is neither, or it has no finite number, or both are there and differ.
    """
    found = [_rewards(folder / name) for name in _NAMES if (folder / name).is_file()]
    if not found:
        raise EnvironmentFailed("the verifier wrote no reward: its test.sh must write /logs/verifier/reward.txt")
    if any(each != found[0] for each in found):
        raise EnvironmentFailed(
            "the verifier wrote other rewards to reward.json than to reward.txt: write one of them"
        )
    return found[0]


def _rewards(path: Path) -> dict[str, float]:
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        values = json.loads(text) if path.suffix == ".json" else float(text)
    except ValueError:
        values = None
    if not isinstance(values, Mapping):
        values = {"reward": values}
    good = {name: float(value) for name, value in values.items() if type(value) in (int, float) and _is_finite(value)}
    if not good or len(good) < len(values):
        raise EnvironmentFailed(f"the verifier wrote no finite number to {path.name}: {text[:80]!r}")
    return good


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


async def nothing(sandbox: Sandbox, task: HarborTask) -> None:
    """The agent that does nothing."""


async def oracle(sandbox: Sandbox, task: HarborTask) -> CommandResult:
    """The agent that runs the solution of a task. Raises UsageError if it has none."""
    if task.solution_script not in task.solution:
        raise UsageError(f"task {task.name} has no solution: add solution/{task.solution_script}")
    await sandbox.put(task.solution, SOLUTION)
    script = f"{SOLUTION}/{task.solution_script}"
    return await sandbox.run(
        f"chmod +x {script}; exec {script}",
        timeout_s=task.agent_timeout_s,
        env={"DEBIAN_FRONTEND": "noninteractive", **resolved(task.solution_variables, task)},
        user=task.agent_user,
    )


def program_agent(program: AgentProgram) -> Agent:
    """The agent that runs a program, whose texts have no placeholders.

    It finds the instruction in $INSTRUCTION and in /logs/agent. If it has files, $HOME is the folder with them.
    """
    variables = {"HOME": HOME} if program.files else {}

    async def run(sandbox: Sandbox, task: HarborTask) -> CommandResult:
        await sandbox.put({"instruction.md": task.instruction}, f"{LOGS}/agent")
        if program.files:
            await sandbox.put({**program.files, "task.md": task.instruction}, HOME)
        return await sandbox.run(
            program.command,
            timeout_s=task.agent_timeout_s,
            env={"INSTRUCTION": task.instruction, **variables, **program.variables},
            user=task.agent_user,
        )

    return run
