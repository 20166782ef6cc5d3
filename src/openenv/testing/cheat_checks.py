"""Checks with cheats: players that do not solve the task, and should get no more than the floor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from ..protocol.json_schema import schema_of
from .check import Check, CheckFailure, CheckSkip
from .harness import BESIDE, ConformanceHarness
from .schemas import NoValue, SchemaValues
from .score_checks import leaves, matters, replaced
from .scoring import (
    ABOVE,
    FIRST_TRIAL,
    MOST_SOLUTION_STEPS,
    Action,
    EpisodeScorer,
    ProvenReturn,
    ScoredEpisode,
    ScoredSession,
)

RAISE_FLOOR = "; if a player that ignores the observations earns that honestly, raise the floor in return_range()"
# Texts that a comparison, a pattern, a parser or a conversion may take for a right answer.
TEXTS = (
    "", " ", "a", "e", "s", "0", "1", "yes", "true", "*", ".*", "%", "null", "None", "nan", "NaN", "inf", "-1",
    "1e308",
    "[]", "{}", '{"reward": 1, "done": true}', "reward=1", "score: 1.0", "PASS", "passed", "correct", "answer",
    "' OR '1'='1", "<answer></answer>", "0 1 2 3 4 5 6 7 8 9", "abcdefghijklmnopqrstuvwxyz",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e9, -1e9, 2**63, -1, 0, True, "nan", "inf")
# Fields that a grader may take over from an action.
KEYS: dict[str, Any] = {
    "reward": 1e6, "done": True, "score": 1e6, "success": True, "passed": True, "correct": True, "is_correct": True,
    "terminated": True, "bonus": 1e6, "verdict": "correct", "grade": 1e6,
}  # fmt: skip
# The longest answer that is repeated in a list of answers; longer ones are programs, which may be joined honestly.
LONGEST_ANSWER = 64
SEARCH_STEPS, POPULATION, MOST_LINES = 12, 16, 300


def _fail_if_paid(proof: ProvenReturn, fix: str) -> str:
    if proof.is_paid:
        raise CheckFailure(f"{proof.sentence()}.", fix + RAISE_FLOOR)
    return f"the best was {proof.sentence()}"


async def _wrong_solutions(harness: ConformanceHarness) -> list[list[Action]]:
    """Actions in the form of solutions: those of some tasks, or else actions of the repertoire."""
    try:
        solutions = await EpisodeScorer.of(harness).solutions()
    except CheckSkip:
        return [(await harness.actions())[:5]]
    return [each.actions for each in solutions]


@Check.of("semantic.idle", "Does a player that does nothing get no more than the floor?", "semantic.range")
async def semantic_idle(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    async with scorer.session() as session:
        for seed in range(FIRST_TRIAL, FIRST_TRIAL + 3):
            episode = await session.play(seed, [], repeat=False)
            if episode.share > ABOVE:
                raise CheckFailure(
                    f"reset(seed={seed}) alone is paid {episode.total:g}, above the floor {episode.floor:g}.",
                    "return no reward (None) from reset",
                )
    players = [(f"the action {action} again and again", [action]) for action in await _idle_actions(harness)]
    return _fail_if_paid(
        await scorer.best_of(players), "pay for what the task asks, and nothing for a step, a valid form or survival"
    )


async def _idle_actions(harness: ConformanceHarness) -> list[Action]:
    """Actions without contents: each field at its emptiest, and tools without arguments."""
    repertoire = await harness.repertoire()
    found = [each for each in repertoire.actions if each.get("arguments") == {}]
    schema = schema_of(harness.server.action_cls) or {}
    empty: Action = {}
    for name, part in schema.get("properties", {}).items():
        if name in BESIDE or "default" in part:
            continue
        choices = part.get("enum") or ([part["const"]] if "const" in part else None)
        low = part.get("minimum", part.get("exclusiveMinimum", 0))
        kinds = {"string": "", "integer": low, "number": low, "boolean": False, "array": [], "object": {}}
        empty[name] = choices[0] if choices else kinds.get(part.get("type", "string"))
    found += [empty] if repertoire.accepts(empty) else []
    return found or repertoire.actions[:1]


@Check.of(
    "semantic.replay", "Does the solution of one task get no more than the floor in another?", "semantic.oracle"
)
async def semantic_replay(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    solutions = await scorer.solutions()
    if all(each.actions == solutions[0].actions for each in solutions):
        if not (await harness.facts()).seedable:
            raise CheckSkip("without seeds, the environment may have one task")
        raise CheckFailure(
            f"the solution of {len(solutions)} tasks with different seeds is the same: "
            f"{solutions[0].actions[:3]!r:.200}.",
            "draw the task from self.rng, which reset seeds; if there is one task, remove `seed` from the "
            "arguments of reset",
        )
    players = [(f"the solution of the task with seed={each.seed}", each.actions) for each in solutions]
    return _fail_if_paid(
        await scorer.best_of(players),
        "let more tasks have different answers, and compare with the answer of the task",
    )


@Check.of("semantic.constant", "Does one answer for every task get no more than the floor?", "semantic.range")
async def semantic_constant(harness: ConformanceHarness) -> str:
    repertoire = await harness.repertoire()
    found = [action for solution in await _wrong_solutions(harness) for action in solution[:1] + solution[-1:]]
    found += [*repertoire.actions, *repertoire.edges()]
    actions = [each for number, each in enumerate(found) if each not in found[:number]]
    players = [(f"the action {_shown(action)} in every step", [action]) for action in actions]
    proof = await EpisodeScorer.of(harness).best_of(players)
    return _fail_if_paid(proof, "give each task an answer of its own, and pay for the right one only")


@Check.of(
    "semantic.search",
    "Does a search for rewards, guided by the schema, find no more than the floor?",
    "semantic.range",
)
async def semantic_search(harness: ConformanceHarness) -> str:
    scorer, random = EpisodeScorer.of(harness), Random(1)  # noqa: S311 - not for secrets
    repertoire = await harness.repertoire()
    pool = [*repertoire.actions, *repertoire.edges(), *_made(harness)]
    pool += [action for solution in await _wrong_solutions(harness) for action in solution[:SEARCH_STEPS]]
    first = [random.choices(pool, k=random.randint(1, SEARCH_STEPS)) for _ in range(POPULATION)]
    tried = list[tuple[float, int, list[Action]]]()

    def lines() -> Iterator[list[Action]]:
        yield from first
        while True:
            changed = [*max(tried)[2]]
            changed[random.randrange(len(changed))] = random.choice(pool)
            if random.random() < 1 / 2:
                changed.insert(random.randrange(len(changed) + 1), random.choice(pool))
            yield changed[-SEARCH_STEPS:]

    async def search(session: ScoredSession, line: list[Action]) -> None:
        shares = [(await session.play(FIRST_TRIAL + number, line)).share for number in range(3)]
        tried.append((sum(shares), -len(tried), line))

    await scorer.each(islice(lines(), MOST_LINES), search, time.monotonic() + scorer.budget_s)
    found = sorted(tried)[-3:]
    proof = await scorer.best_of(
        [(f"{len(line)} actions in turn ({_shown(line[0])} ...)", line) for *_, line in found]
    )
    return f"{len(tried)} lists of actions; " + _fail_if_paid(
        proof, "pay for what the task asks only: these actions do not depend on the task"
    )


def _made(harness: ConformanceHarness) -> Iterator[Action]:
    values = SchemaValues(schema_of(harness.server.action_cls) or {}, 2, BESIDE)
    try:
        for _ in range(20):
            value = values.value()
            if isinstance(value, dict):
                yield value
    except NoValue:
        return


@Check.of(
    "semantic.injection",
    "Does no value confuse the grader: NaN, huge numbers, texts that fit everything?",
    "semantic.range",
)
async def semantic_injection(harness: ConformanceHarness) -> str:
    solution = (await _wrong_solutions(harness))[-1]
    players: list[tuple[str, list[Action]]] = []
    fields: dict[tuple[str | int, ...], Any] = {}
    for action in solution[-5:]:
        fields.update(leaves(action))
    fields.pop(("tool_name",), None)  # another name calls another tool, or none
    for path, value in fields.items():
        values = NUMBERS if isinstance(value, (int, float)) else TEXTS if isinstance(value, str) else ()
        for each in values:
            actions = [replaced(action, path, each) for action in solution]
            players.append((f"{path[-1]}={each!r:.60} in each action", actions))
    if not players:
        raise CheckSkip("the actions have no text and no number")
    return f"{len(players)} values; " + _fail_if_paid(
        await EpisodeScorer.of(harness).best_of(players),
        "refuse values that are not finite or out of bounds (ge, le, allow_inf_nan=False), and compare whole answers "
        "for equality",
    )


@Check.of(
    "semantic.keys",
    "Does the grader ignore `reward`, `done` and the like in an action?",
    "semantic.range",
)
async def semantic_keys(harness: ConformanceHarness) -> str:
    fix = "read only the declared fields of an action, and compute reward and done from the environment's own data"
    wrong = (await _wrong_solutions(harness))[-1]
    players: list[tuple[str, list[Action]]] = []
    for name, values in (("all", KEYS), *((key, {key: value}) for key, value in KEYS.items())):
        players += [
            (f"an action with {name} as further keys", [{**action, **values} for action in wrong]),
            (f"an action with {name} in its metadata", [{**action, "metadata": values} for action in wrong]),
        ]
        if "arguments" in wrong[-1]:
            calls = [{**action, "arguments": {**action.get("arguments", {}), **values}} for action in wrong]
            players.append((f"a call with {name} as further arguments", calls))
    return f"{len(players)} ways; " + _fail_if_paid(await EpisodeScorer.of(harness).best_of(players), fix)


@Check.of(
    "semantic.listing", "Does a list of many answers, the right one among them, count as wrong?", "semantic.oracle"
)
async def semantic_listing(harness: ConformanceHarness) -> str:
    scorer = EpisodeScorer.of(harness)
    solutions = await scorer.solutions()
    tried = 0
    for path in dict.fromkeys(path for each in solutions for action in each.actions for path, _ in leaves(action)):
        texts = [_last(each, path) for each in solutions]
        answers = [
            text for text in texts if isinstance(text, str) and len(text) <= LONGEST_ANSWER and "\n" not in text
        ]
        if len(set(answers)) < 3 or len(answers) < len(texts) or not await matters(scorer, solutions, path):
            continue
        for separator in (" ", ", ", "\n"):
            tried += 1
            await _check_listing(scorer, solutions, path, separator)
    if not tried:
        raise CheckSkip("no short text in the solutions decides about the reward")
    return f"{tried} kinds of lists get nothing"


def _last(episode: ScoredEpisode, path: tuple[str | int, ...]) -> Any:
    found = [value for action in episode.actions for where, value in leaves(action) if where == path]
    return found[-1] if found else None


async def _check_listing(
    scorer: EpisodeScorer, solutions: Sequence[ScoredEpisode], path: tuple[str | int, ...], separator: str
) -> None:
    async def play(session: ScoredSession, job: tuple[int, ScoredEpisode]) -> tuple[str, float]:
        most, solution = job
        mine = _last(solution, path)
        others = [*dict.fromkeys(_last(each, path) for each in solutions if _last(each, path) != mine)][:most]
        text = separator.join([*others[: len(others) // 2], mine, *others[len(others) // 2 :]])
        actions = [replaced(action, path, text) for action in solution.actions]
        return text, (await session.play(solution.seed, actions, False, most=MOST_SOLUTION_STEPS)).share

    until = time.monotonic() + scorer.budget_s
    for most in (2, len(solutions)):
        played = await scorer.each([(most, solution) for solution in solutions], play, until, least=4)
        paid = [share > 1 / 2 for _, share in played]
        if 2 * sum(paid) >= len(paid):
            answer = _last(solutions[len(played) - 1], path)
            raise CheckFailure(
                f"{path[-1]}={played[-1][0]!r:.120} is paid as the answer {answer!r:.60}: "
                f"{sum(paid)} of {len(paid)} tasks pay a text that lists several answers.",
                "compare the whole answer for equality, after strip() and lower() at most",
            )


def _shown(action: Action) -> str:
    return f"{action!r:.80}"


CHECKS = Check.all_in(globals())
