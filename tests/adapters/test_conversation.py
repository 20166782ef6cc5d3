"""Environments of libraries that call a model: each call is a step."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv.adapters.conversation import ModelLoopEnvironment, TextReply


class Impatient(ModelLoopEnvironment):
    """Calls its model, gives the call up, and ends the episode."""

    tasks = ("one",)

    async def _play(self, index: int) -> dict[str, Any]:
        call = asyncio.ensure_future(self._complete([{"role": "user", "content": "Answer at once."}]))
        await asyncio.sleep(0)  # the call has begun
        call.cancel()
        await asyncio.wait([call])
        return {"text": "The time is up.", "done": True, "reward": 0.25}


async def test_an_answer_to_a_call_that_was_given_up_ends_as_the_library_says() -> None:
    env = Impatient()
    assert (await env.reset_async()).text == "Answer at once."
    over = await env.step_async(TextReply(text="here"))
    assert (over.text, over.done, over.reward) == ("The time is up.", True, 0.25)
