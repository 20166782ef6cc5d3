"""Sessions that requests name, on one event loop after the other: each call works, or fails at once and says why.

`TestClient` without `with` is such a client: each of its requests has an event loop of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from openenv.errors import UsageError
from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.server.auth import ANONYMOUS
from openenv.server.metadata import load_environment_metadata
from openenv.server.page.gradio import WebInterfaceManager
from openenv.types import Action

from ..mcp.environments import AsyncToolEnvironment, ToolEnvironment
from .probe import AsyncProbe, InlineProbe, ProbeEnvironment, app_of

pytestmark = pytest.mark.timeout(60)
LONG_S = 3600.0


@pytest.fixture(autouse=True)
def probes():
    ProbeEnvironment.forget()
    yield
    ProbeEnvironment.gate.set()


def tools_of(environment: Any) -> TestClient:
    return TestClient(create_app(environment, CallToolAction, CallToolObservation, max_concurrent_envs=4))


def ask(client: TestClient, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("/mcp", json=body).json()


class TestTools:
    def test_a_session_goes_on_from_request_to_request(self):
        client = tools_of(ToolEnvironment)
        session = ask(client, "openenv/session/create")["result"]["session_id"]
        for count in (1, 2):
            told = ask(client, "tools/call", name="increase", arguments={}, session_id=session)
            assert told["result"]["data"] == {"count": count}
        told = ask(client, "tools/call", name="later", arguments={"text": "x"}, session_id=session)
        assert told["result"]["data"] == "X"
        assert ask(client, "openenv/session/close", session_id=session)["result"]["closed"] is True
        assert client.app.state.openenv.active_sessions == 0

    def test_one_that_ran_on_the_loop_has_ended_and_says_so(self):
        client = tools_of(AsyncToolEnvironment)
        session = ask(client, "openenv/session/create")["result"]["session_id"]
        for _ in range(2):
            told = ask(client, "tools/call", name="add", arguments={"a": 1}, session_id=session)
            assert "event loop" in told["error"]["message"]
        assert ask(client, "tools/call", name="add", arguments={"a": 1})["result"]["data"] == 3


class TestSessions:
    @pytest.mark.parametrize("environment", [ProbeEnvironment, InlineProbe])
    def test_a_session_of_http(self, environment):
        client = TestClient(app_of(environment, idle_timeout_s=LONG_S))
        named = {"X-Session-ID": client.post("/sessions").json()["session_id"]}
        client.cookies.clear()
        assert client.post("/reset", json={}, headers=named).status_code == 200
        for _ in range(3):
            assert client.post("/step", json={"action": {"kind": "ok"}}, headers=named).status_code == 200
        assert client.get("/state", headers=named).json()["step_count"] == 3
        with client.websocket_connect(f"/ws?session_id={named['X-Session-ID']}") as socket:
            socket.send_json({"type": "step", "data": {"kind": "ok"}})
            assert socket.receive_json()["type"] == "observation"
        assert client.get("/state", headers=named).json()["step_count"] == 4
        assert client.delete(f"/sessions/{named['X-Session-ID']}").status_code == 200

    def test_the_page(self):
        client = TestClient(app_of())
        assert client.post("/web/reset", json={}).status_code == 200
        for steps in (1, 2):
            assert client.post("/web/step", json={"action": {"kind": "ok"}}).status_code == 200
            assert client.get("/web/state").json()["step_count"] == steps

    def test_the_page_of_one_that_ran_on_the_loop(self):
        client = TestClient(app_of(AsyncProbe))
        assert client.post("/web/reset", json={}).status_code == 200
        refused = client.post("/web/step", json={"action": {"kind": "ok"}})
        assert refused.status_code in (404, 409, 410)
        assert "event loop" in refused.text
        assert client.post("/web/reset", json={}).status_code == 200


class TestServer:
    def test_a_loop_that_only_stands_still_keeps_its_sessions(self):
        server = app_of().state.openenv
        with asyncio.Runner() as first, asyncio.Runner() as second:
            shared = first.run(server.shared_sessions.open(ANONYMOUS))
            for _ in range(2):
                with pytest.raises(UsageError, match="another event loop"):
                    second.run(shared.call(lambda session, done: session.step(Action(), done)))
            with pytest.raises(UsageError, match="another event loop"):
                second.run(shared.close())
            first.run(shared.close())

    def test_a_call_that_its_loop_did_not_wait_for_ends_on_the_next_one(self):
        server = app_of(ProbeEnvironment).state.openenv
        action = server.action_cls(kind="wait")

        async def leave() -> Any:
            shared = await server.shared_sessions.open(ANONYMOUS)
            shared.submit(lambda session, done: session.step(action, done), lambda *_: None)
            return shared

        async def come() -> Any:
            ProbeEnvironment.gate.set()
            return await shared.call(lambda session, done: session.read_state(done))

        shared = asyncio.run(leave())
        assert asyncio.run(come()).step_count == 1
        asyncio.run(shared.close())

    def test_a_page_of_python_outlives_the_servers_loop(self):
        server = app_of().state.openenv
        page = WebInterfaceManager(server, load_environment_metadata(ProbeEnvironment, "probe"))

        async def begin() -> None:
            page.home = asyncio.get_running_loop()
            await page.reset_environment()

        asyncio.run(begin())
        assert asyncio.run(page.step_environment({"kind": "ok"}))["done"] is False
        asyncio.run(server.aclose())
