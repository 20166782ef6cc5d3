"""Checks of observations and rewards against the environment's schemas."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..protocol.json_schema import schema_of
from ..types import Observation
from .check import Check, CheckFailure, CheckSkip, CheckWarning
from .harness import CallOutcome, ConformanceHarness, Repertoire
from .lifecycle_checks import describe_error
from .schemas import first_fault, undeclared

# Fields that are sent next to the observation; other checks cover them.
_BESIDE = ("done", "reward", "metadata", "truncated")


@Check.of(
    "runtime.schema",
    "Does every observation match its schema: types, bounds, no extra or missing field?",
    "runtime.step",
)
async def runtime_schema(harness: ConformanceHarness) -> str:
    count = 0
    for seen in await harness.sample():
        if seen.error is not None:
            if seen.failure is None and not seen.error.message.startswith("the reward is "):
                raise CheckFailure(
                    f"{seen.call} returned a value that cannot be sent: {describe_error(seen.error)}.",
                    "use values that JSON has: numbers, strings, lists, dicts",
                )
            continue
        count += 1
        _check_observation(harness, seen)
        await asyncio.sleep(0)  # large observations take some time: let other tasks run
    if not count:
        raise CheckSkip("no observation was seen")
    return f"{count} observations match their schema"


def _check_observation(harness: ConformanceHarness, seen: CallOutcome) -> None:
    part = "reset_observation" if seen.reset else "observation"
    schemas = [harness.server.schemas[part]]
    if seen.reset and Repertoire.takes_tools(
        harness.server
    ):  # observations of tool calls have another type than those of a reset
        schemas.append(schema_of(Observation) or {})
    own = {name: value for name, value in seen.observation.items() if name not in _BESIDE}
    faults = []
    for schema in schemas:
        required = [name for name in schema.get("required", ()) if name not in _BESIDE]
        faults.append(first_fault(own, {**schema, "required": required}, "observation"))
    if None not in faults:
        raise CheckFailure(
            f"{seen.call}: {faults[0]}.",
            "correct the declaration of the field, or its value; typed clients refuse other values",
        )
    unread = _unreadable(harness, seen) if len(schemas) == 1 else None
    if unread is not None:
        raise CheckFailure(
            f"{seen.call}: a typed client cannot parse the observation: {unread}.",
            "make the model accept its own output (the serializer and the validator of a field do not match)",
        )
    if len(schemas) == 1:
        more = [name for name in undeclared(seen.observation, schemas[0]) if name not in _BESIDE]
        if more:
            raise CheckWarning(
                f"{seen.call}: the observation has fields that are not declared: {', '.join(sorted(more))}.",
                "declare them in the observation class, or move them to its metadata",
            )


def _unreadable(harness: ConformanceHarness, seen: CallOutcome) -> str | None:
    kind = harness.server.reset_observation_cls if seen.reset else harness.server.observation_cls
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return None
    data = {**seen.observation, "done": seen.done, "reward": seen.reward}
    if "truncated" in kind.model_fields:
        data["truncated"] = seen.truncated
    try:
        TypeAdapter(kind).validate_python({name: data[name] for name in data if name in kind.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: a validator of the model's own
        return f"{type(error).__name__}: {error}"
    return None


@Check.of("runtime.finite", "Are all numbers in observations and rewards finite?", "runtime.step")
async def runtime_finite(harness: ConformanceHarness) -> str:
    count = answered = 0
    for seen in await harness.sample():
        if seen.error is not None and seen.error.message.startswith(
            ("the reward is nan", "the reward is inf", "the reward is -inf")
        ):
            raise CheckFailure(
                f"{seen.call}: {describe_error(seen.error)}.",
                "return a finite reward, or None for no reward",
            )
        for place, number in _numbers(seen.observation, "observation"):
            if not math.isfinite(number):
                raise CheckFailure(
                    f"{seen.call}: {place} is {number}.",
                    "JSON has no NaN and no infinity: use None, or a finite number",
                )
            count += 1
        answered += seen.error is None
        await asyncio.sleep(0)
    if not answered:
        raise CheckSkip("no observation was seen")
    return f"{count} floats, all finite, in {answered} observations"


@Check.of("runtime.reward", "Is every reward a number, a bool or None?", "runtime.step")
async def runtime_reward(harness: ConformanceHarness) -> str:
    rewards = []
    early = None
    for seen in await harness.sample():
        if seen.error is not None and "the reward is a " in seen.error.message:
            raise CheckFailure(
                f"{seen.call}: {describe_error(seen.error)}.", "return a bool, an int, a float or None"
            )
        if seen.error is None and not isinstance(seen.reward, (bool, int, float, type(None))):
            raise CheckFailure(
                f"{seen.call}: the reward is {seen.reward!r}.", "return a bool, an int, a float or None"
            )
        if seen.error is None and not seen.reset:
            rewards.append(seen.reward)
        if seen.error is None and seen.reset and seen.reward:
            early = seen
    if early is not None:
        raise CheckWarning(
            f"{early.call} gave the reward {early.reward!r} before any action; trainers ignore it.",
            "return reward=None from reset, and the reward from the step that earns it",
        )
    given = [float(reward) for reward in rewards if reward is not None]
    if not rewards:
        raise CheckSkip("no step was answered, so there is no reward to check")
    if not given:
        return f"{len(rewards)} steps, none with a reward"
    return f"{len(rewards)} steps, rewards from {min(given):g} to {max(given):g}"


@Check.of(
    "runtime.done",
    "Does every episode begin with done=False, also after another one; is a truncated episode also done?",
    "runtime.step",
)
async def runtime_done(harness: ConformanceHarness) -> str:
    for seen in await harness.sample():
        if seen.error is None and seen.reset and seen.done:
            raise CheckFailure(
                f"{seen.call} gave done=True.", "return an observation with done=False from reset: the episode begins"
            )
        if seen.error is None and seen.truncated and not seen.done:
            raise CheckFailure(
                f"{seen.call} gave truncated=True and done=False.", "also set done when an episode is truncated"
            )
    ended = begun = 0
    actions = await harness.actions()
    async with harness.session() as player:
        for seed in (1, 2):
            seen_all = await player.play(actions * 5, seed, harness.call_s / 4)
            if seen_all[0].error is None and seen_all[0].done:
                raise CheckFailure(
                    "reset gave done=True after an episode that had ended.",
                    "clear the end of the last episode in reset",
                )
            ended += seen_all[-1].done
            begun += seen_all[0].error is None
    if not begun:
        raise CheckSkip("no observation of a reset was seen")
    return f"{ended} of 2 episodes ended; a reset is never done"


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _numbers(each, f"{place}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, f"{place}[{index}]")
