"""Serve tasks in Harbor's format, `openenv serve harbor:FOLDER`: the client is the agent, a tool runs commands."""

from __future__ import annotations

import json
import time
from typing import Any, ClassVar

from ..adapters.conversation import ModelLoopEnvironment, ModelTool, conversation_app
from ..agents import CommandResult, Sandbox
from ..errors import UsageError
from .sandboxes import SANDBOXES, SandboxKind, layout_of
from .tasks import HarborTask, resolve_task_dirs, task_name
from .trial import run_trial

__all__ = ["HarborTaskEnvironment", "harbor_app"]

# Characters that the model reads of what a command printed: the first and the last half.
_READ = 20_000
_BASH = ModelTool(
    name="bash",
    description="Runs a command of the shell in the task's folder. Answer in text when the task is done.",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


class HarborTaskEnvironment(ModelLoopEnvironment):
    """Plays tasks in Harbor's format; serve the subclasses that `harbor_app` makes.

    Each episode has a sandbox with the files of its task. The tool `bash` runs a command there, and a text ends the
    episode: then the tests score what was left, in a sandbox of their own. The commands together have the agent's
    time of the task; when it is over, the episode ends and is scored. Without a score it fails, without a reward.

    Attributes:
        sandbox: Where the tasks run.
        reward_key: Which reward to take, if the tests write several.
    """

    tasks: ClassVar[list[HarborTask]]
    sandbox: ClassVar[SandboxKind]
    reward_key: ClassVar[str]
    tools = (_BASH,)

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        """A task, with its name. Raises `IndexError`, or as `num_tasks`."""
        return {**super().get_task(split, index), "name": cls.tasks[index].title}

    async def _play(self, index: int) -> dict[str, Any]:
        late = False

        async def agent(sandbox: Sandbox, task: HarborTask) -> None:
            nonlocal late
            messages: list[dict[str, Any]] = [{"role": "user", "content": task.instruction}]
            left = task.agent_timeout_s
            while left > 0:
                answer = await self._complete(messages)
                if "tool_calls" not in answer:
                    return
                (call,) = answer["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                text = "There is one tool: bash, with one argument, the text `command`."
                command = arguments.get("command")
                if call["function"]["name"] == _BASH.name and isinstance(command, str) and command:
                    began = time.monotonic()
                    text = _text_of(await sandbox.run(command, timeout_s=left, user=task.agent_user))
                    left -= time.monotonic() - began
                messages = [*messages, answer, {"role": "tool", "tool_call_id": call["id"], "content": text}]
            late = True

        trial = await run_trial(self.tasks[index], agent, sandbox=self.sandbox, reward_key=self.reward_key)
        if trial.error is not None:
            raise trial.error
        facts = {"rubric": trial.rewards, "truncated": late, "stop_condition": "the time is over" if late else None}
        return {"text": "", "done": True, "reward": trial.reward, "metadata": facts}


def harbor_app(name: str, sandbox: str = "process", reward: str = "") -> Any:
    """The app that serves tasks in Harbor's format, or Terminal-Bench's.

    Args:
        name: The folder of a task, a folder of tasks, or a dataset of the Hub (`org/name`).
        sandbox: `process` or `docker`.
        reward: Which reward to take, if the tests write several.

    Raises:
        UsageError: There is no task, or one is faulty, or does not run in that sandbox.
        MissingExtra: It is on the Hub, and huggingface-hub is not installed.
    """
    if sandbox not in SANDBOXES:
        raise UsageError(f"sandbox={sandbox}: choose {' or '.join(SANDBOXES)}")
    tasks = [HarborTask.read(folder) for folder in resolve_task_dirs(name)]
    for task in tasks:
        task.check_tests()
        if sandbox == "process":
            layout_of(task)
    facts = {
        "__module__": __name__,
        "__doc__": f"{name}: tasks in Harbor's format.",
        "tasks": tasks,
        "sandbox": sandbox,
        "reward_key": reward,
    }
    return conversation_app(type("HarborTaskEnvironment", (HarborTaskEnvironment,), facts), task_name(name))


def _text_of(ended: CommandResult) -> str:
    """What the model reads of a command."""
    text = ended.stdout + ended.stderr
    if len(text) > _READ:
        middle = f"\n[{len(text) - _READ} characters left out]\n"
        text = text[: _READ // 2] + middle + text[-_READ // 2 :]
    if ended.timed_out:
        return f"{text}\n[ended: the time of the task is over]"
    return f"{text}\n[exit code {ended.exit_code}]" if ended.exit_code else text
