"""Checks of scores: the solution reaches the maximum, grading repeats, and what is shown has no answer."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from ..errors import OpenEnvError
from ..recording.difference import close
from ..runtime.profile import class_of
from .check import Check, CheckFailure, CheckSkip, CheckWarning
from .harness import ConformanceHarness
from .scoring import (
    ABOVE,
    BELOW,
    FIRST_PROOF,
    FIRST_TASK,
    MOST_SOLUTION_STEPS,
    Action,
    EpisodeScorer,
    ScoredEpisode,
    ScoredSession,
)

# Repeats of one episode: a grader that errs once in ten times is found with a chance of 98 %.
REPEATS = 40
# Tasks with different answers, from which on a value that always equals the answer is no coincidence.
LEAST_TASKS, LEAST_ANSWERS = 5, 3
# A word of this kind before a value announces an answer; a value in a request has other words before it.
ANNOUNCED = r"(?:answer|solution|secret|target|expected|correct|truth|label|hidden|reference)\w*\W{0,8}(?:is\W{1,3})?"

Path = tuple[str | int, ...]


@Check.of(
    "semantic.range",
    "Does the environment declare the returns of its episodes: floor and maximum (`return_range`)?",
    "runtime.step",
)
async def semantic_range(harness: ConformanceHarness) -> str:
    async with EpisodeScorer.of(harness).session() as session:
        episodes = [await session.play(seed, [], repeat=False) for seed in range(FIRST_TASK, FIRST_TASK + 3)]
    return f"returns are from {min(e.floor for e in episodes):g} to {max(e.maximum for e in episodes):g}"


@Check.of(
    "semantic.oracle", "Does the declared solution (`oracle`) reach the maximum in each task?", "semantic.range"
)
async def semantic_oracle(harness: ConformanceHarness) -> str:
    episodes = await EpisodeScorer.of(harness).solutions()
    for episode in episodes:
        last = episode.calls[-1]
        how = f"with seed={episode.seed}, the solution of {len(episode.actions)} steps gets {episode.total:g}"
        if last.error is not None:
            raise CheckFailure(
                f"{how}, and {last.call:.200} raised {last.error.message:.200}.",
                "correct oracle(), or the step that refuses a right action",
            )
        if abs(episode.share - 1) > BELOW:
            wrong = "below" if episode.share < 1 else "above"
            raise CheckFailure(
                f"{how}, {wrong} the declared maximum {episode.maximum:g}.",
                "correct the grader if it refuses a right answer, oracle() if its answer is wrong, or the maximum in "
                "return_range()",
            )
    counts = [len(each.actions) for each in episodes]
    return f"it reaches the maximum in {len(episodes)} tasks, with {min(counts)} to {max(counts)} steps"


@Check.of(
    "semantic.repeatable",
    "Is grading repeatable: do the same actions get the same rewards each time?",
    "semantic.oracle",
    "runtime.seed",
)
async def semantic_repeatable(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    if not (await harness.facts()).seedable:
        raise CheckSkip("without seeds, no episode can be repeated")
    solutions = await scorer.solutions()
    # Right answers, and the wrong ones of another task.
    plans = [(each, each.actions) for each in solutions[:2]]
    plans += [(solutions[0], solutions[-1].actions), (solutions[0], (await harness.actions())[:3])]
    until, played = time.monotonic() + 2 * scorer.budget_s, 0
    first: dict[int, list[Any]] = {}

    async def check_repeat(session: ScoredSession, number: int) -> None:
        nonlocal played
        episode, actions = plans[number]
        again = await session.play(episode.seed, actions, False, most=MOST_SOLUTION_STEPS, limit_s=limit_s)
        played += 1
        rewards = [call.reward for call in again.calls]
        before = first.setdefault(number, rewards)
        if not all(map(close, before, rewards)):
            raise CheckFailure(
                f"the same {len(actions)} actions with seed={episode.seed} got rewards {before[-5:]} once, "
                f"and {rewards[-5:]} in another one of {played} repeats.",
                "compute the reward from the episode alone: no clock, no random numbers beside self.rng, no "
                "order of a set, no data of earlier episodes",
            )

    limit_s = scorer.budget_s
    block = [*range(len(plans))] * 5 * await scorer.session_count()
    while played < REPEATS * len(plans) and (played < 2 * len(plans) or time.monotonic() < until):
        await scorer.each(block, check_repeat, until, least=2 * len(plans))  # each time in new sessions
    return f"{len(plans)} lists of actions got the same rewards in {played // len(plans)} repeats each"


@Check.of(
    "semantic.once",
    "Is a solution paid once: does it get nothing more for its actions again, in the episode or after its end?",
    "semantic.oracle",
)
async def semantic_once(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    solutions = await scorer.solutions()
    limit_s = scorer.budget_s
    plans: list[tuple[ScoredEpisode, str, list[Action]]] = []
    for solution in solutions[:3]:
        actions = solution.actions
        plans += [
            (solution, "each action twice", [each for action in actions for each in (action, action)]),
            (solution, "all actions twice", [*actions, *actions]),
            (solution, "the last action six times", [*actions, *[actions[-1]] * 5]),
        ]

    async def check_plan(session: ScoredSession, plan: tuple[ScoredEpisode, str, list[Action]]) -> None:
        solution, name, steps = plan
        episode = await session.play(
            solution.seed, steps, False, most=MOST_SOLUTION_STEPS, limit_s=limit_s, after_end=3
        )
        if episode.share > 1 + ABOVE:
            raise CheckFailure(
                f"with seed={solution.seed}, a solution with {name} gets {episode.total:g}, more than the "
                f"maximum {episode.maximum:g}.",
                "pay each part of a solution once: keep in the state what has been paid, and end the episode "
                "with its last part",
            )

    await scorer.each(plans, check_plan)
    return "three kinds of repeats get no more than the maximum"


@Check.of(
    "semantic.leak",
    "Do observations hide the answer, until the episode is over?",
    "semantic.oracle",
)
async def semantic_leak(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    solutions = await scorer.solutions()
    answers = answers_of(solutions)
    if not answers:
        raise CheckSkip(f"no field of the solutions has different values in {LEAST_TASKS} tasks")

    async def observations(session: ScoredSession, number: int) -> list[Any]:
        wrong = solutions[number - 1].actions
        episode = await session.play(solutions[number].seed, wrong, False, most=3)
        return [call.observation for call in takewhile(lambda call: not call.done, episode.calls)]

    shown = await scorer.each(range(len(solutions)), observations)
    for step in range(min(map(len, shown))):
        when = "the reset" if step == 0 else f"{step} wrong steps"
        _check_shown([each[step] for each in shown], answers, f"the observation after {when}", CheckFailure)
    return f"observations of {len(solutions)} tasks have none of their answers"


@Check.of("semantic.state", "If the state has the answer, does the page at /web hide it?", "semantic.oracle")
async def semantic_state(harness: ConformanceHarness) -> str:
    if not getattr(class_of(harness.server.env_factory), "SHOW_STATE", True):
        return "the page does not show the state (SHOW_STATE is False)"
    scorer = EpisodeScorer.of(harness)
    solutions = await scorer.solutions()
    answers = answers_of(solutions)
    states = []
    async with scorer.session() as session:
        for solution in solutions:
            await session.play(solution.seed, [], repeat=False)
            try:
                states.append(await session.state())
            except OpenEnvError:
                raise CheckSkip("the state cannot be read (see runtime.state)") from None
    _check_shown(states, answers, "the state", CheckWarning)
    return f"the states of {len(solutions)} tasks have none of their answers"


def _check_shown(values: list[Any], answers: dict[str, list[str]], where: str, kind: type[Exception]) -> None:
    """Raises `kind` if a place in each of some values has the answer of its task."""
    places = [dict(_texts(value)) for value in values]
    common = [path for path in places[0] if all(path in each for each in places)]
    for field, right in answers.items():
        for path in common:
            texts = [each[path] for each in places]
            if all(map(_holds, texts, right)):
                if kind is CheckWarning:
                    fix = "set SHOW_STATE = False on the class, or keep the answer in a private attribute"
                else:
                    fix = "remove it from the observation, its metadata and its messages until the episode is over"
                raise kind(
                    f"in {len(values)} tasks, {where} has the answer ({field}) in {_written(path)}: {texts[0]!r:.120}"
                    f" where the answer is {right[0]!r:.60}.",
                    fix,
                )


def _holds(text: str, answer: str) -> bool:
    """Whether a text is the answer (also in a simple code), or announces it."""
    plain = text.strip().strip("\"'").casefold()
    wanted = answer.casefold()
    coded = {
        base64.b64encode(answer.encode()).decode().casefold(),
        answer.encode().hex(),
        wanted[::-1] if len(set(wanted)) > 1 else wanted,
    }
    return plain == wanted or plain in coded or bool(re.search(ANNOUNCED + re.escape(wanted) + r"(?!\w)", plain))


def answers_of(solutions: Sequence[ScoredEpisode]) -> dict[str, list[str]]:
    """The values of solutions that differ between tasks, as texts: for each field, the value of each task.

    Empty for too few tasks. Solutions of several steps also have `all steps`: their values in one list.
    """
    if len(solutions) < LEAST_TASKS:
        return {}
    found: dict[str, list[str]] = {}
    steps = min(len(each.actions) for each in solutions)
    for step in range(steps):
        fields = [dict(leaves(each.actions[step])) for each in solutions]
        for path in fields[0]:
            if all(path in each for each in fields):
                name = f"step {step + 1}: {_written(path)}" if steps > 1 else _written(path)
                found[name] = [_text(each[path]) for each in fields]
    if steps > 1:
        found["all steps"] = [_text([value for _, value in _ordered(each)]) for each in solutions]
    return {name: texts for name, texts in found.items() if len(set(texts)) >= LEAST_ANSWERS}


def _ordered(episode: ScoredEpisode) -> list[tuple[Path, Any]]:
    return [leaf for action in episode.actions for leaf in leaves(action)]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The parts of a value that are not objects or lists, without an action's `metadata` and `type`."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if path or name not in {"metadata", "type"}:
                yield from leaves(part, (*path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    elif value is not None:
        yield path, value


def _texts(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The places of a value, with their contents as texts; lists also as a whole."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in {"episode_id", "reward", "done", "seed"}:
                yield from _texts(part, (*path, name))
        return
    if isinstance(value, list):
        yield path, _text(value)
        for index, part in enumerate(value[:50]):
            yield from _texts(part, (*path, index))
    elif value is not None:
        yield path, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _written(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def replaced(action: Action, path: Path, value: Any) -> Action:
    """A copy of an action with another value at a path; the action itself if it has no such path."""

    def inner(part: Any, rest: Path) -> Any:
        if not rest:
            return value
        if isinstance(part, dict) and rest[0] in part:
            return {**part, rest[0]: inner(part[rest[0]], rest[1:])}
        if isinstance(part, list) and isinstance(rest[0], int) and rest[0] < len(part):
            return [*part[: rest[0]], inner(part[rest[0]], rest[1:]), *part[rest[0] + 1 :]]
        return part

    changed: Action = inner(action, path)
    return changed


async def matters(scorer: EpisodeScorer, solutions: Sequence[ScoredEpisode], path: Path) -> bool:
    """Whether the values at a path of solutions decide about the reward: others, of other tasks, get little."""
    shares = []
    async with scorer.session() as session:
        for number, solution in enumerate(solutions[:4]):
            others = dict(_ordered(solutions[number - 1]))
            mine = dict(_ordered(solution))
            if path not in others or path not in mine or others[path] == mine[path]:
                continue
            actions = [replaced(action, path, others[path]) for action in solution.actions]
            shares.append((await session.play(solution.seed, actions, False, most=MOST_SOLUTION_STEPS)).share)
    return bool(shares) and max(shares) < 1 / 2


__all__ = ["CHECKS", "FIRST_PROOF", "answers_of", "leaves", "matters", "replaced"]

CHECKS = Check.all_in(globals())
