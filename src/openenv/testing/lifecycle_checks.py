"""Checks of the contract of reset, step, state and close: episodes repeat with the same seed, and are isolated."""

from __future__ import annotations

import json
from typing import Any

from ..errors import OpenEnvError, StepTimeout, UsageError
from ..recording.difference import SchemaNodes, close, first_difference
from ..runtime.manager import opened_session
from .check import Check, CheckFailure, CheckSkip, CheckWarning
from .harness import CallOutcome, ConformanceHarness, EpisodePlayer, is_unsendable
from .leak_checks import find_leaks
from .schemas import first_fault

# To come to the end of an episode.
MANY_STEPS = 200
SEED = 7
STEPS = 8
# Different seeds and actions for the sessions that must not be seen in another one.
OTHER_SEED = 8
NOTHING_TO_COMPARE = "without seeds and without step_count, there is nothing by which episodes could be compared"


@Check.of("runtime.session", "Does a session open?")
async def runtime_session(harness: ConformanceHarness) -> str:
    try:
        facts = await harness.facts()
    except (OpenEnvError, TimeoutError) as error:
        raise CheckFailure(
            f"no session could be opened: {describe_error(error, harness)}.",
            "correct the constructor, or what create_app is given: it must make an environment without arguments",
        ) from None
    return f"{facts.name} is made, and runs as {facts.execution.value}"


@Check.of("runtime.reset", "Does reset work: without arguments, with a seed, again?", "runtime.session")
async def runtime_reset(harness: ConformanceHarness) -> str:
    unsent = ""
    async with harness.session() as player:
        for arguments in ({"episode_id": None}, {"seed": 1}, {"seed": 1}):
            try:
                await player.reset(**arguments)
            except OpenEnvError as error:
                if is_unsendable(error):
                    unsent = "; what it returned could not be sent (see runtime.schema)"
                    continue
                raise CheckFailure(
                    f"reset raised: {describe_error(error, harness)}.",
                    "have reset work without arguments, again and again in the same session, with a seed and without",
                ) from None
    return f"it works without arguments, with a seed, and again in the same session{unsent}"


@Check.of("runtime.step", "Does step take the actions that its schema allows?", "runtime.reset")
async def runtime_step(harness: ConformanceHarness) -> str:
    source = (await harness.repertoire()).source
    steps = [seen for episode in await harness.sample() for seen in episode if not seen.reset]
    fine = [seen for seen in steps if seen.error is None or is_unsendable(seen.error)]
    if not steps:
        raise CheckSkip("every episode was over after its reset, so there was no step to take")
    if not fine:
        error = steps[0].error
        assert error is not None
        raise CheckFailure(
            f"{steps[0].call} raised: {describe_error(error, harness)}; so did all {len(steps)} steps that were "
            "tried.",
            "correct step; or, if these actions make no sense, offer some that do: examples in the action's schema, "
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
            states.append(await player.state())
            for action in actions:
                seen = await outcome_of_call(player.step(action), "step")
                count += seen.error is None or is_unsendable(seen.error)
                states.append(await player.state())
                if seen.done:
                    break
        except OpenEnvError as error:
            raise CheckFailure(
                f"state cannot be read: {describe_error(error, harness)}.",
                "have the property `state` return a State; it is asked for at any time, so it must not raise",
            ) from None
    if not states[0]:
        raise CheckWarning("the environment keeps no state.", "return a State with episode_id and step_count")
    for state in states:
        fault = first_fault(state, harness.schemas["state"], "state")
        if fault is not None:
            raise CheckFailure(
                f"{fault}.", "declare state_cls in create_app (or Environment[A, O, MyState]) as it really is"
            )
    counts = [state.get("step_count") for state in states]
    if counts[0] != 0 or counts[-1] != count:
        raise CheckFailure(
            f"after a reset and {count} steps, step_count went {' '.join(map(str, counts))}.",
            "set step_count to 0 in reset and add 1 in every step",
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
            "have reset set the state's episode_id to the one it is given, or to a new one (uuid4)",
        )
    if named != "named-by-a-client":
        raise CheckWarning(
            f"{saw}; reset(episode_id='named-by-a-client') gives the episode_id {named!r}.",
            "have reset take episode_id and keep it in the state",
        )
    if first == second:
        raise CheckWarning(f"{saw}; two episodes have the same episode_id {first!r}.", "have reset choose a new one")
    return f"{saw}; every episode has its own episode_id"


async def _id_after(player: EpisodePlayer, name: str | None) -> Any:
    await _begin_episode(player, name)
    return (await player.state()).get("episode_id")


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
            raise CheckSkip(f"no episode ended within {len(seen) - 1} steps, so none could be taken after its end")
        after = await outcome_of_call(player.step(actions[0]), "step")
        if after.error is None and not after.done:
            raise CheckFailure(
                f"the episode was over after {len(seen) - 1} steps, and another step gave done=False "
                f"(reward {after.reward!r}).",
                "raise openenv.errors.ResetRequired from a step after the end, or return done=True again",
            )
        try:
            await player.reset(2)
        except OpenEnvError as error:
            raise CheckFailure(
                f"after a step after the end ({describe_outcome(after)}), "
                f"reset raises: {describe_error(error, harness)}.",
                "leave the environment as it is when a step comes after the end",
            ) from None
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
            seen = await outcome_of_call(player.step(action), "step")
            if seen.error is not None and not isinstance(seen.error, UsageError):
                raise CheckFailure(
                    f"the action {shorten(action)}, which is wrong, raised {describe_error(seen.error, harness)}.",
                    "raise openenv.errors.InvalidAction for what is no action, or declare its fields",
                )
            try:
                await player.state()
                await _begin_episode(player)
            except OpenEnvError as error:
                raise CheckFailure(
                    f"after the wrong action {shorten(action)}, the session is of no use any more: "
                    f"{describe_error(error, harness)}.",
                    "leave the environment as it was when an action is refused",
                ) from None
        tried = 0
        for action in [*good, *([] if repertoire.chosen else repertoire.edges())]:
            seen = await outcome_of_call(player.step(action), "step")
            tried += 1
            if isinstance(seen.error, StepTimeout):
                await _begin_episode(player)
                continue
            if seen.error is not None and not isinstance(seen.error, UsageError) and not is_unsendable(seen.error):
                raise CheckFailure(
                    f"step raised {describe_error(seen.error, harness)} for {shorten(action)}, "
                    "which the action's schema allows.",
                    "answer with an observation, raise openenv.errors.InvalidAction, or narrow the field "
                    "(ge, le, Literal, pattern)",
                )
            if seen.done:
                await _begin_episode(player)
    return f"{len(wrong)} wrong actions were refused and {tried} allowed ones answered; the session goes on"


@Check.of("runtime.close", "Does close free everything: threads, processes, files, sockets, tasks?", "runtime.step")
async def runtime_close(harness: ConformanceHarness) -> str:
    actions = (await harness.actions())[:2]

    async def cycle() -> None:
        async with opened_session(harness.server.manager):
            pass  # clients go away before they reset, too
        await harness.quiet()
        async with harness.session() as player:
            await player.play(actions, 1)

    found = await find_leaks(cycle)
    if harness.stuck:
        raise CheckFailure(
            f"{harness.server.active_sessions} environments are not closed {harness.call_s:g} s after the end of "
            "their sessions: close() does not return.",
            "have close() end what it waits for, and wait for it with a limit",
        )
    if found.complaints:
        raise CheckFailure(f"close() raised: {found.complaints[0]}.", "have close() work after any other call")
    if found.left:
        raise CheckFailure(
            f"{found.cycles} sessions were opened and closed, and left behind {'; '.join(found.left)}.",
            "end in close() what the environment has started: threads, processes, files, sockets, tasks",
        )
    return f"{found.cycles} sessions were opened and closed, and left nothing behind"


async def _begin_episode(player: EpisodePlayer, episode_id: str | None = None) -> None:
    """Begins an episode; its first observation may be one that cannot be sent."""
    try:
        await player.reset(1, episode_id)
    except OpenEnvError as error:
        if not is_unsendable(error):
            raise


def describe_error(error: BaseException, harness: ConformanceHarness) -> str:
    """An error in one line."""
    if isinstance(error, TimeoutError) and not isinstance(error, OpenEnvError):
        return f"no answer within {harness.call_s:g} s (--timeout)"
    text = error.message if isinstance(error, OpenEnvError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"


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


@Check.of("runtime.isolation", "Are two sessions that play in turns independent?", "runtime.seed")
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
    """The outcome of a call, which may be an error."""
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
