"""Served environments as tasks of Inspect AI (extra `inspect`). Without Inspect AI, it raises `MissingExtra`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from ..chat import JsonAnswer
from ..client import GenericEnvClient
from ..errors import InvalidAction, MissingExtra, UsageError
from ..mcp.types import Tool
from ..rollouts.content import content_of, text_of
from ..rollouts.function_tools import inlined
from ..types import StepResult
from .runner import Case, cases_of_seeds, cases_of_tasks, derived_seeds, end_of, parse_seeds
from .server import EvalServer

try:
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, execute_tools
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolDef, ToolError, ToolParams
except ModuleNotFoundError as missing:
    raise MissingExtra("inspect-ai", "inspect") from missing

__all__ = ["environment_task", "episode_return", "play_environment"]

EPISODES = 10
_STORED = "openenv"
_RESET = ("seed", "split", "index")
# Fields of results that are not part of the observation.
_BESIDE = frozenset({"metadata", "reward", "done", "terminated", "truncated"})
_CHOICES = frozenset({"enum", "const"})


class Wording:
    """Text form of actions.

    If an action is a single string by its schema, it is the model's whole answer; otherwise it is JSON, alone, in a
    code block, or after text.

    Args:
        schema: JSON Schema of actions.
    """

    def __init__(self, schema: Mapping[str, Any]):
        self._schema = inlined(schema, schema)
        fields = self._own_fields()
        texts = [name for name, part in fields.items() if part.get("type") == "string" and not _CHOICES & part.keys()]
        self._field = texts[0] if texts and len(fields) == 1 else None

    @property
    def instructions(self) -> str:
        """Instructions to the model for the form of its answers."""
        if self._field is not None:
            about = self._schema["properties"][self._field].get("description")
            return f"Answer with your action and nothing else: {about or self._field}."
        asked = {name: part for name, part in self._schema.items() if name not in {"title", "description", "$defs"}}
        asked["properties"] = self._own_fields()
        return f"Answer with one JSON object that is your action, by this JSON Schema: {json.dumps(asked)}"

    def read(self, answer: str) -> dict[str, Any]:
        """Parses the action in an answer.

        Raises:
            InvalidAction: The answer contains no action.
        """
        if self._field is not None:
            return {self._field: answer.strip()}
        return JsonAnswer().read(answer)

    def _own_fields(self) -> dict[str, Any]:
        return {name: part for name, part in self._schema.get("properties", {}).items() if name not in _BESIDE}


@task(name="openenv")
def environment_task(
    base_url: str,
    *,
    split: str | None = None,
    seeds: str | Sequence[int] | None = None,
    episodes: int | None = None,
    seed: int = 0,
    max_turns: int = 50,
    instructions: str | None = None,
    **client: Any,
) -> Task:
    """A task of Inspect AI from a served environment: one sample is one episode, and its score is the return.

    If actions are tool calls, the model gets the environment's tools; otherwise its answers are the actions. See
    `play_environment`.

    Args:
        base_url: URL of the server.
        split: Split with a task for each sample.
        seeds: Seeds of the samples, without a split: a list, or text for `parse_seeds`.
        episodes: Number of samples; None for all tasks or seeds, or for 10 if neither is given.
        seed: Seed from which the seeds and the choice of tasks are derived.
        max_turns: Most answers of the model in an episode.
        instructions: First message to the model; None for the default instructions.
        client: Further arguments of `GenericEnvClient`: `api_key`, `message_timeout_s`, `record`.

    Raises:
        ConnectionFailed: The server cannot be reached.
        UsageError: The environment does not have the split, or the server does not return the action schema.
    """
    server = EvalServer(base_url, client.get("api_key"))
    name = server.environment() or "environment"
    samples = [
        Sample(
            input=f"{name}, {case}",
            id=f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}",
            metadata=case.arguments(),
        )
        for case in _cases(server, split, seeds, episodes, seed)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=name),
        solver=play_environment(base_url, max_turns=max_turns, instructions=instructions, **client),
        scorer=episode_return(),
        name=f"openenv_{name}",
        metadata={"base_url": base_url, "split": split, "max_turns": max_turns},
    )


@solver
def play_environment(base_url: str, *, max_turns: int = 50, instructions: str | None = None, **client: Any) -> Solver:
    """A solver with which the model plays one episode in a separate session.

    The first observation replaces the sample's input. If actions are tool calls, each call of the model is one step,
    and an answer without a call ends the episode. Otherwise each answer is one action; for an invalid one, the model
    reads the error, which takes one turn. A failure of the environment or of the connection is an error of the sample
    without a score; `retry_on_error` of Inspect repeats such samples.

    The reset gets `seed`, `split` and `index` from the sample's metadata.

    Args:
        base_url: URL of the server.
        max_turns: Most answers of the model in an episode.
        instructions: First message to the model; None for the default instructions.
        client: Further arguments of `GenericEnvClient`.
    """
    server = EvalServer(base_url, client.get("api_key"))
    tools = server.tools()
    wording = Wording(server.action_schema()) if tools is None else None
    connect = partial(GenericEnvClient, base_url, **client)
    if instructions is None and wording is not None:
        instructions = wording.instructions

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        wanted: dict[str, Any] = {name: state.metadata[name] for name in _RESET if name in state.metadata}
        async with InspectEpisode(connect(), wanted, partial(state.store.set, _STORED)) as episode:
            if instructions:
                state.messages.insert(0, ChatMessageSystem(content=instructions))
            if wording is None:
                return await _play_by_tools(episode, state, generate, max_turns, tools or ())
            return await _play_by_text(episode, state, generate, max_turns, wording)

    return solve


@scorer(metrics=[mean(), stderr()])
def episode_return() -> Scorer:
    """Scores the return of the episode; NaN without any reward, which Inspect leaves out of metrics."""

    async def score(state: TaskState, target: Target) -> Score:
        found = state.store.get(_STORED) or {}
        total = found.get("return")
        return Score(
            value=float("nan") if total is None else total,
            answer=state.output.completion if state.output.choices else None,
            explanation=f"{found.get('steps', 0)} steps, {found.get('end', 'not begun')}",
            metadata=dict(found),
        )

    return score


def _cases(
    server: EvalServer, split: str | None, seeds: str | Sequence[int] | None, episodes: int | None, seed: int
) -> list[Case]:
    if split is not None:
        if seeds is not None:
            raise UsageError("give seeds, or a split, which has a seed for each task")
        return cases_of_tasks(server.num_tasks(split), split, seed, episodes)
    if seeds is None:
        return [Case(each) for each in derived_seeds(seed, episodes or EPISODES)]
    given = parse_seeds(seeds) if isinstance(seeds, str) else list(seeds)
    return cases_of_seeds(given, episodes)


OVER = "the episode is over"


@dataclass
class InspectEpisode:
    """A session, and the state of its episode.

    Attributes:
        client: The client, which is closed after the episode.
        wanted: Arguments of the reset.
        note: Called after every step with the return, the number of steps, and how the episode ended.
        first: The first observation.
        done: Whether the episode is over.
    """

    client: GenericEnvClient
    wanted: Mapping[str, Any]
    note: Callable[[dict[str, Any]], object]
    first: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    _total: float | None = None
    _steps: int = 0

    async def __aenter__(self) -> Self:
        try:
            result = await self.client.reset(**self.wanted)
        except BaseException:
            await self.client.close()
            raise
        self.first, self.done = result.observation, result.done
        self._report(result)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.client.close()

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Takes one step. Returns the observation. Raises `OpenEnvError`."""
        result = await self.client.step(dict(action))
        self._steps += 1
        self.done = result.done
        if result.reward is not None:
            self._total = (self._total or 0.0) + float(result.reward)
        self._report(result)
        return result.observation

    def tool(self, tool: Tool) -> ToolDef:
        """Converts a tool of the environment, so that each call is one step."""

        async def execute(**arguments: Any) -> str:
            if self.done:
                raise ToolError(OVER)
            seen = await self.step({"type": "call_tool", "tool_name": tool.name, "arguments": arguments})
            error = seen.get("error")
            if error:
                raise ToolError(str(error.get("message", error)) if isinstance(error, Mapping) else str(error))
            return content_of(seen).text + (f"\n({OVER})" if self.done else "")

        parameters = ToolParams.model_validate(inlined(tool.input_schema, tool.input_schema))
        for name, part in parameters.properties.items():
            part.description = part.description or name
        return ToolDef(execute, tool.name, tool.description, parameters)

    def _report(self, result: StepResult[dict[str, Any]]) -> None:
        end = end_of(result) or "not over"
        self.note({"return": self._total, "steps": self._steps, "end": end})


async def _play_by_text(
    episode: InspectEpisode, state: TaskState, generate: Generate, most: int, wording: Wording
) -> TaskState:
    """Plays with each answer of the model as an action, and `most` answers at most."""
    _begin(state, text_of(episode.first))
    for _ in range(most):
        if episode.done:
            break
        state = await generate(state)
        try:
            seen = text_of(await episode.step(wording.read(state.output.completion)))
        except InvalidAction as error:
            seen = f"That is not a valid action: {error}"
        state.messages.append(ChatMessageUser(content=seen))
    return state


async def _play_by_tools(
    episode: InspectEpisode, state: TaskState, generate: Generate, most: int, tools: Sequence[Tool]
) -> TaskState:
    """Plays with each tool call as a step, and `most` answers at most; an answer without a call ends the episode."""
    _begin(state, text_of(episode.first))
    state.tools = [episode.tool(each).as_tool() for each in tools]
    for _ in range(most):
        if episode.done:
            break
        state = await generate(state, tool_calls="none")
        if not state.output.message.tool_calls:
            break
        found = await execute_tools(state.messages, state.tools)
        state.messages.extend(found.messages)
    return state


def _begin(state: TaskState, text: str) -> None:
    """Replaces the sample's input by the first observation."""
    state.user_prompt.content = text or "Begin."
