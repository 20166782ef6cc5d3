"""Checks of environments that play many episodes in one call: their results, masks, slots and seeds."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from .check import Check, CheckFailure, CheckSkip, CheckWarning
from .harness import ConformanceHarness

if TYPE_CHECKING:
    from .batch_player import BatchUnderTest

OTHER_SEED = 5007
# Time limit of a check, as a multiple of that of one call.
CALLS = 4


def _batch_check(name: str, asks: str, *needs: str) -> Callable[[Callable[[BatchUnderTest], str]], Check]:
    """Decorator that makes a check of a function, which runs on a thread."""

    def of(function: Callable[[BatchUnderTest], str]) -> Check:
        async def run(harness: ConformanceHarness) -> str:
            if harness.server.batch is None:
                raise CheckSkip("the environment plays one episode at a time (it is not a BatchedEnvironment)")
            from .batch_player import BatchUnderTest  # noqa: PLC0415 - it needs numpy, as batches do

            limit_s = CALLS * harness.call_s
            try:
                return await asyncio.wait_for(asyncio.to_thread(function, BatchUnderTest(harness)), limit_s)
            except TimeoutError:
                raise CheckFailure(
                    f"the calls of the batch did not return within {limit_s:g} s.", "make every call return"
                ) from None

        return Check(name, asks, run, needs)

    return of


@_batch_check(
    "runtime.batch",
    "Do reset and step of a batch return the declared fields, with a row for each of num_envs episodes?",
)
def runtime_batch(batch: BatchUnderTest) -> str:
    with batch.instance() as player:
        results = batch.played(player)
        player.reset([None] * batch.spec.num_envs, batch.all)  # without seeds
        converted = player.converted(batch.seeds(), batch.all)
    if converted:
        raise CheckWarning(
            f"arrays have another type than declared, so the server converts them: {', '.join(converted)}.",
            "return arrays of the declared type, or declare the type that you return",
        )
    fields = len(batch.spec.observations)
    return f"{batch.spec.num_envs} rows of {fields} fields, in a reset and {len(results) - 1} steps"


@_batch_check("runtime.batch-seed", "Do the same seeds give the same episodes in a batch?", "runtime.batch")
def runtime_batch_seed(batch: BatchUnderTest) -> str:
    with batch.instance() as player:
        first = batch.played(player)
        batch.played(player, OTHER_SEED)
        again = batch.played(player)
    with batch.instance() as player:
        other = batch.played(player)
    for results, when in ((other, "in another instance"), (again, "after other episodes")):
        for call, (one, two) in enumerate(zip(first, results, strict=False)):
            batch.expect(one, two, batch.all, f"{when} with the same seeds and actions, in {_name_of(call)}")
    return f"the same seeds give the same {batch.spec.num_envs} episodes of {len(first) - 1} steps"


@_batch_check(
    "runtime.batch-mask", "Do episodes outside of the mask of a reset or step stay as they are?", "runtime.batch-seed"
)
def runtime_batch_mask(batch: BatchUnderTest) -> str:
    batch.need_masks()
    even = batch.slots % 2 == 0
    with batch.instance() as player:
        reference = batch.played(player)
    with batch.instance() as player:
        player.reset(batch.seeds(), even)
        batch.expect(reference[0], player.reset(batch.seeds(), ~even), batch.all, "after a reset of other episodes")
        for step, expected in enumerate(reference[1:3]):
            running = batch.running(reference[: step + 1])
            for part in (even & running, ~even & running):
                seen = player.step(batch.actions(step, part), part)
                batch.expect(expected, seen, part, "after calls of other episodes")
        odd = ~even & batch.running(reference[:3])
        again = player.reset(batch.seeds(OTHER_SEED), even)
        batch.expect(reference[:3][-1], again, odd, "after a reset of other episodes")
        if odd.any() and len(reference) > 3:
            seen = player.step(batch.actions(2, odd), odd)
            batch.expect(reference[3], seen, odd, "after a reset of other episodes")
    return "half of the episodes started and stepped, while the other half stayed as they were"


@_batch_check(
    "runtime.batch-slot",
    "Does an episode play the same alone, beside others, and in another slot?",
    "runtime.batch-mask",
)
def runtime_batch_slot(batch: BatchUnderTest) -> str:
    batch.need_masks()
    with batch.instance() as player:
        reference = batch.played(player)
    for slot in (0, batch.spec.num_envs - 1):
        alone = batch.slots == slot
        with batch.instance() as player:
            batch.expect(reference[0], player.reset(batch.seeds(), alone), alone, "when it plays alone")
            for step, expected in enumerate(reference[1:]):
                if not (batch.running(reference[: step + 1]) & alone).any():
                    break
                seen = player.step(batch.actions(step, alone), alone)
                batch.expect(expected, seen, alone, "when it plays alone")
    moved = batch.slots - 1  # the episode that each slot plays; slot 0 plays the last one
    with batch.instance() as player:
        seen = player.reset([batch.seeds()[slot] for slot in moved], batch.all)
        batch.expect(reference[0], seen, batch.all, "in the next slot", 1)
        for step, expected in enumerate(reference[1:]):
            running = batch.running(reference[: step + 1])
            seen = player.step(batch.actions(step, running[moved], moved), running[moved])
            batch.expect(expected, seen, running, "in the next slot", 1)
    return f"episodes of {len(reference) - 1} steps are the same alone, beside others, and in other slots"


@_batch_check("runtime.batch-buffer", "Do the results of a batch stay as they are in the next step?", "runtime.batch")
def runtime_batch_buffer(batch: BatchUnderTest) -> str:
    with batch.instance() as player:
        results = [player.uncopied_reset(batch.seeds(), batch.all)]
        kept = [copy.deepcopy(results[0])]
        for step in range(2):
            running = batch.running(kept)
            if running.any():
                results.append(player.uncopied_step(batch.actions(step, running), running))
                kept.append(copy.deepcopy(results[-1]))
    for call, (result, before) in enumerate(zip(results, kept, strict=True)):
        changed = batch.changed(before, result)
        if changed:
            raise CheckWarning(
                f"the next call changed {', '.join(changed)} in the result of {_name_of(call)}.",
                "return new arrays, or copies: a server sends each result in time, but other callers may keep it",
            )
    return f"{len(results)} results stay as they are"


def _name_of(call: int) -> str:
    return f"step {call}" if call else "reset"
