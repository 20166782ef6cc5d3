"""Checks that episodes repeat with the same seed, and that sessions do not affect each other."""

from __future__ import annotations

from typing import Any

from ..errors import OpenEnvError
from ..recording.difference import SchemaNodes, close, first_difference
from .check import Check, CheckFailure, CheckSkip
from .harness import CallOutcome, ConformanceHarness

SEED = 7
STEPS = 8
# Different seeds and actions for the sessions that must not be seen in another one.
OTHER_SEED = 8
NOTHING_TO_COMPARE = "without seeds and without step_count, there is nothing by which episodes could be compared"


@Check.of(
    "runtime.seed",
    "Does the same seed give the same episode, or does the environment declare that it takes none?",
    "runtime.step",
)
async def runtime_seed(harness: ConformanceHarness) -> str:
    if not (await harness.facts()).seedable:
        return "the environment declares that it takes no seed"
    actions = await harness.actions()
    first = await _alone(harness, actions, harness.call_s / 4)
    second = await _alone(harness, actions[: len(first) - 1])  # as many steps, however fast it is now
    found = episode_difference(harness, first, second)
    if found is not None:
        raise CheckFailure(
            f"two sessions were reset with seed={SEED} and given the same actions, and differ: {found}.",
            "draw every random number from self.rng (or from a generator made of the seed in reset); mark a field "
            "that is a clock or a name with Field(json_schema_extra={'seeded': False}); or leave `seed` out of "
            "reset's arguments, which declares that there is none",
        )
    return f"the same seed gives the same episode of {len(first) - 1} steps in two sessions"


@Check.of(
    "runtime.episodes",
    "Does reset leave nothing behind: is an episode the same when it is played again in its session?",
    "runtime.seed",
)
async def runtime_episodes(harness: ConformanceHarness) -> str:
    actions = (await harness.actions())[:STEPS]
    seedable = (await harness.facts()).seedable
    await reference_of(harness)
    async with harness.session() as player:
        first = await player.play(actions, SEED)
        again = []
        for steps in range(1, 4):  # what one action does, another may undo
            await player.play(actions[:steps], OTHER_SEED)
            again.append(await player.play(actions, SEED))
        await player.play([], SEED)
        count = (await _state(player)).get("step_count")
    if count not in (0, None):
        raise CheckFailure(f"step_count is {count} after a reset.", "set step_count to 0 in reset")
    if not seedable and count is None:
        raise CheckSkip(NOTHING_TO_COMPARE)
    if not seedable:
        return "step_count begins anew (without seeds, episodes cannot be compared)"
    differing = [found for each in again if (found := episode_difference(harness, first, each)) is not None]
    if differing:
        found = differing[0]
        raise CheckFailure(
            f"an episode was repeated in its session, with the same seed and actions, and differs: {found}.",
            "set everything anew in reset that step changes",
        )
    return f"an episode of {len(first) - 1} steps is the same when it is played again after another one"


@Check.of("runtime.isolation", "Do two sessions that are played in turns not see each other?", "runtime.seed")
async def runtime_isolation(harness: ConformanceHarness) -> str:
    if harness.server.max_sessions < 2:
        raise CheckSkip("the environment has one session at a time (SUPPORTS_CONCURRENT_SESSIONS, max_sessions)")
    actions = (await harness.actions())[:STEPS]
    turned = actions[1:] + actions[:1]
    reference = await reference_of(harness)
    async with harness.session() as mine, harness.session() as other:
        seen = [await outcome_of_call(mine.reset(SEED), "reset")]
        await outcome_of_call(other.reset(OTHER_SEED), "reset")
        for action, another in zip(actions, turned, strict=True):
            await outcome_of_call(other.step(another), "step")
            seen.append(await outcome_of_call(mine.step(action), f"step {len(seen)}"))
            if seen[-1].done:
                break
        count = (await _state(mine)).get("step_count")
        await other.client.disconnect()
        state = await _state(mine)
    answered = len(seen) - 1
    seedable = (await harness.facts()).seedable
    if not seedable and count is None:
        raise CheckSkip(NOTHING_TO_COMPARE)
    if seedable:
        found = episode_difference(harness, reference, seen)
        if found is not None:
            raise CheckFailure(
                f"a session was played with another one beside it, and differs from itself alone: {found}.",
                "keep what belongs to an episode on the instance (self), not on the class, the module, in a file or "
                "in the random module",
            )
    if isinstance(count, int) and count > answered:
        raise CheckFailure(
            f"{answered} steps were taken in a session, and its step_count is {count}: those of another count too.",
            "keep the state on the instance (self), not on the class or the module",
        )
    if state.get("step_count") != count:
        raise CheckFailure(
            f"another session was closed, and step_count of this one went from {count} to {state.get('step_count')}.",
            "have close() touch nothing but the instance",
        )
    if not seedable:
        return f"step_count is {count} beside another session (without seeds, episodes cannot be compared)"
    return f"a session of {answered} steps is the same alone and beside another one"


async def reference_of(harness: ConformanceHarness) -> list[CallOutcome]:
    """An episode in a session alone, to compare others with.

    Raises:
        CheckSkip: It is another one each time, though its seed is the same.
    """
    actions = (await harness.actions())[:STEPS]
    first, second = await _alone(harness, actions), await _alone(harness, actions)
    if (await harness.facts()).seedable and episode_difference(harness, first, second) is not None:
        raise CheckSkip("the same seed does not give the same episode (see runtime.seed), so none can be compared")
    return first


async def reading_changes_nothing(harness: ConformanceHarness, actions: list[dict[str, Any]]) -> None:
    """Compares episodes in which the state is read, and is not; what follows no seed cannot be compared.

    Raises:
        CheckFailure: They differ.
    """
    episodes: list[list[CallOutcome]] = []
    for reads in (0, 0, 2):
        async with harness.session() as player:
            seen = []
            for number in range(len(actions) + 1):
                call = player.step(actions[number - 1]) if number else player.reset(SEED)
                seen.append(await outcome_of_call(call, f"step {number}" if number else "reset"))
                if seen[-1].done:
                    break
                for _ in range(reads):
                    await player.state()
            episodes.append(seen)
    alone, again, read = episodes
    found = episode_difference(harness, alone, read)
    if found is not None and episode_difference(harness, alone, again) is None:
        raise CheckFailure(
            f"an episode in which the state is read after each call differs from one in which it is not: {found}.",
            "have the property `state` return what is there, and change nothing: it is asked for at any time",
        )


async def _state(player: Any) -> dict[str, Any]:
    try:
        state: dict[str, Any] = await player.state()
    except OpenEnvError:
        return {}
    return state


async def _alone(
    harness: ConformanceHarness, actions: list[dict[str, Any]], limit_s: float | None = None
) -> list[CallOutcome]:
    async with harness.session() as player:
        return await player.play(actions, SEED, limit_s)


async def outcome_of_call(call: Any, name: str) -> CallOutcome:
    """What came of a call, an error as well."""
    try:
        seen: CallOutcome = await call
    except OpenEnvError as error:
        return CallOutcome(name, name == "reset", error=error)
    return seen


def episode_difference(harness: ConformanceHarness, one: list[CallOutcome], other: list[CallOutcome]) -> str | None:
    """Where two episodes differ first, in words; None if they are the same, but for fields that follow no seed."""
    for first, second in zip(one, other, strict=False):
        if (first.error is None) != (second.error is None):
            return f"{first.call} gave {_answer(first)} the one time and {_answer(second)} the other"
        schema = harness.schemas["reset_observation" if first.reset else "observation"]
        found = first_difference(first.observation, second.observation, SchemaNodes(schema))
        if found is not None:
            return f"{first.call}: {found.sentence('the one time', 'the other')}"
        if first.done != second.done or not close(first.reward, second.reward):
            return (
                f"{first.call}: reward {first.reward!r} and done={first.done} the one time, "
                f"{second.reward!r} and done={second.done} the other"
            )
    if len(one) != len(other):
        return f"one ended after {len(one) - 1} steps, and the other after {len(other) - 1}"
    return None


def _answer(seen: CallOutcome) -> str:
    return "an answer" if seen.error is None else f"{type(seen.error).__name__}: {seen.error.message[:120]}"
