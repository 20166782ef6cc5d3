"""Served environments as tasks of Inspect AI (extra `inspect`). Without Inspect AI, it raises `MissingExtra`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from ..client import GenericEnvClient
from ..errors import InvalidAction, MissingExtra, UsageError
from ..mcp.types import Tool
from ..types import StepResult
from .cases import Case, cases_of_seeds, cases_of_tasks, derived_seeds, parse_seeds
from .runner import end_of
from .server import EvalServer
from .wording import Wording, inlined

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
    """A served environment as a task: one sample is one episode, and its score is the return.

    Where actions are tool calls, the model gets the environment's tools; elsewhere its answers are the actions. See
    `play_environment`.

    Args:
        base_url: Address of the server.
        split: Samples are the tasks of this split.
        seeds: Without a split, samples are these seeds: as `parse_seeds` takes them, or a list.
        episodes: How many samples; None: all tasks or seeds, and 10 where neither is given.
        seed: The seeds, and the choice among tasks, are derived from it.
        max_turns: After so many answers of the model an episode is over.
        instructions: The first message to the model; None: how it is to answer.
        client: Further arguments of `GenericEnvClient`: `api_key`, `message_timeout_s`, `record`.

    Raises:
        ConnectionFailed: The server cannot be reached.
        UsageError: It has no such split, or does not say what actions are.
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
    """A solver that has the model play one episode in a session of its own.

    The first observation takes the place of the sample's input. Where actions are tool calls, each of the model's is
    one step, and an answer without one ends the episode. Elsewhere each answer is one action: the
    model reads what is wrong with one that is none, which costs it a turn. A failure of the environment or of the
    connection is an error of the sample, and no score; have Inspect repeat such samples by `retry_on_error`.

    The sample's metadata `seed`, `split` and `index` are given to the reset.

    Args:
        base_url: Address of the server.
        max_turns: After so many answers of the model the episode is over.
        instructions: The first message to the model; None: how it is to answer.
        client: Further arguments of `GenericEnvClient`.
    """
    server = EvalServer(base_url, client.get("api_key"))
    tools = server.tools()
    wording = Wording(server.action_schema()) if tools is None else None
    if instructions is None and wording is not None:
        instructions = wording.instructions

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        wanted: dict[str, Any] = {name: state.metadata[name] for name in _RESET if name in state.metadata}
        async with InspectEpisode(base_url, wanted, partial(state.store.set, _STORED), client) as episode:
            if instructions:
                state.messages.insert(0, ChatMessageSystem(content=instructions))
            turns = Turns(episode, state, generate, max_turns)
            await (turns.by_tools(tools or ()) if wording is None else turns.by_text(wording))
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def episode_return() -> Scorer:
    """The return of the episode; without any reward there is no score: NaN, which Inspect leaves out of metrics."""

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


def _sample(case: Case, name: str) -> Sample:
    label = f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}"
    return Sample(input=f"{name}, {case}", id=label, metadata=case.arguments())


OVER = "the episode is over"


class InspectEpisode:
    """A session, and the state of its episode so far.

    Args:
        base_url: Address of the server.
        wanted: Arguments of the reset.
        note: Gets what there is, after every step: return, steps, and how it ended.
        client: Further arguments of the client.
    """

    def __init__(
        self,
        base_url: str,
        wanted: Mapping[str, Any],
        note: Callable[[dict[str, Any]], object],
        client: Mapping[str, Any],
    ):
        self._client = GenericEnvClient(base_url, **client)
        self._wanted = wanted
        self._note = note
        self._total: float | None = None
        self._steps = 0
        self.first: dict[str, Any] = {}
        self.done = False

    async def __aenter__(self) -> Self:
        try:
            result = await self._client.reset(**self._wanted)
        except BaseException:
            await self._client.close()
            raise
        self.first, self.done = result.observation, result.done
        self._report(result)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Does an action. Returns the observation. Raises OpenEnvError."""
        result = await self._client.step(dict(action))
        self._steps += 1
        self.done = result.done
        if result.reward is not None:
            self._total = (self._total or 0.0) + float(result.reward)
        self._report(result)
        return result.observation

    def tool(self, tool: Tool) -> ToolDef:
        """One of the environment's tools, each call of which is a step."""

        async def execute(**arguments: Any) -> str:
            if self.done:
                raise ToolError(OVER)
            seen = await self.step({"type": "call_tool", "tool_name": tool.name, "arguments": arguments})
            error = seen.get("error")
            if error:
                raise ToolError(str(error.get("message", error)) if isinstance(error, Mapping) else str(error))
            return _text_of(seen.get("result")) + (f"\n({OVER})" if self.done else "")

        parameters = ToolParams.model_validate(inlined(tool.input_schema))
        for field, part in parameters.properties.items():
            part.description = part.description or field
        return ToolDef(execute, tool.name, tool.description, parameters)

    def _report(self, result: StepResult[dict[str, Any]]) -> None:
        end = end_of(result) or "not over"
        self._note({"return": self._total, "steps": self._steps, "end": end})


class Turns:
    """The model and the environment, in turn.

    Args:
        episode: The episode.
        state: Inspect's, with the conversation.
        generate: Inspect's: the model's next answer.
        most: Of the model's answers.
    """

    def __init__(self, episode: InspectEpisode, state: TaskState, generate: Generate, most: int):
        self._episode = episode
        self._state = state
        self._generate = generate
        self._most = most

    async def by_text(self, wording: Wording) -> None:
        """Each answer is an action."""
        self._begin(wording.shown(self._episode.first))
        for _ in range(self._most):
            if self._episode.done:
                return
            self._state = await self._generate(self._state)
            try:
                seen = wording.shown(await self._episode.step(wording.read(self._state.output.completion)))
            except InvalidAction as error:
                seen = f"That is no action: {error}"
            self._state.messages.append(ChatMessageUser(content=seen))

    async def by_tools(self, tools: Sequence[Tool]) -> None:
        """Each tool call is a step; an answer without one ends the episode."""
        self._begin(Wording.shown(self._episode.first))
        self._state.tools = [self._episode.tool(each).as_tool() for each in tools]
        for _ in range(self._most):
            if self._episode.done:
                return
            self._state = await self._generate(self._state, tool_calls="none")
            if not self._state.output.message.tool_calls:
                return
            found = await execute_tools(self._state.messages, self._state.tools)
            self._state.messages.extend(found.messages)

    def _begin(self, text: str) -> None:
        """The first observation, in place of the sample's own words."""
        message = self._state.user_prompt
        message.content = text if text not in {"", "{}"} else "Begin."


def _text_of(result: Any) -> str:
    """The result of a tool, for the model."""
    value = result.get("data") if isinstance(result, Mapping) and "data" in result else result
    if value is None and isinstance(result, Mapping):
        blocks = result.get("content") or ()
        return "\n".join(str(block.get("text", block)) for block in blocks if isinstance(block, Mapping))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
