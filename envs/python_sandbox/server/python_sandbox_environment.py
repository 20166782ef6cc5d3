"""The environment: tasks, actions, rewards. `sandbox.py` runs the code."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from openenv.chat import Chat
from openenv.environment import Environment
from openenv.errors import InvalidArgument, NotForkable, ResetRequired, StepFailed

from ..models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState
from . import tasks, walls
from .grader import grade
from .sandbox import STEP_S, Reply, Sandbox

__all__ = ["PythonSandboxEnvironment"]

MOST_STEPS = 20


class PythonSandboxEnvironment(Environment[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]):
    """The task is to write a function. Code runs in a sandbox, which keeps variables and files for the episode. The
    reward of a submission is the share of hidden tests that it passes."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    # Each session has a separate process. When it ends, its sandbox ends too.
    execution = "process"
    chat = Chat(
        system="Write the Python function that the task describes. Run code to test it: variables and files stay "
        "until the end. Then submit the whole function with kind `submit`, once.",
    )

    def __init__(self) -> None:
        super().__init__()
        walls.require()
        self._state = PythonSandboxState()
        self._task: tasks.Task | None = None
        self._playing = False
        self._sandbox: Sandbox | None = None
        self._started = 0
        self._step_s = STEP_S

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        step_s: float | None = None,
        **kwargs: Any,
    ) -> PythonSandboxObservation:
        """Sets a task, and removes everything of the last episode.

        Args:
            seed: Chooses the task if `index` is missing.
            episode_id: Id of the episode.
            split: "train" or "test".
            index: Index of the task in the split.
            step_s: Time limit for the code of a step, at most 5 s.

        Raises:
            InvalidArgument: The split, task or time is not valid.
        """
        split = tasks.split_named("train" if split is None else split)
        index = self.rng.randrange(tasks.SIZES[split]) if index is None else tasks.checked(split, index)
        step_s = _time_limit(step_s)
        self._task = tasks.task(split, index)
        self.close()
        self._state = PythonSandboxState(
            episode_id=episode_id or uuid4().hex, split=split, index=index, family=self._task.family
        )
        self._step_s = step_s
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return PythonSandboxObservation(task=self._task.prompt, family=self._task.family, steps_left=MOST_STEPS)

    def step(
        self, action: PythonSandboxAction, timeout_s: float | None = None, **kwargs: Any
    ) -> PythonSandboxObservation:
        """Executes an action. Code that hangs, exits or uses too much is stopped, and the episode continues.

        Args:
            action: The action.
            timeout_s: Time limit for the code, if shorter than that of `reset`.

        Raises:
            ResetRequired: No episode is running.
            StepFailed: The sandbox could not be started.
        """
        if not self._playing or self._task is None:
            raise ResetRequired("no task is set: call reset() first")
        seen = self._submit(action) if action.kind == "submit" else self._run(action, timeout_s)
        self._state.step_count += 1
        self._state.statuses.append(seen.status)
        seen.steps_left = MOST_STEPS - self._state.step_count
        seen.terminated = action.kind == "submit"
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        seen.truncated = seen.steps_left == 0 and not seen.terminated
        seen.done = seen.terminated or seen.truncated
        self._playing = not seen.done
        if seen.done:
            self.close()
        return seen

    @property
    def state(self) -> PythonSandboxState:
        return self._state

    def oracle(self) -> PythonSandboxAction:
        """A submission that looks the answers of the hidden tests up in a table."""
        if self._task is None:
            raise ResetRequired("no task is set: call reset() first")
        answers = {
            repr(arguments): answer for arguments, answer in zip(self._task.inputs, self._task.expected, strict=True)
        }
        code = (
            f"ANSWERS = {answers!r}\ndef {self._task.family}(*arguments):\n    return ANSWERS[repr(list(arguments))]"
        )
        return PythonSandboxAction(kind="submit", code=code)

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that submits the same code in each task, and that of a solution."""
        return 0.1, 1.0

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox, self._started = None, 0

    def save_state(self) -> Any:
        """Raises an error, since the processes of the sandbox cannot be copied.

        Raises:
            NotForkable: Always.
        """
        raise NotForkable(
            "PythonSandboxEnvironment cannot be forked: its interpreter runs in a sandbox; open a session, "
            "reset it to the same split and index, and do the same actions"
        )

    # The task API.

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

    def _run(self, action: PythonSandboxAction, timeout_s: float | None) -> PythonSandboxObservation:
        request: dict[str, Any] = {"kind": action.kind, "path": action.path}
        if action.kind == "run":
            request |= {"code": action.code}
        elif action.kind == "write":
            request |= {"content": action.content}
        if self._started == 0:
            request["seed"] = f"{self._state.split} {self._state.index}"
        reply = self._ask(request, min(self._step_s, _time_limit(timeout_s)))
        seen = self._observation(reply, 0.0)
        answer = _parsed(reply.answers[-1]) if reply.status == "done" and reply.answers else {}
        if isinstance(error := answer.get("error"), str):
            seen.status, seen.reason = "error", _clean(error, 1000)
        if isinstance(content := answer.get("content"), str):
            seen.output = _clean(content, 64 * 1024)
        if isinstance(value := answer.get("value"), str):
            seen.value = _clean(value, 8 * 1024)
        if isinstance(files := answer.get("files"), list):
            seen.files = [_clean(name, 1000) for name in files[:200] if isinstance(name, str)]
        seen.output_cut = seen.output_cut or answer.get("cut") is True
        seen.restarted = reply.gone or reply.started > max(self._started, 1) or reply.status != "done"
        seen.files_lost = reply.gone
        self._started = reply.started
        return seen

    def _ask(self, request: dict[str, Any], seconds: float) -> Reply:
        try:
            if self._sandbox is None:
                self._sandbox = Sandbox()
            reply = self._sandbox.ask(request, seconds)
        except OSError as error:
            self.close()
            raise StepFailed(f"the sandbox cannot be started: {error}; look at walls.check()") from error
        if reply.gone:
            self.close()
        return reply

    def _submit(self, action: PythonSandboxAction) -> PythonSandboxObservation:
        assert self._task is not None
        try:
            share, reply = grade(self._task, action.code)
        except OSError as error:
            raise StepFailed(f"the sandbox cannot be started: {error}; look at walls.check()") from error
        self._state.passed = share
        seen = self._observation(reply, share)
        seen.passed = share
        last = _parsed(reply.answers[-1]) if reply.answers else {}
        if seen.status == "ok" and isinstance(error := last.get("error"), str):
            seen.status, seen.reason = "error", _clean(error, 1000)
        # The printed text could reveal the hidden tests to later agents.
        seen.output, seen.output_cut = "", False
        return seen

    def _observation(self, reply: Reply, reward: float) -> PythonSandboxObservation:
        assert self._task is not None
        return PythonSandboxObservation(
            task=self._task.prompt,
            family=self._task.family,
            status="ok" if reply.status == "done" else reply.status,
            reason=reply.reason,
            output=_clean(reply.output, 16 * 1024),
            output_cut=reply.output_cut,
            exit_code=reply.exit_code,
            steps_left=MOST_STEPS,
            reward=reward,
        )


def _time_limit(seconds: Any) -> float:
    if seconds is None:
        return STEP_S
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise InvalidArgument(
            f"a time limit is a number of seconds, more than 0 and at most {STEP_S:g}, not {seconds!r:.40}"
        )
    return min(float(seconds), STEP_S)


def _parsed(text: str) -> dict[str, Any]:
    """An answer of the interpreter; empty if it is not a JSON object."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _clean(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "replace").decode()
