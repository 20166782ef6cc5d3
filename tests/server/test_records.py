"""What a server records of its sessions, over whichever transport and in whichever protocol they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv import GenericEnvClient, VectorEnvClient
from openenv.client import MCPToolClient
from openenv.errors import InvalidArgument, StepFailed, StepTimeout
from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.settings import ServerSettings

from ..mcp.environments import ToolEnvironment
from ..recording.lines import lines_in
from .forkable import Walk
from .probe import AsyncProbe, ProbeAction, ProbeEnvironment, ProbeObservation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.fixture
def app(folder: Path) -> FastAPI:
    settings = ServerSettings(record=str(folder))
    return create_app(ProbeEnvironment, ProbeAction, ProbeObservation, "probe", settings=settings)


def recorded(app: FastAPI, folder: Path) -> list[dict[str, Any]]:
    app.state.openenv.recorder.close()
    return lines_in(folder)


def told(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["step"], line.get("seed"), line.get("action", {}).get("number"), line["error"]) for line in lines]


EPISODE = [(0, 7, None, None), (1, None, 5, None)]


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_protocol_v1(http: TestClient, app: FastAPI, folder: Path) -> None:
    with http.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset", "data": {"seed": 7}})
        socket.receive_json()
        socket.send_json({"type": "step", "data": {"number": 5}})
        socket.receive_json()
        socket.send_json({"type": "step", "data": {"kind": "invalid"}})
        assert socket.receive_json()["type"] == "error"
    assert told(recorded(app, folder)) == EPISODE  # what is no action never was a step


async def test_protocol_v2(app: FastAPI, folder: Path) -> None:
    async with GenericEnvClient(app=app) as env:
        await env.reset(seed=7)
        result = await env.step({"number": 5})
    lines = recorded(app, folder)
    assert told(lines) == EPISODE
    assert lines[1]["observation"] == result.observation
    assert lines[1]["environment"] == "probe"
    assert lines[1]["schema"] == app.state.openenv.contract.hash


async def test_batches(app: FastAPI, folder: Path) -> None:
    async with VectorEnvClient(GenericEnvClient, num_envs=3, app=app) as envs:
        await envs.reset(seeds=[7, 7, 7])
        await envs.step([{"number": 5}] * 3)
    lines = recorded(app, folder)
    sessions = {line["session_id"] for line in lines}
    assert len(sessions) == 3
    for session in sessions:
        assert told([line for line in lines if line["session_id"] == session]) == EPISODE


def test_sessions_of_http(http: TestClient, app: FastAPI, folder: Path) -> None:
    session = http.post("/sessions").json()
    headers = {"X-Session-Id": session["session_id"]}
    assert http.post("/reset", json={"seed": 7}, headers=headers).status_code == 200
    assert http.post("/step", json={"action": {"number": 5}, "timeout_s": 9}, headers=headers).status_code == 200
    http.delete(f"/sessions/{session['session_id']}", headers=headers)
    lines = recorded(app, folder)
    assert told(lines) == EPISODE
    assert {line["session_id"] for line in lines} == {session["session_id"]}


def test_the_page(http: TestClient, app: FastAPI, folder: Path) -> None:
    http.post("/web/reset", json={"seed": 7})
    http.post("/web/step", json={"action": {"number": 5}})
    http.get("/health")  # what is written down when a reply is on its way has been, when there is another
    assert told(recorded(app, folder)) == EPISODE


def test_tools_over_mcp(folder: Path) -> None:
    settings = ServerSettings(record=str(folder))
    app = create_app(ToolEnvironment, CallToolAction, CallToolObservation, settings=settings)
    with TestClient(app) as http:
        version = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        first = http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version})
        headers = {"Mcp-Session-Id": first.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
        for method, params in (("tools/list", {}), ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})):
            body = {"jsonrpc": "2.0", "id": 2, "method": method, "params": params}
            assert http.post("/mcp", json=body, headers=headers).status_code == 200
        *_, last = recorded(app, folder)
    assert last["action"] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}
    assert last["observation"]["result"]["structuredContent"] == {"result": 3}
    assert last["error"] is None


async def test_tools_called_by_a_client_of_tools(folder: Path) -> None:
    settings = ServerSettings(record=str(folder))
    app = create_app(ToolEnvironment, CallToolAction, CallToolObservation, settings=settings)
    async with MCPToolClient(app=app) as tools:
        assert await tools.call_tool("add", a=1, b=2) == 3
    *_, last = recorded(app, folder)
    assert last["action"]["tool_name"] == "add"
    assert last["step_arguments"] == {"mcp": "tools/call"}
    assert "3" in json.dumps(last["observation"])


async def test_a_reward_that_was_refused_is_recorded_as_the_error_that_the_client_got(
    app: FastAPI, folder: Path
) -> None:
    async with GenericEnvClient(app=app) as env:
        await env.reset()
        with pytest.raises(StepFailed) as refused:
            await env.step({"kind": "nan_reward"})
    last = recorded(app, folder)[-1]
    assert (last["error"], last["reward"]) == (f"StepFailed: {refused.value.message}", None)


class Complex(ProbeEnvironment):
    def do_complex(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(value=np.zeros(2, dtype=complex), reward=1.0)


class AsyncComplex(AsyncProbe, Complex):
    pass


class InlineComplex(Complex):
    execution = "inline"


@pytest.mark.parametrize("cls", [Complex, InlineComplex, AsyncComplex])
async def test_a_reply_that_was_too_large_is_recorded_as_the_error_that_the_client_got(
    cls: type[ProbeEnvironment], folder: Path
) -> None:
    settings = ServerSettings(record=str(folder), max_reply_mb=0.01)
    app = create_app(cls, ProbeAction, ProbeObservation, settings=settings)
    async with GenericEnvClient(app=app) as env:
        await env.reset()
        with pytest.raises(StepFailed, match="OPENENV_MAX_REPLY_MB") as refused:
            await env.step({"kind": "large", "number": 20_000})
        await env.step({"number": 5})
    _, large, last = recorded(app, folder)
    assert (large["error"], large["observation"]) == (f"StepFailed: {refused.value.message}", None)
    assert (last["error"], last["reward"]) == (None, 1.5)


@pytest.mark.parametrize("cls", [Complex, InlineComplex, AsyncComplex])
def test_what_one_protocol_alone_cannot_say_is_recorded_as_the_error_that_its_client_got(
    cls: type[ProbeEnvironment], folder: Path
) -> None:
    settings = ServerSettings(record=str(folder))
    app = create_app(cls, ProbeAction, ProbeObservation, settings=settings)
    with TestClient(app) as http, http.websocket_connect("/ws") as socket:
        socket.send_json({"type": "step", "data": {"kind": "complex"}})
        answer = socket.receive_json()
        session = http.post("/sessions").json()
        headers = {"X-Session-Id": session["session_id"]}
        assert http.post("/step", json={"action": {"kind": "complex"}}, headers=headers).status_code == 500
    assert answer["type"] == "error"
    first, second = recorded(app, folder)
    for line in (first, second):
        assert line["error"].startswith("StepFailed: field 'value'")
        assert (line["reward"], line["observation"]) == (None, None)


async def test_a_step_that_was_late_is_recorded_as_that(app: FastAPI, folder: Path) -> None:
    ProbeEnvironment.forget()
    async with GenericEnvClient(app=app) as env:
        await env.reset()
        with pytest.raises(StepTimeout):
            await env.step({"kind": "wait"}, timeout_s=0.05)
        ProbeEnvironment.gate.set()
    assert recorded(app, folder)[-1]["error"].startswith("StepTimeout: ")


async def test_a_fork_says_where_it_comes_from(folder: Path) -> None:
    app = create_app(Walk, ProbeAction, ProbeObservation, settings=ServerSettings(record=str(folder)))
    async with GenericEnvClient(app=app) as env:
        await env.reset(seed=1, episode_id="trunk")
        await env.step({})
        branch = await env.fork()
        await env.step({})
        await branch.step({})
        await branch.step({})
        await env.restore(branch)
        await env.step({})
        await branch.close()
    lines = recorded(app, folder)
    trunk = lines[0]["session_id"]
    other = next(line["session_id"] for line in lines if line["session_id"] != trunk)
    found = [(line["session_id"] == trunk, line["episode_id"], line["step"], line.get("source")) for line in lines]
    assert found == [
        (True, "trunk", 0, None),
        (True, "trunk", 1, None),
        (True, "trunk", 2, None),
        (False, "trunk", 2, {"session_id": trunk, "episode_id": "trunk", "step": 1}),
        (False, "trunk", 3, None),
        (True, "trunk", 4, {"session_id": other, "episode_id": "trunk", "step": 3}),
    ]


async def test_no_session_is_recorded_by_a_share_of_none(folder: Path) -> None:
    settings = ServerSettings(record=str(folder), record_share=0)
    app = create_app(ProbeEnvironment, ProbeAction, ProbeObservation, settings=settings)
    async with GenericEnvClient(app=app) as env:
        await env.reset()
    assert recorded(app, folder) == []


def test_the_end_of_the_app_is_the_end_of_its_file(app: FastAPI, folder: Path) -> None:
    with TestClient(app) as http:
        http.post("/web/reset", json={"seed": 7})
        metrics = http.get("/metrics").text
    assert "openenv_records_total" in metrics
    assert "openenv_recording_stopped 0.0" in metrics
    assert [line["seed"] for line in lines_in(folder)] == [7]


def test_a_folder_that_cannot_be_written_is_an_error_when_the_app_is_made(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(InvalidArgument, match=f"cannot record into {place}: {os.strerror(17)}"):
        create_app(ProbeEnvironment, ProbeAction, ProbeObservation, settings=ServerSettings(record=str(place)))
