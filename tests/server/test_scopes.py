"""What a key allows on a connection of protocol v1, over each transport."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action

from .probe import ProbeEnvironment, ProbeObservation
from .wires import WIRES, SocketWire, served


class ToolAction(Action):
    type: Literal["call_tool", "list_tools", "move"]
    number: int = 0


class ToolEnvironment(ProbeEnvironment):
    execution = "inline"

    def step(self, action: ToolAction) -> ProbeObservation:
        self._steps += 1
        return ProbeObservation(value=action.type, step_count=self._steps)


def app() -> Any:
    settings = ServerSettings.read({}, api_keys="control:the-first-key-of-all,agent:the-second-key-of-all")
    return create_app(ToolEnvironment, ToolAction, ProbeObservation, max_concurrent_envs=4, settings=settings)


@pytest.fixture(params=["websockets-sansio", "openenv.server.transports.uvicorn:FastPath"])
def connect(request):
    with served(app(), ws=request.param) as address:
        wires: list[SocketWire] = []

        def connect(key: str) -> SocketWire:
            headers = {"Authorization": f"Bearer {key}"}
            wires.append(SocketWire(f"ws://{address}/ws", additional_headers=headers))
            return wires[-1]

        yield connect
        for wire in wires:
            wire.close()


def step(wire: SocketWire, kind: str) -> Any:
    return wire.ask({"type": "step", "data": {"type": kind}})["data"]


def test_an_agent_uses_tools_and_nothing_else(connect):
    wire = connect("the-second-key-of-all")
    for message in ({"type": "reset"}, {"type": "state"}, {"type": "step", "data": {"type": "move"}}):
        error = wire.ask(message)["data"]
        # A code that v1 clients do not take for the end of the session.
        assert (error["error"], error["code"], error["blame"]) == ("Forbidden", "EXECUTION_ERROR", "client")
        assert "agent" in error["message"]
    assert step(wire, "list_tools")["observation"]["value"] == "list_tools"
    answer = step(wire, "call_tool")
    assert (answer["observation"]["value"], answer["observation"]["step_count"]) == ("call_tool", 2)
    assert wire.ask({"type": "mcp", "data": {"id": 1, "method": "tools/list"}})["type"] == "mcp"


def test_control_does_everything(connect):
    wire = connect("the-first-key-of-all")
    assert wire.ask({"type": "reset"})["type"] == "observation"
    assert step(wire, "move")["observation"]["value"] == "move"
    assert wire.ask({"type": "state"})["type"] == "state"


def test_frames_that_are_sent_ahead_are_checked_too(connect):
    wire = connect("the-second-key-of-all")
    for _ in range(3):
        wire.send('{"type":"state"}')
        wire.send('{"type":"step","data":{"type":"call_tool"}}')
    assert [wire.receive()["type"] for _ in range(6)] == ["error", "observation"] * 3


def test_in_process_there_are_no_keys():
    with WIRES["memory"](app()) as open_wire:
        wire = open_wire()
        assert wire.ask({"type": "state"})["type"] == "state"
        wire.close()
