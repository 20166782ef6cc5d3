"""A rollout of a task: an agent program works in its sandbox, and each of its calls of a model is recorded."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._asyncio import on_thread
from ..agents import PROGRAMS, AgentProgram
from ..agents.environment import check_calls
from ..agents.programs import MODEL_VARIABLES
from ..capture import CaptureServer, CaptureSession, rollout_of
from ..capture.export import paths_of
from ..errors import OpenEnvError, UsageError
from ..rollouts.trajectory import trajectory_of
from .atif import load_trace, reconcile
from .models import HarborRolloutResult, conversations_from_document, turns_from_document
from .sandboxes import SandboxKind
from .tasks import HarborTask, task_name
from .trial import Agent, nothing, oracle, program_agent, run_trial

RESULT, TRAJECTORY = "result.json", "trajectory.json"
_TAIL = 2000


def agent_of(harness: str, url: str = "", key: str = "", model: str = "", programs: Sequence[Path] = ()) -> Agent:
    """The agent of a name.

    Args:
        harness: `oracle`, which runs the solution; `nop`, which does nothing; a name of `openenv.agents.PROGRAMS`; or
            a command of the shell, which the variables of `MODEL_VARIABLES` lead to the model.
        url: Address of the proxy in front of the model; empty: the agent has no model.
        key: Its session there.
        model: Name of the model.
        programs: Folders where agents are installed.

    Raises:
        UsageError: The program calls a model, and has none.
    """
    if harness in {"oracle", "nop"}:
        return oracle if harness == "oracle" else nothing
    program = PROGRAMS.get(harness)
    if program is None:
        program = AgentProgram(harness, MODEL_VARIABLES if url else {})
    elif not url or not model:
        raise UsageError(f"agent {harness} calls a model: give its address and its name (--llm-url, --model)")
    return program_agent(program.filled(url, key, model, programs))


async def run_rollout(
    *,
    task_dir: str | Path,
    harness: str,
    sandbox: SandboxKind = "process",
    registry: CaptureServer | None = None,
    intercept_url: str = "",
    model: str = "",
    trials_dir: str | Path,
    dataset: str = "",
    reward_key: str = "",
    agent_timeout_sec: float | None = None,
    session_prefix: str = "oe",
    sampling: Mapping[str, Any] | None = None,
    purpose: str = "auto",
    trial_name: str = "",
    programs: Sequence[Path] = (),
    allow: Sequence[str] = (),
) -> HarborRolloutResult:
    """Plays a task once, and records what its agent sampled.

    The folder of the trial gets `result.json`, `trajectory.json` (ATIF, of the agent's longest conversation), and the
    logs `agent`, `verifier` and `artifacts`.

    Args:
        task_dir: Folder of the task.
        harness: As for `agent_of`.
        sandbox: Where it runs.
        registry: The proxy in front of the model; None: the agent reaches no model.
        intercept_url: Its address as the sandbox reaches it; by default the proxy's own.
        model: Name of the model, for the agent.
        trials_dir: Folder of the trials.
        dataset: Where the task comes from, for the result.
        reward_key: Which reward to take, if the verifier writes several.
        agent_timeout_sec: Seconds for the agent; None: as the task says.
        session_prefix: Beginning of the session's id.
        sampling, purpose: As in `openenv.capture.SessionOpened`.
        trial_name: Name of the trial's folder; by default the task and the session.
        programs: Folders of this machine where agents are installed. The sandbox sees them, read-only.
        allow: Addresses (`host:port`) that the agent and the verifier may connect to.

    Returns:
        The result. A task that cannot be played or scored has `ok=False`, the reason in `error`, and no reward. So
        has an agent that is given a model and gets no answer from it.
    """
    session = f"{session_prefix}-{secrets.token_hex(8)}"
    started = time.monotonic()
    result = HarborRolloutResult(
        task_id=task_name(task_dir),
        dataset=dataset,
        harness=harness,
        sandbox=sandbox,
        trial_name=trial_name or f"{task_name(task_dir)}.{session}",
        session_id=session,
    )
    folder = Path(trials_dir) / result.trial_name
    folder.mkdir(parents=True, exist_ok=True)
    url = ""
    folders = [each.resolve() for each in programs]
    try:
        task = HarborTask.read(Path(task_dir))
        result.task_name = task.title
        if agent_timeout_sec is not None:
            task = replace(task, agent_timeout_s=agent_timeout_sec)
        if registry is not None:
            facts: dict[str, Any] = {
                "metadata": {"task": task.name, "harness": harness},
                "sampling": dict(sampling or {}),
            }
            await on_thread(lambda: registry.open(session, purpose=purpose, **facts))
            url = intercept_url or registry.url
        if task.needs_network and not allow:
            result.findings.append("[WARN] network: the task asks for one, and has none: name hosts with --allow")
        agent = agent_of(harness, url, session, model, folders)
        trial = await run_trial(
            task,
            agent,
            sandbox=sandbox,
            reward_key=reward_key,
            allow=allow,
            proxy=urlsplit(url).netloc,
            programs=folders,
            folder=folder,
        )
        result.phase_timings = trial.timings
        if trial.agent is not None:
            result.agent_log_tail = f"{trial.agent.stdout}{trial.agent.stderr}"[-_TAIL:]
            if trial.agent.timed_out:
                result.findings.append(f"[WARN] agent_timeout: the agent was ended after {task.agent_timeout_s:g} s")
        if registry is not None and trial.agent is not None and agent is not oracle:
            ended = trial.agent
            await on_thread(lambda: check_calls(registry, session, ended))
        if trial.error is not None:
            raise trial.error
        result.reward, result.rewards, result.reward_key = trial.reward, trial.rewards, trial.reward_key
    except OpenEnvError as error:
        result.ok, result.error, result.exception_type = False, error.message, type(error).__name__
    if url and registry is not None:
        await on_thread(lambda: _add_calls(result, registry, folder))
    result.wall_s = time.monotonic() - started
    await on_thread(lambda: _write(folder / RESULT, result.model_dump(mode="json")))
    return result


def _add_calls(result: HarborRolloutResult, registry: CaptureServer, folder: Path) -> None:
    """Adds the calls of the session to a result, and writes the trajectory."""
    document = registry.export(result.session_id, include_messages=True)
    own, result.trace_source = load_trace(folder)
    compared = reconcile(document, own)
    result.atif = compared.status
    result.findings += [*document["validation"], *map(str, compared.findings)]
    result.turns = turns_from_document(document)
    for turn in result.turns:
        if turn.node_id in compared.auxiliary or not compared.ok:
            turn.trainable = False
    result.conversations = conversations_from_document(document)
    result.capture_level, result.rollout_type = document["capture_level"], document["rollout_type"]
    result.n_turns, result.n_roots = len(result.turns), document["stats"]["n_roots"]
    result.budget_stop_count = document["budget_stop_count"]
    result.n_trainable_tokens = sum(len(turn.completion_token_ids) for turn in result.turns if turn.trainable)
    result.multi_turn = any(each.n_turns > 1 for each in result.conversations if each.role == "agent")
    trajectory = registry.read(result.session_id, lambda session: _trajectory(session, result))
    if trajectory is not None:
        _write(folder / TRAJECTORY, trajectory)


def _trajectory(session: CaptureSession, result: HarborRolloutResult) -> dict[str, Any] | None:
    paths = [path for path in paths_of(session.graph) if path.role == "agent"]
    if not paths:
        return None
    longest = max(paths, key=lambda path: len(path.numbers))
    return trajectory_of(rollout_of(session, longest, result.reward), result.harness.split()[0], "unknown")


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes JSON; the file is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1), encoding="utf-8")
    part.replace(path)
