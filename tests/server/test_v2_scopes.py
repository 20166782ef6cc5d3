"""What a key of each scope may ask for in v2."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv.server import create_app
from openenv.server.auth import Principal, Scope
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..environments import InlinePlain
from .scripted import End

OPEN = {"op": "open", "session": "one"}
STATE = {"op": "state", "session": "one"}


class Tool(Action):
    type: str = "plain"
    tool_name: str = ""
    arguments: dict[str, Any] = {}


def step(seq: int, kind: str) -> dict[str, Any]:
    return {"op": "step", "session": "one", "seq": seq, "action": {"type": kind}}


def reset(seq: int) -> dict[str, Any]:
    return {"op": "reset", "session": "one", "seq": seq}


def replies_to(scope: Scope, *requests: dict[str, Any]) -> list[Any]:
    async def run() -> list[Any]:
        app = create_app(InlinePlain, Tool, Observation, settings=ServerSettings.read({}))
        end = End(app.state.openenv, principal=Principal(scope, 1, "here"))
        replies = [end.now(**request) for request in requests]
        await end.connection.aclose()
        return replies

    return asyncio.run(run())


def errors(replies: list[Any]) -> list[str | None]:
    return [reply.get("error", {}).get("error") for reply in replies]


def test_control_may_do_everything():
    replies = replies_to(Scope.CONTROL, OPEN, reset(1), step(2, "plain"), step(3, "call_tool"), STATE)
    assert errors(replies) == [None] * 5


def test_an_agent_uses_tools_and_nothing_else():
    requests = [
        OPEN,
        reset(1),
        step(1, "plain"),
        step(1, "call_tool"),
        step(2, "list_tools"),
        STATE,
        {"op": "heartbeat"},
    ]
    replies = replies_to(Scope.AGENT, *requests, {"op": "close", "session": "one"})
    assert errors(replies) == [None, "Forbidden", "Forbidden", None, None, "Forbidden", None, None]
    assert "control" in replies[1]["error"]["message"]


def test_an_action_that_is_not_valid_is_no_tool_call():
    wrong = {"op": "step", "session": "one", "seq": 1, "action": {"type": "call_tool", "unknown": 1}}
    assert errors(replies_to(Scope.AGENT, OPEN, wrong))[1] == "Forbidden"


def test_what_is_forbidden_alone_is_forbidden_in_a_batch():
    batch = {"op": "batch", "calls": [OPEN, reset(1), step(1, "call_tool"), step(2, "plain")]}
    (reply,) = replies_to(Scope.AGENT, batch)
    results = {result["call"]: result for result in reply["results"]}
    assert errors([results[place] for place in range(4)]) == [None, "Forbidden", None, "Forbidden"]


def test_an_agent_has_no_control_by_way_of_forks_restores_and_tasks():
    wanted = [
        {"op": "fork", "session": "one", "new": "two"},
        {"op": "restore", "session": "one", "seq": 1, "source": "one"},
        {"op": "tasks", "session": "one", "method": "list_splits"},
    ]
    tool = {"op": "call", "session": "one", "seq": 1, "tool": "look"}
    tools = {"op": "mcp", "session": "one", "seq": 2, "method": "tools/list"}
    assert errors(replies_to(Scope.AGENT, OPEN, *wanted, tool, tools)) == [None, *["Forbidden"] * 3, None, None]
    (reply,) = replies_to(Scope.AGENT, {"op": "batch", "calls": [OPEN, *wanted[:2], tool]})
    results = {result["call"]: result for result in reply["results"]}
    assert errors([results[place] for place in range(4)]) == [None, "Forbidden", "Forbidden", None]
