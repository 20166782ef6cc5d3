"""A step of this environment runs a whole agent in a sandbox, records its model calls, and scores what it leaves."""

from __future__ import annotations

import difflib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from .._asyncio import on_thread, wait_for
from ..capture import CaptureServer, CaptureSession
from ..environment import Environment
from ..errors import AgentFailed, InvalidArgument, NotForkable, ResetRequired, RubricFailed
from ..types import Action, Observation, State
from .docker_sandbox import DockerSandbox
from .process_sandbox import ProcessSandbox
from .programs import HOME, AgentProgram, program_of
from .sandbox import CommandResult, Files, Sandbox, SandboxLimits

# Bytes of a diff, and of a file that is compared; seconds for commands of the environment itself.
_DIFF_BYTES = 1024 * 1024
_FILE_BYTES = 1024 * 1024
_SETUP_S = 600.0
_REWARD = "/logs/reward.txt"
_MISSING = (126, 127)


@dataclass(frozen=True)
class AgentTask:
    """A task for an agent.

    Attributes:
        name: Its name.
        instruction: What the agent is asked to do.
        folder: Files that the agent finds in `workdir`; None: those of the image.
        image: A Docker image; None: a `ProcessSandbox`.
        tests: A folder, or contents by name, that is put into `/tests` for the scorer. The agent never sees it.
        scorer: Command that scores `workdir`, in a fresh sandbox. Its exit code 0 is reward 1, another is 0, unless
            it writes a number to /logs/reward.txt.
        workdir: Folder in the sandbox: what the agent leaves there is kept and scored.
        timeout_s, scorer_timeout_s: Seconds for the agent, and for the scorer.
        max_model_calls: Most calls of the model; 0 for no limit.
        max_tokens: No call begins after that many sampled tokens; 0 for no limit.
        limits: What commands may use.
    """

    name: str
    instruction: str
    folder: str | os.PathLike[str] | None = None
    image: str | None = None
    tests: Files | str | os.PathLike[str] = field(default_factory=dict)
    scorer: str = ""
    workdir: str = "/workspace"
    timeout_s: float = 1800.0
    scorer_timeout_s: float = 600.0
    max_model_calls: int = 0
    max_tokens: int = 0
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def __post_init__(self) -> None:
        if not self.scorer:
            raise InvalidArgument(f"task {self.name!r} has no scorer: give the command that runs its tests")
        if not self.instruction:
            raise InvalidArgument(f"task {self.name!r} has no instruction: say what the agent is to do")
        for name in ("timeout_s", "scorer_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"task {self.name!r}: {name} must be above 0, not {getattr(self, name)!r}")


class RunAgent(Action):
    """Runs the agent to its end.

    Attributes:
        instruction: In place of that of the task; for a later run, what to do next.
        timeout_s: Seconds; None: those of the task.
        score: Whether the episode ends here. If not, the next action goes on with the same files.
    """

    instruction: str | None = None
    timeout_s: float | None = Field(default=None, gt=0)
    score: bool = True


class AgentOutcome(Observation):
    """A task, or what an agent did to it.

    Attributes:
        task, instruction: The task.
        session_id: Its session at the capture proxy.
        status: How the agent ended: `ready` (it has not run), `finished`, `failed` (with another exit code than 0),
            `timeout`.
        explanation: One sentence on that.
        exit_code: Its exit code.
        seconds: How long it ran.
        model_calls, sampled_tokens: Of all its runs.
        out_of_budget: Whether calls were refused, as the budget was used up.
        stdout, stderr: The end of what it printed; the folder has more.
        diff: What it changed, as text; cut at 1 MiB.
        folder: Folder on the server with `files` (what it left), `agent.log`, `scorer.log` and `changes.diff`.
    """

    task: str = ""
    instruction: str = ""
    session_id: str = ""
    status: Literal["ready", "finished", "failed", "timeout"] = "ready"
    explanation: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    model_calls: int = 0
    sampled_tokens: int = 0
    out_of_budget: bool = False
    stdout: str = ""
    stderr: str = ""
    diff: str = ""
    folder: str = ""


class AgentEnvironment(Environment[RunAgent, AgentOutcome, State]):
    """Tasks for an agent program. A reset sets up a task's files; one step runs the whole agent, and scores its work.

    The agent reaches nothing but the capture proxy, where its key is that of the episode's session. What it leaves in
    `workdir` is copied while nothing runs, and scored in a fresh sandbox, with tests that it has never seen.

    Args:
        tasks: The tasks; a reset takes the one that `task` names, or the next one.
        agent: Name of a program of `PROGRAMS`, or a program.
        proxy: The proxy in front of the model, started.
        model: Name of the model that the agent asks for.
        programs: Folders of this machine with the agent: mounted, with `bin` and `node_modules/.bin` in the PATH.
        allow: Further addresses (`host:port`) that the agent may reach.
        folder: Where each episode keeps its files; None: a temporary folder, which ends with the environment.

    Raises:
        InvalidArgument: There is no task, or the agent is unknown.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        tasks: Sequence[AgentTask],
        agent: str | AgentProgram,
        *,
        proxy: CaptureServer,
        model: str = "policy",
        programs: Sequence[str | os.PathLike[str]] = (),
        allow: Sequence[str] = (),
        folder: str | os.PathLike[str] | None = None,
    ):
        super().__init__()
        if not tasks:
            raise InvalidArgument("tasks is empty: give at least one AgentTask")
        self._tasks = {task.name: task for task in tasks}
        self._program = program_of(agent)
        self._proxy = proxy
        self._model = model
        self._programs = [Path(each).resolve() for each in programs]
        self._allow = [f"{urlsplit(proxy.url).hostname}:{urlsplit(proxy.url).port}", *allow]
        self._own = None if folder is not None else tempfile.mkdtemp(prefix="openenv-agents-")
        self._folder = Path(folder or self._own or "")
        self._count = self._steps = 0
        self._sandbox: Sandbox | None = None
        self._task = tasks[0]
        self._session = ""
        self._kept = self._folder

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: str | None = None, **kwargs: Any
    ) -> AgentOutcome:
        """Sets up a task.

        Args:
            seed: Picks the task, if `task` does not.
            episode_id: Name of the session at the proxy; must be new there.
            task: Name of the task.

        Raises:
            InvalidArgument: There is no such task.
            LaunchFailed: Its image does not start.
        """
        names = list(self._tasks)
        number = self._count if seed is None else seed
        name = names[number % len(names)] if task is None else task
        if name not in self._tasks:
            raise InvalidArgument(f"task {name!r} is unknown: choose one of {', '.join(names[:20])}")
        self._count += 1
        self._task = self._tasks[name]
        wait_for(self._begin(episode_id))
        return self._outcome()

    def step(self, action: RunAgent, timeout_s: float | None = None, **kwargs: Any) -> AgentOutcome:
        """Runs the agent, and scores what it leaves unless `action.score` is false.

        Raises:
            AgentFailed: It did not call its model, or got no answer from it: there is nothing to score.
            RubricFailed: The scorer did not run, did not end, or gave no number.
            ProviderFailed: The sandbox failed.
        """
        if self._sandbox is None:
            raise ResetRequired("the episode has ended: reset() sets up the next task")
        self._steps += 1
        outcome: AgentOutcome = wait_for(self._run(self._sandbox, action))
        return outcome

    @property
    def state(self) -> State:
        return State(episode_id=self._session or None, step_count=self._steps)

    def save_state(self) -> Any:
        raise NotForkable("an agent in its sandbox cannot be copied: reset another environment to the same task")

    def close(self) -> None:
        """Ends the sandbox."""
        wait_for(self._end())
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    async def _begin(self, episode_id: str | None) -> None:
        await self._end()
        task, self._steps = self._task, 0
        self._session = self._proxy.open(
            episode_id or "",
            max_model_calls=task.max_model_calls,
            max_sampled_tokens=task.max_tokens,
            metadata={"task": task.name},
        )
        self._kept = self._folder / self._session
        program = self._program.filled(self._proxy.url, self._session, self._model)
        self._sandbox = self._place(self._programs, self._allow, {"HOME": HOME, **program.variables}, task.folder)
        await self._sandbox.start()
        await self._sandbox.put({**program.files, "task.md": task.instruction}, HOME)
        await self._sandbox.get(task.workdir, self._kept / "before")

    def _place(
        self,
        mounts: Sequence[Path] = (),
        allow: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> Sandbox:
        """A sandbox of the task, not yet started."""
        task = self._task
        options: dict[str, Any] = {"workdir": task.workdir, "limits": task.limits, "variables": variables}
        if task.image is None:
            return ProcessSandbox(folder, mounts=mounts, allow=allow, **options)
        return DockerSandbox(task.image, folder, mounts=mounts, allow=allow, **options)

    async def _end(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def _run(self, sandbox: Sandbox, action: RunAgent) -> AgentOutcome:
        task = self._task
        instruction = task.instruction if action.instruction is None else action.instruction
        program = self._program.filled(self._proxy.url, self._session, self._model, self._programs)
        command = program.resume if program.resume is not None and self._steps > 1 else program.command
        before = self._proxy.read(self._session, calls_of)
        began = time.monotonic()
        timeout_s = action.timeout_s or task.timeout_s
        ended = await sandbox.run(command, timeout_s=timeout_s, env={"INSTRUCTION": instruction})
        seconds = time.monotonic() - began
        (self._kept / "agent.log").write_text(_log(ended), encoding="utf-8")
        check_calls(self._proxy, self._session, ended, before)
        if not action.score:
            return self._outcome(ended, seconds, timeout_s)
        await sandbox.stop()
        kept = self._kept / "files"
        if not await sandbox.get(task.workdir, kept):
            kept.mkdir(parents=True, exist_ok=True)  # the agent has removed it
        await self._end()
        diff = await on_thread(lambda: diff_of(self._kept / "before", kept))
        (self._kept / "changes.diff").write_text(diff, encoding="utf-8")
        reward = await self._score(kept)
        outcome = self._outcome(ended, seconds, timeout_s)
        outcome.diff, outcome.reward, outcome.done = diff, reward, True
        return outcome

    async def _score(self, files: Path) -> float:
        """The reward.

        Raises:
            RubricFailed: The scorer did not run, did not end, or gave no number.
        """
        task = self._task
        async with self._place() as place:
            emptied = await place.run(["rm", "-rf", "--", task.workdir], timeout_s=_SETUP_S, cwd="/")
            if emptied.exit_code and task.image is not None:
                raise RubricFailed(f"task {task.name!r}: {task.workdir} cannot be emptied: {emptied.stderr.strip()}")
            await place.put(files, task.workdir)
            await place.put(task.tests, "/tests")
            await place.put({}, str(Path(_REWARD).parent))
            scored = await place.run(task.scorer, timeout_s=task.scorer_timeout_s)
            (self._kept / "scorer.log").write_text(_log(scored), encoding="utf-8")
            if scored.timed_out:
                raise RubricFailed(
                    f"task {task.name!r}: the scorer did not end within {task.scorer_timeout_s:g} s: raise "
                    "scorer_timeout_s, or bound the time of what it runs"
                )
            if scored.exit_code in _MISSING:
                raise RubricFailed(f"task {task.name!r}: the scorer did not run: {_tail(scored)}")
            with tempfile.TemporaryDirectory() as folder:
                if not await place.get(_REWARD, folder):
                    return float(scored.exit_code == 0)
                text = (await on_thread(lambda: _content(Path(folder, Path(_REWARD).name)))) or ""
        try:
            reward = float(text)
        except ValueError:
            reward = math.nan
        if not math.isfinite(reward):
            raise RubricFailed(f"task {task.name!r}: the scorer wrote {text!r:.80} to {_REWARD}: it must be a number")
        return reward

    def _outcome(
        self, ended: CommandResult | None = None, seconds: float = 0.0, timeout_s: float = 0.0
    ) -> AgentOutcome:
        calls, tokens, stops = self._proxy.read(
            self._session,
            lambda session: (calls_of(session), session.sampled_tokens, session.count("budget_stop")),
        )
        outcome = AgentOutcome(
            task=self._task.name,
            instruction=self._task.instruction,
            session_id=self._session,
            seconds=seconds,
            model_calls=calls,
            sampled_tokens=tokens,
            out_of_budget=stops > 0,
            folder=str(self._kept),
        )
        if ended is not None:
            outcome.status = "timeout" if ended.timed_out else "failed" if ended.exit_code else "finished"
            outcome.explanation, outcome.exit_code = _sentence(ended, timeout_s), ended.exit_code
            outcome.stdout, outcome.stderr = ended.stdout[-10_000:], ended.stderr[-10_000:]
        return outcome


def diff_of(before: Path, after: Path) -> str:
    """What changed between two folders, as a unified diff of at most 1 MiB. `.git` is left out.

    Args:
        before, after: The folders.
    """
    names = sorted({*_files_of(before), *_files_of(after)})
    text: list[str] = []
    size = 0
    for name in names:
        old, new = _content(before / name), _content(after / name)
        if old == new:
            continue
        if isinstance(old, bytes) or isinstance(new, bytes):
            lines = [f"Files a/{name} and b/{name} differ\n"]
        else:
            source = "/dev/null" if old is None else f"a/{name}"
            target = "/dev/null" if new is None else f"b/{name}"
            lines = [
                *difflib.unified_diff((old or "").splitlines(True), (new or "").splitlines(True), source, target)
            ]
        for line in lines:
            size += len(line) + 1
            if size > _DIFF_BYTES:
                return "".join([*text, "[the rest is left out]\n"])
            text.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(text)


def _files_of(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if (path.is_symlink() or path.is_file()) and ".git" not in path.relative_to(folder).parts:
            yield str(path.relative_to(folder))


def _content(path: Path) -> str | bytes | None:
    """The text of a file, its bytes if it has none, or is large; None if it is not there."""
    if path.is_symlink():
        return f"link to {path.readlink()}\n"
    if not path.is_file():
        return None
    if path.stat().st_size > _FILE_BYTES:
        return f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode()
    data = path.read_bytes()
    try:
        return data if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return data


def calls_of(session: CaptureSession) -> int:
    """How many calls the model has answered."""
    return len(session.graph.turns)


def check_calls(proxy: CaptureServer, session: str, ended: CommandResult, before: int = 0) -> None:
    """Raises `AgentFailed` if the model has answered no call of an agent: then there is nothing to score.

    Args:
        proxy: The proxy in front of the model.
        session: The agent's session there.
        ended: How the agent ended.
        before: Calls of its earlier runs.
    """
    if proxy.read(session, calls_of) > before:
        return
    errors = proxy.read(session, lambda session: [each for each in session.notes if each.text])
    if errors:
        raise AgentFailed(f"the model answered no call of the agent: {errors[-1].text:.500}")
    if proxy.read(session, lambda session: session.count("budget_stop")):
        return
    raise AgentFailed(
        f"the agent never called its model at {proxy.url}: it ended with exit code {ended.exit_code} "
        f"({_tail(ended)}); check its command and the variables with the address and the key"
    )


def _log(ended: CommandResult) -> str:
    return f"{ended.stdout}\n--- stderr\n{ended.stderr}\n--- exit code {ended.exit_code}\n"


def _tail(ended: CommandResult) -> str:
    return (ended.stderr.strip() or ended.stdout.strip() or "it printed nothing")[-300:]


def _sentence(ended: CommandResult, timeout_s: float) -> str:
    if ended.timed_out:
        return f"the agent was stopped after {timeout_s:g} s"
    if ended.exit_code:
        return f"the agent failed with exit code {ended.exit_code}: {_tail(ended)}"
    return "the agent finished"
