"""The environment: repositories, actions, rewards. `running.py` runs the code."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any
from uuid import uuid4

from openenv.chat import Chat
from openenv.environment import Environment
from openenv.errors import ResetRequired

from ..models import RepoRepairAction, RepoRepairObservation, RepoRepairState
from . import tasks
from .running import PYTHON, answers, run

__all__ = ["MOST_STEPS", "RepoRepairEnvironment"]

MOST_STEPS = 20
RUN_S = 5.0
MOST_FILES, MOST_TEXT = 40, 200_000
PATH = re.compile(r"(?!.*(^|/)\.{1,2}(/|$))[\w.-]+(/[\w.-]+){0,5}", re.ASCII)
# Grades of snapshots. Equal files get equal grades, and the rollouts of a group often end with equal files.
MOST_GRADES = 1000
_grades: OrderedDict[tuple[Any, ...], float] = OrderedDict()


class RepoRepairEnvironment(Environment[RepoRepairAction, RepoRepairObservation, RepoRepairState]):
    """Repair the planted fault of a small repository. The reward is 1 if the repair passes all hidden tests."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    chat = Chat(
        system="Repair the fault in the repository. Read the files, change them, run the tests. Then submit, once.",
        observation="{task}\n\n{output}\n\nActions left: {steps_left}",
    )

    def __init__(self) -> None:
        super().__init__()
        self._state = RepoRepairState()
        self._task: tasks.Task | None = None
        self._files: dict[str, str] = {}
        self._playing = False

    async def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **kwargs: Any,
    ) -> RepoRepairObservation:
        """Sets a task, with its repository as it was.

        Args:
            seed: Chooses the task if `index` is missing.
            episode_id: Id of the episode.
            split: "train" or "test". By default "train".
            index: Index of the task in the split.

        Raises:
            InvalidArgument: The split or task does not exist.
        """
        split = tasks.split_named("train" if split is None else split)
        index = self.rng.randrange(tasks.SIZES[split]) if index is None else tasks.checked(split, index)
        self._task = tasks.task(split, index)
        self._files = dict(self._task.files)
        self._state = RepoRepairState(episode_id=episode_id or uuid4().hex, split=split, index=index)
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return RepoRepairObservation(task=self._task.prompt, steps_left=MOST_STEPS)

    async def step(
        self, action: RepoRepairAction, timeout_s: float | None = None, **kwargs: Any
    ) -> RepoRepairObservation:
        """Executes an action. One that is not possible changes nothing, and the observation says why.

        Raises:
            ResetRequired: No episode is running.
            StepFailed: The sandbox failed, or does not work on this machine.
        """
        if not self._playing or self._task is None:
            raise ResetRequired("no task is set: call reset() first")
        seen = RepoRepairObservation(task=self._task.prompt, status="ok", steps_left=MOST_STEPS, reward=0.0)
        if action.kind == "submit":
            self._state.passed = seen.passed = await self._grade(self._task)
            seen.reward = float(seen.passed == 1.0)
        elif action.kind in ("test", "run"):
            command = f"{PYTHON} -m unittest" if action.kind == "test" else action.command
            done = await run(self._files, command, min(RUN_S, timeout_s or RUN_S))
            seen.status = "timeout" if done.timed_out else "error" if done.exit_code else "ok"
            # Durations differ between runs of the same code.
            seen.output = re.sub(r"(Ran \d+ tests?) in \S+s", r"\1", done.stdout + done.stderr)
            seen.exit_code = None if done.timed_out else done.exit_code
        else:
            reason = self._edit(action, seen)
            seen.status, seen.output = ("error", reason) if reason else ("ok", seen.output)
        self._state.step_count += 1
        self._state.changed = sorted(path for path, text in self._files.items() if self._task.files.get(path) != text)
        seen.steps_left = MOST_STEPS - self._state.step_count
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        seen.terminated = action.kind == "submit"
        seen.truncated = seen.steps_left == 0 and not seen.terminated
        seen.done = seen.terminated or seen.truncated
        self._playing = not seen.done
        return seen

    @property
    def state(self) -> RepoRepairState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> RepoRepairAction:
        """The next action of a solution: the whole repaired file, then its submission."""
        if self._task is None:
            raise ResetRequired("no task is set: call reset() first")
        repair = self._task.repair
        if repair.path in self._state.changed:
            return RepoRepairAction(kind="submit")
        content = self._task.files[repair.path].replace(repair.old, repair.new)
        return RepoRepairAction(kind="write", path=repair.path, content=content)

    def return_range(self) -> tuple[float, float]:
        """The return of a player that does not read the repository, and that of a solution."""
        return 0.0, 1.0

    # The task API (`TaskProvider`).

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(tasks.SIZES)

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return tasks.SIZES[split]

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        return tasks.task(split, index).public()

    @classmethod
    def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return [tasks.task(split, index).public() for index in range(tasks.SIZES[split])[start:stop]]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.get_task_range(split)

    def _edit(self, action: RepoRepairAction, seen: RepoRepairObservation) -> str:
        """Lists, reads or changes files. Returns why that is not possible; empty if it is."""
        if action.kind == "list":
            seen.output = "\n".join(sorted(self._files))
            return ""
        if action.kind != "write" and action.path not in self._files:
            return f"there is no file {action.path!r}: `list` names all"
        text = self._files.get(action.path, "")
        if action.kind == "read":
            seen.output = text
            return ""
        if action.kind == "replace":
            if text.count(action.old) != 1:
                return f"{action.path} has the text `old` {text.count(action.old)} times: give one that it has once"
            content = text.replace(action.old, action.new)
        else:
            content = action.content
        return self._write(action.path, content)

    def _write(self, path: str, content: str) -> str:
        if PATH.fullmatch(path) is None:
            return "path must be relative, of letters, digits and `_.-`, with at most six parts"
        folders = {each.rpartition("/")[0] for each in self._files} | {"tests"}
        parents = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        if path in folders or any(parent in self._files for parent in parents):
            return f"{path} cannot be a file: a file or folder of that name is there"
        files = {**self._files, path: content.encode("utf-8", "replace").decode()}
        if len(files) > MOST_FILES or sum(map(len, files.values())) > MOST_TEXT:
            return f"the repository may have {MOST_FILES} files, and {MOST_TEXT} characters"
        self._files = files
        return ""

    async def _grade(self, task: tasks.Task) -> float:
        """The share of hidden tests that a snapshot of the files passes, in a sandbox in which nothing ran before."""
        key = (task.split, task.index, *sorted(self._files.items()))
        if key not in _grades:
            given = await answers(self._files, task.calls, RUN_S)
            right = sum(
                number in given and type(given[number]) is type(each) and given[number] == each
                for number, each in enumerate(task.expected)
            )
            if len(given) < len(task.expected):  # it may have been too slow here: the next time is another trial
                return right / len(task.expected)
            _grades[key] = right / len(task.expected)
            if len(_grades) > MOST_GRADES:
                _grades.popitem(last=False)
        return _grades[key]
