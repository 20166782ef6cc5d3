"""The environment itself: tasks, actions, rewards. What runs code is in `sandbox.py`."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.errors import InvalidArgument, NotForkable, ResetRequired, StepFailed

from ..models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState
from . import tasks, walls
from .grader import grade
from .sandbox import STEP_S, Reply, Sandbox

__all__ = ["PythonSandboxEnvironment"]

MOST_STEPS = 20


class PythonSandboxEnvironment(Environment[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]):
    """A function is to be written. Code runs in a sandbox, where variables and files stay for the episode; what is
    submitted is worth the share of hidden tests that it passes."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    # Each session has a process of its own, and its sandbox ends with it.
    execution = "process"

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
        """Sets a task. Nothing of the last episode remains.

        Args:
            seed: Chooses the task where `index` does not.
            episode_id: Id of the episode.
            split: "train" or "test".
            index: Which task of the split.
            step_s: What the code of a step may take, if less than 5 s.

        Raises:
            InvalidArgument: There is no such split or task, or the time is none.
        """
        split = tasks.split_named("train" if split is None else split)
        index = self.rng.randrange(tasks.SIZES[split]) if index is None else tasks.checked(split, index)
        step_s = _bounded(step_s)
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
        """Does one action. Code that hangs, ends or takes too much is stopped, and the episode goes on.

        Args:
            action: What to do.
            timeout_s: What the code may take, if less than `reset` said.
        """
        if not self._playing or self._task is None:
            raise ResetRequired("no task is set: call reset() for one")
        seen = self._submit(action) if action.kind == "submit" else self._do(action, timeout_s)
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

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox, self._started = None, 0

    def save_state(self) -> Any:
        """What runs in the sandbox cannot be copied."""
        raise NotForkable(
            "PythonSandboxEnvironment cannot be forked: its interpreter runs in a sandbox; open a session, "
            "reset it to the same split and index, and do the same actions"
        )

    # The tasks, as servers and clients ask for them.

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

    def _do(self, action: PythonSandboxAction, timeout_s: float | None) -> PythonSandboxObservation:
        request: dict[str, Any] = {"kind": action.kind, "path": action.path}
        if action.kind == "run":
            request |= {"code": action.code}
        elif action.kind == "write":
            request |= {"content": action.content}
        if self._started == 0:
            request["seed"] = f"{self._state.split} {self._state.index}"
        reply = self._ask(request, min(self._step_s, _bounded(timeout_s)))
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
        # What it printed might tell of the hidden tests whoever comes after.
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


def _bounded(seconds: Any) -> float:
    if seconds is None:
        return STEP_S
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise InvalidArgument(f"a step takes seconds, more than 0 and at most {STEP_S:g}, not {seconds!r:.40}")
    return min(float(seconds), STEP_S)


def _parsed(text: str) -> dict[str, Any]:
    """What the interpreter says of itself; nothing, if it is not as agreed."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _clean(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "replace").decode()
