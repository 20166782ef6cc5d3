"""Checks of the contract of reset, step, state and close: episodes repeat with the same seed, and are isolated."""

from __future__ import annotations

import json
from typing import Any

from ..errors import OpenEnvError, StepTimeout, UsageError
from ..recording.difference import SchemaNodes, close, first_difference
from ..runtime.manager import opened_session
from .check import Check, CheckFailure, CheckSkip, CheckWarning
from .harness import CallOutcome, ConformanceHarness, EpisodePlayer
from .leak_checks import CYCLES, find_leaks
from .schemas import first_fault

# Maximum of steps to reach the end of an episode.
MANY_STEPS = 200
SEED = 7
STEPS = 8
# Different seeds and actions, for sessions that must not affect each other.
OTHER_SEED = 8
NOTHING_TO_COMPARE = "without seeds and step_count, episodes cannot be compared"


@Check.of("runtime.session", "Does a session open?")
async def runtime_session(harness: ConformanceHarness) -> str:
    try:
        facts = await harness.facts()
    except (OpenEnvError, TimeoutError) as error:
        late = f"no answer within {harness.call_s:g} s (--timeout)"
        raise CheckFailure(
            f"no session could be opened: {describe_error(error) if isinstance(error, OpenEnvError) else late}.",
            "fix the constructor, or the factory of create_app: it must create an environment without arguments",
        ) from None
    return f"{facts.name} is created, and runs as {facts.execution.value}"


@Check.of("runtime.reset", "Does reset work: without arguments, with a seed, again?", "runtime.session")
async def runtime_reset(harness: ConformanceHarness) -> str:
    unsent = ""
    async with harness.session() as player:
        for arguments in ({"episode_id": None}, {"seed": 1}, {"seed": 1}):
            seen = await player.reset(**arguments)
            if seen.failure is not None:
                raise CheckFailure(
                    f"reset raised: {describe_error(seen.failure)}.",
                    "make reset work without arguments, repeatedly in the same session, with and without a seed",
                )
            if seen.error is not None:
                unsent = "; its observation could not be sent (see runtime.schema)"
    return f"it works without arguments, with a seed, and again in the same session{unsent}"


@Check.of("runtime.step", "Does step take the actions that its schema allows?", "runtime.reset")
async def runtime_step(harness: ConformanceHarness) -> str:
    source = (await harness.repertoire()).source
    steps = [seen for seen in await harness.sample() if not seen.reset]
    fine = [seen for seen in steps if seen.failure is None]
    if not steps:
        raise CheckSkip("every episode was over after its reset, so no step was possible")
    if not fine:
        error = steps[0].error
        assert error is not None
        raise CheckFailure(
            f"{steps[0].call} raised: {describe_error(error)}; so did all {len(steps)} steps that were tried.",
            "fix step; or, if these actions are useless, offer better ones: examples in the action's schema, "
            "web_actions, or EnvironmentConformance.actions()",
        )
    refused = f"; {len(steps) - len(fine)} raised an error (see runtime.bad-action)" if len(fine) < len(steps) else ""
    return f"{len(fine)} steps, with actions of {source}{refused}"


@Check.of(
    "runtime.state",
    "Does the state match its schema, does step_count count, does every episode have an id?",
    "runtime.step",
)
async def runtime_state(harness: ConformanceHarness) -> str:
    actions = (await harness.actions())[:3]
    async with harness.session() as player:
        states, count = [], 0
        try:
            await _begin_episode(player)
            states.append(await player.client.state())
            for action in actions:
                seen = await player.step(action)
                count += seen.failure is None
                states.append(await player.client.state())
                if seen.done:
                    break
        except OpenEnvError as error:
            raise CheckFailure(
                f"state cannot be read: {describe_error(error)}.",
                "make the property `state` return a State at any time: it must not raise",
            ) from None
    if not states[0]:
        raise CheckWarning("the environment keeps no state.", "return a State with episode_id and step_count")
    for state in states:
        fault = first_fault(state, harness.server.schemas["state"], "state")
        if fault is not None:
            raise CheckFailure(
                f"{fault}.", "declare state_cls in create_app (or Environment[A, O, MyState]) to match the state"
            )
    counts = [state.get("step_count") for state in states]
    if counts[0] != 0 or counts[-1] != count:
        raise CheckFailure(
            f"after a reset and {count} steps, step_count went {' '.join(map(str, counts))}.",
            "set step_count to 0 in reset and add 1 in each step",
        )
    await reading_changes_nothing(harness, actions)
    return await _episode_ids(harness, f"step_count goes {' '.join(map(str, counts))}")


async def _episode_ids(harness: ConformanceHarness, saw: str) -> str:
    async with harness.session() as player:
        named = await _id_after(player, "named-by-a-client")
        first, second = await _id_after(player, None), await _id_after(player, None)
    if first is None or second is None:
        raise CheckWarning(
            f"{saw}, and episode_id is {first!r} after a reset.",
            "set episode_id of the state in reset, to the argument episode_id or to a new id (uuid4)",
        )
    if named != "named-by-a-client":
        raise CheckWarning(
            f"{saw}; reset(episode_id='named-by-a-client') gives the episode_id {named!r}.",
            "store the argument episode_id of reset in the state",
        )
    if first == second:
        raise CheckWarning(f"{saw}; two episodes have the same episode_id {first!r}.", "choose a new one in reset")
    return f"{saw}; every episode has its own episode_id"


async def _id_after(player: EpisodePlayer, name: str | None) -> Any:
    await _begin_episode(player, name)
    return (await player.client.state()).get("episode_id")


@Check.of(
    "runtime.after-done",
    "Is a step after the end refused, or answered with done again; does reset work afterwards?",
    "runtime.step",
)
async def runtime_after_done(harness: ConformanceHarness) -> str:
    actions = await harness.actions()
    async with harness.session() as player:
        seen = await player.play(actions * (MANY_STEPS // len(actions) + 1), 1, harness.call_s / 2)
        if not seen[-1].done:
            raise CheckSkip(f"no episode ended within {len(seen) - 1} steps, so no step after an end was possible")
        after = await player.step(actions[0])
        if after.error is None and not after.done:
            raise CheckFailure(
                f"the episode was over after {len(seen) - 1} steps, and another step gave done=False "
                f"(reward {after.reward!r}).",
                "raise openenv.errors.ResetRequired from a step after the end, or return done=True again",
            )
        again = await player.reset(2)
        if again.error is not None:
            raise CheckFailure(
                f"after a step after the end ({describe_outcome(after)}), "
                f"reset raises: {describe_error(again.error)}.",
                "do not change the environment in a step after the end",
            )
    return f"the episode ends after {len(seen) - 1} steps; one more: {describe_outcome(after)}; then reset works"


@Check.of(
    "runtime.bad-action",
    "Do invalid actions get typed errors, does step accept all valid ones, and does the session continue?",
    "runtime.step",
)
async def runtime_bad_action(harness: ConformanceHarness) -> str:
    repertoire = await harness.repertoire()
    wrong = repertoire.wrong()
    good = repertoire.actions
    async with harness.session() as player:
        await _begin_episode(player)
        for action in wrong:
            seen = await player.step(action)
            if seen.error is not None and not isinstance(seen.error, UsageError):
                raise CheckFailure(
                    f"the invalid action {shorten(action)} raised {describe_error(seen.error)}.",
                    "raise openenv.errors.InvalidAction for invalid actions, or declare the fields of the action",
                )
            try:
                await player.client.state()
                await _begin_episode(player)
            except OpenEnvError as error:
                raise CheckFailure(
                    f"after the invalid action {shorten(action)}, the session no longer works: "
                    f"{describe_error(error)}.",
                    "do not change the environment when an action is refused",
                ) from None
        tried = 0
        for action in [*good, *([] if repertoire.chosen else repertoire.edges())]:
            seen = await player.step(action)
            tried += 1
            if isinstance(seen.error, StepTimeout):
                await _begin_episode(player)
                continue
            if seen.failure is not None and not isinstance(seen.failure, UsageError):
                raise CheckFailure(
                    f"step raised {describe_error(seen.failure)} for {shorten(action)}, "
                    "which the action's schema allows.",
                    "answer with an observation, raise openenv.errors.InvalidAction, or narrow the field "
                    "(ge, le, Literal, pattern)",
                )
            if seen.done:
                await _begin_episode(player)
    return f"{len(wrong)} invalid actions were refused and {tried} valid ones answered; the session continues"


@Check.of("runtime.close", "Does close free everything: threads, processes, files, sockets, tasks?", "runtime.step")
async def runtime_close(harness: ConformanceHarness) -> str:
    actions = (await harness.actions())[:2]

    async def cycle() -> None:
        async with opened_session(harness.server.manager):
            pass  # clients may also leave before a reset
        await harness.quiet()
        async with harness.session() as player:
            await player.play(actions, 1)

    left, complaints = await find_leaks(cycle)
    if harness.stuck:
        raise CheckFailure(
            f"{harness.server.active_sessions} environments are not closed {harness.call_s:g} s after the end of "
            "their sessions: close() does not return.",
            "make close() stop what it waits for, and wait with a timeout",
        )
    if complaints:
        raise CheckFailure(f"close() raised: {complaints[0]}.", "make close() work after any other call")
    if left:
        raise CheckFailure(
            f"{CYCLES} sessions were opened and closed, and leaked {'; '.join(left)}.",
            "release in close() all that the environment has opened: threads, processes, files, sockets, tasks",
        )
    return f"{CYCLES} sessions were opened and closed, without leaks"


async def _begin_episode(player: EpisodePlayer, episode_id: str | None = None) -> None:
    """Starts an episode. Ignores a first observation that cannot be sent. Raises OpenEnvError."""
    failure = (await player.reset(1, episode_id)).failure
    if failure is not None:
        raise failure


def describe_error(error: OpenEnvError) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(error.message.split())[:300]}"


def describe_outcome(seen: CallOutcome) -> str:
    """A short text for the outcome of a call."""
    if seen.error is not None:
        return type(seen.error).__name__
    return f"done={seen.done}, reward={seen.reward!r}"


def shorten(action: Any) -> str:
    text = json.dumps(action, default=repr, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


@Check.of(
    "runtime.seed",
    "Does the same seed give the same episode, or does the environment declare that it has no seed?",
    "runtime.step",
)
async def runtime_seed(harness: ConformanceHarness) -> str:
    if not (await harness.facts()).seedable:
        return "the environment declares that it has no seed"
    actions = await harness.actions()
    first = await _alone(harness, actions, harness.call_s / 4)
    second = await _alone(harness, actions[: len(first) - 1])  # the same number of steps, at any speed
    found = episode_difference(harness, first, second)
    if found is not None:
        raise CheckFailure(
            f"two sessions with seed={SEED} and the same actions differ: {found}.",
            "draw all random numbers from self.rng (or from a generator with the seed of reset); mark a field "
            "that is a clock or a name with Field(json_schema_extra={'seeded': False}); or remove `seed` from "
            "the arguments of reset, which declares that there is no seed",
        )
    return f"the same seed gives the same episode of {len(first) - 1} steps in two sessions"


@Check.of(
    "runtime.episodes",
    "Does reset leave nothing behind: does an episode repeat exactly in the same session?",
    "runtime.seed",
)
async def runtime_episodes(harness: ConformanceHarness) -> str:
    actions = (await harness.actions())[:STEPS]
    seedable = (await harness.facts()).seedable
    await reference_of(harness)
    async with harness.session() as player:
        first = await player.play(actions, SEED)
        again = []
        for steps in range(1, 4):  # one action may undo another
            await player.play(actions[:steps], OTHER_SEED)
            again.append(await player.play(actions, SEED))
        await player.play([], SEED)
        count = (await _state(player)).get("step_count")
    if count not in (0, None):
        raise CheckFailure(f"step_count is {count} after a reset.", "set step_count to 0 in reset")
    if not seedable and count is None:
        raise CheckSkip(NOTHING_TO_COMPARE)
    if not seedable:
        return "step_count starts from 0 (without seeds, episodes cannot be compared)"
    differing = [found for each in again if (found := episode_difference(harness, first, each)) is not None]
    if differing:
        found = differing[0]
        raise CheckFailure(
            f"an episode that was repeated in its session, with the same seed and actions, differs: {found}.",
            "reset all values that step changes",
        )
    return f"an episode of {len(first) - 1} steps is the same when it is repeated after another one"


@Check.of("runtime.isolation", "Are two sessions that step in turns independent?", "runtime.seed")
async def runtime_isolation(harness: ConformanceHarness) -> str:
    if harness.server.max_sessions < 2:
        raise CheckSkip("the environment has one session at a time (SUPPORTS_CONCURRENT_SESSIONS, max_sessions)")
    actions = (await harness.actions())[:STEPS]
    turned = actions[1:] + actions[:1]
    reference = await reference_of(harness)
    async with harness.session() as mine, harness.session() as other:
        seen = [await mine.reset(SEED)]
        await other.reset(OTHER_SEED)
        for action, another in zip(actions, turned, strict=True):
            await other.step(another)
            seen.append(await mine.step(action))
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
                f"a session next to another one differs from the same session alone: {found}.",
                "keep the data of an episode on the instance (self), not on the class, the module, in a file or "
                "in the random module",
            )
    if isinstance(count, int) and count > answered:
        raise CheckFailure(
            f"after {answered} steps of a session, its step_count is {count}: it includes steps of another session.",
            "keep the state on the instance (self), not on the class or the module",
        )
    if state.get("step_count") != count:
        raise CheckFailure(
            f"the close of another session changed step_count of this one from {count} to {state.get('step_count')}.",
            "change only the instance in close()",
        )
    if not seedable:
        return f"step_count is {count} next to another session (without seeds, episodes cannot be compared)"
    return f"a session of {answered} steps is the same alone and next to another one"


async def reference_of(harness: ConformanceHarness) -> list[CallOutcome]:
    """An episode in a session alone, for comparison with others.

    Raises:
        CheckSkip: The episode differs in each run with the same seed.
    """
    actions = (await harness.actions())[:STEPS]
    first, second = await _alone(harness, actions), await _alone(harness, actions)
    if (await harness.facts()).seedable and episode_difference(harness, first, second) is not None:
        raise CheckSkip(
            "the same seed does not give the same episode (see runtime.seed), so episodes cannot be compared"
        )
    return first


async def reading_changes_nothing(harness: ConformanceHarness, actions: list[dict[str, Any]]) -> None:
    """Compares an episode in which the state is read with one in which it is not, without fields that have no seed.

    Raises:
        CheckFailure: The episodes differ.
    """
    episodes: list[list[CallOutcome]] = []
    for reads in (0, 0, 2):
        async with harness.session() as player:
            seen: list[CallOutcome] = []
            for action in (None, *actions):
                seen.append(await (player.reset(SEED) if action is None else player.step(action)))
                if seen[-1].done:
                    break
                for _ in range(reads):
                    await player.client.state()
            episodes.append(seen)
    alone, again, read = episodes
    found = episode_difference(harness, alone, read)
    if found is not None and episode_difference(harness, alone, again) is None:
        raise CheckFailure(
            f"an episode in which the state is read after each call differs from one without reads: {found}.",
            "do not change the environment in the property `state`: clients may read it at any time",
        )


async def _state(player: EpisodePlayer) -> dict[str, Any]:
    try:
        return await player.client.state()
    except OpenEnvError:
        return {}


async def _alone(
    harness: ConformanceHarness, actions: list[dict[str, Any]], limit_s: float | None = None
) -> list[CallOutcome]:
    async with harness.session() as player:
        return await player.play(actions, SEED, limit_s)


def episode_difference(harness: ConformanceHarness, one: list[CallOutcome], other: list[CallOutcome]) -> str | None:
    """The first difference of two episodes as text. None if they are the same except for fields without a seed."""
    for first, second in zip(one, other, strict=False):
        if (first.error is None) != (second.error is None):
            return f"{first.call} gave {_answer(first)} once and {_answer(second)} the other time"
        schema = harness.server.schemas["reset_observation" if first.reset else "observation"]
        found = first_difference(first.observation, second.observation, SchemaNodes(schema))
        if found is not None:
            return f"{first.call}: {found.sentence('once', 'the other time')}"
        if first.done != second.done or not close(first.reward, second.reward):
            return (
                f"{first.call}: reward {first.reward!r} and done={first.done} once, "
                f"{second.reward!r} and done={second.done} the other time"
            )
    if len(one) != len(other):
        return f"one ended after {len(one) - 1} steps, and the other after {len(other) - 1}"
    return None


def _answer(seen: CallOutcome) -> str:
    return "an answer" if seen.error is None else f"{type(seen.error).__name__}: {seen.error.message[:120]}"
