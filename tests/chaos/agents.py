"""Agents on the `openai` SDK with its own retries: a program, whose standard input is the JSON of its plan."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

RETRIES = 30
TIMEOUT_S = 15.0


async def converse(client: AsyncOpenAI, session: str, turns: int) -> dict[str, Any]:
    """One agent: each message is another one, and the model repeats it.

    Returns:
        The answers, and the class of the error that ended the agent.
    """
    mine = client.with_options(api_key=session)
    messages: list[Any] = []
    answers: list[str] = []
    try:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{session} turn {turn}"})
            completion = await mine.chat.completions.create(model="echo", messages=messages)
            answers.append(completion.choices[0].message.content or "")
            messages.append({"role": "assistant", "content": answers[-1]})
    except OpenAIError as error:
        return {"answers": answers, "error": type(error).__name__}
    return {"answers": answers, "error": None}


async def main(plan: dict[str, Any]) -> None:
    async with DefaultAsyncHttpxClient() as http:
        client = AsyncOpenAI(
            base_url=f"{plan['url']}/v1", api_key="-", http_client=http, max_retries=RETRIES, timeout=TIMEOUT_S
        )
        work = [converse(client, session, plan["turns"]) for session in plan["sessions"]]
        print(json.dumps(dict(zip(plan["sessions"], await asyncio.gather(*work), strict=True))))


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
