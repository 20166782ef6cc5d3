"""Serve a task of Inspect AI (extra `inspect`): `openenv serve inspect:FILE.py@TASK`, `inspect:PACKAGE/TASK`."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, cast

from ..errors import EnvironmentFailed, MissingExtra, UsageError
from .conversation import ModelLoopEnvironment, ModelTool, conversation_app

try:
    # What `inspect eval` does before and after a solver has no public names.
    from inspect_ai import Task
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai._eval.task.generate import task_generate
    from inspect_ai._eval.task.util import sample_messages
    from inspect_ai._util.registry import registry_lookup, registry_unqualified_name
    from inspect_ai.model import (
        GenerateConfig,
        ModelAPI,
        ModelName,
        ModelOutput,
        get_model,
        modelapi,
    )
    from inspect_ai.model._model import init_active_model
    from inspect_ai.scorer import Score, Target, value_to_float
    from inspect_ai.solver import TaskState, chain
    from inspect_ai.solver._task_state import sample_state, set_sample_state
    from inspect_ai.util import LimitExceededError, message_limit, time_limit, token_limit
    from inspect_ai.util._store import init_subtask_store
except ModuleNotFoundError as missing:
    raise MissingExtra("inspect-ai", "inspect") from missing

__all__ = ["InspectEnvironment", "inspect_app", "inspect_environment"]

_PROVIDER = "openenv_session"
_to_float = value_to_float()


class InspectEnvironment(ModelLoopEnvironment):
    """Plays the samples of a task of Inspect; serve the subclasses that `inspect_environment` makes.

    The task's own solver runs the episode: its prompts, tools and limits. Each of its calls of the model is a step,
    which answers with a text or one tool call. The last step has the score, with all scores in `metadata["rubric"]`.
    An exception of the solver or the scorer is `EnvironmentFailed`, without a reward.
    """

    task: ClassVar[Task]
    reward: ClassVar[str | None]

    async def _play(self, index: int) -> dict[str, Any]:
        task, sample = self.task, copy.deepcopy(self.tasks[index])
        model = get_model(f"{_PROVIDER}/policy", config=task.config, memoize=False, environment=self)
        init_active_model(model, task.config)
        target = Target(sample.target)
        state = TaskState(
            model=ModelName(model),
            sample_id=index if sample.id is None else sample.id,
            epoch=1,
            input=sample.input,
            messages=sample_messages(sample),
            target=target,
            choices=sample.choices,
            metadata=sample.metadata or {},
        )
        set_sample_state(state)
        init_subtask_store(state.store)

        async def generate(state: TaskState, tool_calls: Any = "loop", **options: Any) -> TaskState:
            cache = options.pop("cache", False)
            return await task_generate(model, state, tool_calls, cache, task.config.merge(GenerateConfig(**options)))

        ended = None
        try:
            with ExitStack() as limits:
                for limit in (
                    message_limit(task.message_limit),
                    token_limit(task.token_limit),
                    time_limit(task.time_limit),
                ):
                    limits.enter_context(limit)
                solvers = task.setup if isinstance(task.setup, list) else [task.setup] if task.setup else []
                state = await chain(*solvers, task.solver)(state, generate)
        except LimitExceededError as limit:
            state, ended = sample_state() or state, str(limit)
        state.completed = True
        parts: dict[str, float] = {}
        for scorer in task.scorer or []:
            score = await scorer(state, target)
            if score is not None:
                parts |= _parts_of(registry_unqualified_name(scorer), score)
        facts = {"rubric": parts, "truncated": ended is not None, "stop_condition": ended}
        return {"text": "", "done": True, "reward": self._reward_of(parts), "metadata": facts}

    @classmethod
    def _reward_of(cls, parts: Mapping[str, float]) -> float | None:
        """The score that is the reward; None if the scorer gave none."""
        if cls.reward is None and len(parts) > 1:
            raise EnvironmentFailed(f"Inspect: the scores are {', '.join(parts)}: choose one with ?reward=NAME")
        value = parts.get(cls.reward or next(iter(parts), ""))
        return None if value is None or math.isnan(value) else value


@modelapi(name=_PROVIDER)
class _SessionModel(ModelAPI):
    """The model of an episode, which the client of the session is."""

    def __init__(self, model_name: str, environment: InspectEnvironment, **options: Any):
        super().__init__(model_name, **options)
        self._environment = environment

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig) -> ModelOutput:  # noqa: A002
        """Asks the client. `tools` are those that the model has in this call."""
        self._environment.tools = [
            ModelTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.parameters.model_dump(mode="json", exclude_none=True),
            )
            for tool in tools
        ]
        answer = await self._environment._complete([_message_of(message) for message in input])
        if "tool_calls" not in answer:
            return ModelOutput.from_content("policy", answer["content"])
        call = answer["tool_calls"][0]
        arguments = json.loads(call["function"]["arguments"])
        return ModelOutput.for_tool_call("policy", call["function"]["name"], arguments, tool_call_id=call["id"])


def inspect_app(name: str, **arguments: Any) -> Any:
    """The app that serves a task of Inspect. Arguments and errors are those of `inspect_environment`."""
    return conversation_app(inspect_environment(name, **arguments), name)


def inspect_environment(
    name: str, reward: str | None = None, limit: int | None = None, **arguments: Any
) -> type[InspectEnvironment]:
    """Makes a class that serves a task of Inspect.

    Args:
        name: The task, as for `inspect eval`: `package/task`, or `file.py@task`.
        reward: Which score is the reward, if the task has several: the name of a scorer, or `scorer/key` for a score
            of several values.
        limit: Most samples; None for all.
        arguments: Arguments of the task.

    Raises:
        UsageError: Inspect cannot load it, or it needs what is not there without `inspect eval`: a sandbox, or
            samples that are made while it runs.
    """
    file, at, _ = name.rpartition("@")
    if at and not Path(file).is_file():
        raise UsageError(f"inspect:{name}: there is no file {file} in {Path.cwd()}")
    try:
        found = load_tasks([name], arguments)
    except Exception as error:  # the edge to foreign code
        raise UsageError(f"Inspect cannot load {name!r}: {type(error).__name__}: {error}") from error
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise UsageError(f"Inspect finds the tasks {names} in {name!r}: name one, as package/task or file.py@task")
    (task,) = found
    if at:  # Inspect ignores unknown arguments with a warning
        known = signature(cast(Any, registry_lookup("task", name.rpartition("@")[2]))).parameters
        wrong = arguments.keys() - known
        if wrong:
            raise UsageError(f"{name!r} takes no argument {', '.join(wrong)}: it takes {', '.join(known) or 'none'}")
    if task.sandbox is not None or any(sample.sandbox is not None for sample in task.dataset):
        raise UsageError(f"{name!r} needs a sandbox of Inspect, which only `inspect eval` starts")
    if not task.scorer:
        raise UsageError(f"{name!r} has no scorer, so its episodes would have no reward")
    if limit is not None:
        task.dataset = task.dataset[:limit]
    facts = {
        "__module__": __name__,
        "__doc__": f"{name}: a task of Inspect.",
        "task": task,
        "tasks": task.dataset,
        "reward": reward,
    }
    return type("InspectEnvironment", (InspectEnvironment,), facts)


def _message_of(message: Any) -> dict[str, Any]:
    """A message of Inspect in the form of OpenAI's chat completions."""
    error = getattr(message, "error", None)
    if error is not None:
        return {"role": message.role, "content": f"Error: {error.message}"}
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    parts = [
        {"type": "image_url", "image_url": {"url": part.image}}
        if part.type == "image"
        else {"type": part.type, "text": getattr(part, "text", None)}
        for part in message.content
    ]
    return {"role": message.role, "content": parts}


def _parts_of(name: str, score: Score) -> dict[str, float]:
    """The values of a score as numbers: one, or one for each of its keys."""
    if isinstance(score.value, Mapping):
        return {f"{name}/{key}": _to_float(cast(Any, value)) for key, value in score.value.items()}
    if isinstance(score.value, list):
        return {f"{name}/{key}": _to_float(value) for key, value in enumerate(score.value)}
    return {name: _to_float(score.value)}
