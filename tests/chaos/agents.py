"""Agents on the `openai` SDK with its own retries: a program, whose standard input is the JSON of its plan."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from httpx import TransportError
from openai import APIConnectionError, APIError, AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

from openenv import GenericEnvClient
from openenv.errors import OpenEnvError

RETRIES = 30
TIMEOUT_S = 30.0


async def streamed(client: AsyncOpenAI, messages: Sequence[Any], key: str) -> str:
    """An answer as a stream. The SDK does not repeat one that breaks off: the agent does, with the same key."""
    for attempt in range(RETRIES):
        try:
            stream = await client.chat.completions.create(
                model="echo", messages=list(messages), stream=True, extra_headers={"idempotency-key": key}
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        except (TransportError, APIError) as error:
            broken_off = isinstance(error, TransportError | APIConnectionError) or type(error) is APIError
            if attempt == RETRIES - 1 or not broken_off:
                raise
    raise AssertionError("the last attempt returns or raises")


async def converse(client: AsyncOpenAI, plan: dict[str, Any], session: str) -> dict[str, Any]:
    """One agent: each message is another one, and the model repeats it, every second time as a stream.

    Returns:
        The answers; the class of the error that ended the agent; and those of the environment that it steps between
        the turns, each of which began another episode.
    """
    mine = client.with_options(api_key=session)
    messages: list[Any] = []
    answers: list[str] = []
    lost: list[str] = []
    env = GenericEnvClient(base_url=plan["env"], connect_timeout_s=30.0) if plan["env"] else None
    try:
        for turn in range(plan["turns"]):
            messages.append({"role": "user", "content": f"{session} turn {turn}"})
            if turn % 2:
                answers.append(await streamed(mine, messages, f"{session}-{turn}"))
            else:
                completion = await mine.chat.completions.create(model="echo", messages=messages)
                answers.append(completion.choices[0].message.content or "")
            messages.append({"role": "assistant", "content": answers[-1]})
            if env is not None:
                lost += await step(env, turn)
    except (OpenAIError, TransportError, OpenEnvError) as error:
        return {"answers": answers, "error": type(error).__name__, "lost": lost}
    finally:
        if env is not None:
            await env.close()
    return {"answers": answers, "error": None, "lost": lost}


async def step(env: GenericEnvClient, turn: int) -> list[str]:
    """Steps the environment, in a new episode if its own is lost. Returns the class of the error that said so."""
    lost: list[str] = []
    if not turn:
        await env.reset(seed=turn)
    while True:
        try:
            result = await env.step({"request": turn})
        except OpenEnvError as error:
            if len(lost) == RETRIES:
                raise
            lost.append(type(error).__name__)
            await env.reset(seed=turn)
            continue
        if result.observation["request"] != turn:
            lost.append("a reply to another request")
        return lost


async def main(plan: dict[str, Any]) -> None:
    async with DefaultAsyncHttpxClient() as http:
        client = AsyncOpenAI(
            base_url=f"{plan['url']}/v1", api_key="-", http_client=http, max_retries=RETRIES, timeout=TIMEOUT_S
        )
        work = [converse(client, plan, session) for session in plan["sessions"]]
        print(json.dumps(dict(zip(plan["sessions"], await asyncio.gather(*work), strict=True))))


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
