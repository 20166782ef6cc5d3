"""Plays fixed episodes of one package through its own client and prints what came of them, as one JSON line.

Arguments: the server's URL and the package. What differs from run to run (random ids, the time) is left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

Transcript = list[Any]


def told(result: Any, *volatile: str) -> dict[str, Any]:
    """A result as plain values."""
    observation = result.observation.model_dump(mode="json")
    for name in volatile:
        observation.pop(name, None)
    return {"observation": observation, "reward": result.reward, "done": result.done}


async def refused(call: Any) -> list[str]:
    """What a call that fails says."""
    try:
        await call
    except Exception as error:  # noqa: BLE001 - which class it is differs between the systems
        return ["failed", str(error)]
    raise AssertionError("it did not fail")


async def harbor(url: str) -> Transcript:
    from harbor_env import HarborAction, HarborEnv

    said: Transcript = []
    async with HarborEnv(base_url=url) as env:
        for tide in (0.5, 2):
            said.append(told(await env.reset(tide=tide, episode_id=f"tide {tide}"), "arrived_at"))
            for berth, length in (("north", 50), ("north", 150), ("south", 150.5)):
                said.append(told(await env.step(HarborAction(berth=berth, length_m=length)), "arrived_at"))
            said.append((await env.state()).model_dump(mode="json"))
    return said


async def logbook(url: str) -> Transcript:
    from logbook_env import CallToolAction, ListToolsAction, LogbookEnv

    said: Transcript = []
    async with LogbookEnv(base_url=url) as env:
        said.append([tool.model_dump(mode="json") for tool in await env.list_tools()])
        for _ in range(2):
            said.append(told(await env.reset(episode_id="mine")))
            said.append(await env.call_tool("write", text="calm"))
            for text in ("storm", "calm"):
                action = CallToolAction(tool_name="write", arguments={"text": text})
                said.append(told(await env.step(action)))
            said.append(await env.call_tool("copy", times=2))
            said.append(told(await env.step(ListToolsAction())))
            said.append(await env.call_tool("burn"))
            failing = told(await env.step(CallToolAction(tool_name="burn", arguments={})))
            said.append(failing)
            said.append((await env.state()).model_dump(mode="json"))
    return said


async def snippet(url: str) -> Transcript:
    from snippet_env import SnippetAction, SnippetEnv

    said: Transcript = []
    async with SnippetEnv(base_url=url) as env:
        for _ in range(2):
            said.append(told(await env.reset(episode_id="mine")))
            for code in (
                "result = put('a', 20) + 1",
                "result = [get('a'), {'b': double(2)}]",
                "get('nothing')",
                "result = 1 +",
                "1 / 0",
                "unseen = 1",
                "result = get('a') * 2 + 2",
            ):
                said.append(told(await env.step(SnippetAction(code=code))))
            said.append((await env.state()).model_dump(mode="json"))
    return said


async def duel(url: str) -> Transcript:
    from duel_env import DuelAction, DuelEnv

    said: Transcript = []
    async with DuelEnv(base_url=url) as env:
        for moves in (("strike", "feint", "strike"), ("rest", "feint", "rest"), ("strike", "strike", "strike")):
            said.append(told(await env.reset(episode_id="-".join(moves))))
            for move in moves:
                said.append(told(await env.step(DuelAction(move=move))))
            said.append((await env.state()).model_dump(mode="json"))
    return said


PLAYED = {"duel_env": duel, "harbor_env": harbor, "logbook_env": logbook, "snippet_env": snippet}

if __name__ == "__main__":
    transcript = asyncio.run(asyncio.wait_for(PLAYED[sys.argv[2]](sys.argv[1]), 60))
    sys.stdout.write("\n" + json.dumps(transcript))
