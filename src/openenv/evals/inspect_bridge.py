"""Served environments as tasks of Inspect AI (extra `inspect`): its models act in them, and returns are scores.

Needs Inspect AI when it is imported, and raises `MissingExtra` without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..errors import MissingExtra, UsageError

try:
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
except ModuleNotFoundError as missing:
    raise MissingExtra("inspect-ai", "inspect") from missing

from .cases import Case, cases_of_seeds, cases_of_tasks, derived_seeds, parse_seeds
from .inspect_game import Game, Turns
from .served import Served
from .wording import Wording

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
        seed: What seeds, and the choice among tasks, are derived from.
        max_turns: After so many answers of the model an episode is over.
        instructions: What the model is told first; None: how it is to answer.
        client: Further arguments of `GenericEnvClient`: `api_key`, `message_timeout_s`, `record`.

    Raises:
        ConnectionFailed: The server cannot be reached.
        UsageError: It has no such split, or does not say what actions are.
    """
    served = Served(base_url, client.get("api_key"))
    name = served.environment() or "environment"
    return Task(
        dataset=MemoryDataset(
            [_sample(case, name) for case in _cases(served, split, seeds, episodes, seed)], name=name
        ),
        solver=play_environment(base_url, max_turns=max_turns, instructions=instructions, **client),
        scorer=episode_return(),
        name=f"openenv_{name}",
        metadata={"base_url": base_url, "split": split, "max_turns": max_turns},
    )


@solver
def play_environment(base_url: str, *, max_turns: int = 50, instructions: str | None = None, **client: Any) -> Solver:
    """A solver that has the model play one episode in a session of its own.

    The first observation takes the place of the sample's input. Where actions are tool calls, each of the model's is
    one step, and an answer without one ends the episode. Elsewhere each answer is one action: one that is none is
    told to the model, and costs it a turn. A failure of the environment or of the road to it is an error of the
    sample, and no score; have Inspect repeat such samples by `retry_on_error`.

    The sample's metadata `seed`, `split` and `index` are given to the reset.

    Args:
        base_url: Address of the server.
        max_turns: After so many answers of the model the episode is over.
        instructions: What the model is told first; None: how it is to answer.
        client: Further arguments of `GenericEnvClient`.
    """
    served = Served(base_url, client.get("api_key"))
    tools = served.tools()
    wording = Wording(served.action_schema()) if tools is None else None
    told = instructions if instructions is not None or wording is None else wording.instructions

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        wanted: dict[str, Any] = {name: state.metadata[name] for name in _RESET if name in state.metadata}
        async with Game(base_url, wanted, partial(state.store.set, _STORED), client) as game:
            if told:
                state.messages.insert(0, ChatMessageSystem(content=told))
            turns = Turns(game, state, generate, max_turns)
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
    served: Served, split: str | None, seeds: str | Sequence[int] | None, episodes: int | None, seed: int
) -> list[Case]:
    if split is not None:
        if seeds is not None:
            raise UsageError("give seeds, or a split whose tasks have seeds of their own")
        return cases_of_tasks(served.num_tasks(split), split, seed, episodes)
    if seeds is None:
        return [Case(each) for each in derived_seeds(seed, episodes or EPISODES)]
    given = parse_seeds(seeds) if isinstance(seeds, str) else list(seeds)
    return cases_of_seeds(given, episodes)


def _sample(case: Case, name: str) -> Sample:
    label = f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}"
    return Sample(input=f"{name}, {case}", id=label, metadata=case.arguments())
