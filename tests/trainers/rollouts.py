"""TRL's own loop of asynchronous rollouts, with a model that needs no server of its own."""

from __future__ import annotations

import asyncio
import random

from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from .tiny import call_token

__all__ = ["CALLS", "SelfSpoken"]

CALLS = [call_token("count", {"by": 1}), call_token("count", {"by": 4})]


class SelfSpoken(_AsyncRolloutLoop):
    """Says a tool call, or that it has done, where TRL would ask vLLM."""

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        end = self.tokenizer.eos_token_id
        calls = [[number, end] for number in self.tokenizer.convert_tokens_to_ids(CALLS)]
        said = random.choice([*calls, *calls, [end]])
        return said, [-1.0] * len(said)

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
        await asyncio.gather(self._generate_loop(stop_event=stop_event), self._score_loop(stop_event=stop_event))
