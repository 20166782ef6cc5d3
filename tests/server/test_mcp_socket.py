"""`/mcp` over WebSocket, and the `mcp` frames of `/ws`."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..mcp.environments import AsyncToolEnvironment, SdkToolEnvironment, ToolEnvironment
from .wires import eventually

KEYS = {"api_keys": "agent:agent-key-0123456789,view:view-key-01234567890"}


@contextmanager
def app_of(environment: Any = ToolEnvironment, types: Any = (CallToolAction, CallToolObservation), **settings: Any):
    app = create_app(
        environment, *types, max_concurrent_envs=2, env_name="counter", settings=ServerSettings.read({}, **settings)
    )
    with TestClient(app) as http:
        yield http
        eventually(lambda: app.state.openenv.active_sessions == 0)


@pytest.fixture(params=[ToolEnvironment, SdkToolEnvironment, AsyncToolEnvironment], ids=["thread", "sdk", "loop"])
def http(request):
    with app_of(request.param) as http:
        yield http


def ask(socket: Any, method: str, request_id: Any = 1, **params: Any) -> Any:
    socket.send_text(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
    reply = socket.receive_json()
    assert reply["id"] == request_id
    return reply


class TestTheSocket:
    def test_a_connection_is_a_session(self, http):
        server = http.app.state.openenv
        with http.websocket_connect("/mcp") as socket:
            assert server.active_sessions == 0
            for count in (1, 2):
                result = ask(socket, "tools/call", name="increase", arguments={})["result"]
                assert result["data"] == {"count": count}
            session = ask(socket, "openenv/session/create")["result"]["session_id"]
            assert ask(socket, "openenv/session/create")["result"]["session_id"] == session
            assert ask(socket, "tools/call", name="increase", session_id=session)["result"]["data"] == {"count": 3}
            assert server.active_sessions == 1
        eventually(lambda: server.active_sessions == 0)

    def test_it_may_be_closed_and_another_one_begun(self, http):
        with http.websocket_connect("/mcp") as socket:
            session = ask(socket, "openenv/session/create")["result"]["session_id"]
            ask(socket, "tools/call", name="increase")
            assert ask(socket, "openenv/session/close", session_id=session)["result"]["closed"]
            assert ask(socket, "tools/call", name="increase")["result"]["data"] == {"count": 1}

    def test_the_handshake_of_the_specification(self, http):
        with http.websocket_connect("/mcp", subprotocols=["mcp"]) as socket:
            assert socket.accepted_subprotocol == "mcp"
            assert (
                ask(socket, "initialize", protocolVersion="2025-06-18")["result"]["protocolVersion"] == "2025-06-18"
            )
            socket.send_text('{"jsonrpc":"2.0","method":"notifications/initialized"}')
            result = ask(socket, "tools/call", "x", name="fail")["result"]
            assert result["isError"] is True
            assert ask(socket, "tools/call", name="episode")["result"]["structuredContent"]["result"] == 1

    def test_what_cannot_be_read_is_answered_and_the_connection_lives_on(self, http):
        with http.websocket_connect("/mcp") as socket:
            for text, code in (("{", -32700), ("[]", -32600), ("{}", -32600)):
                socket.send_text(text)
                assert socket.receive_json()["error"]["code"] == code
            socket.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
            assert socket.receive_json()["result"] == {}
            assert ask(socket, "zz")["error"]["code"] == -32601

    def test_a_batch(self, http):
        with http.websocket_connect("/mcp") as socket:
            socket.send_text(json.dumps([{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(2)]))
            assert [reply["id"] for reply in socket.receive_json()] == [0, 1]

    @pytest.mark.parametrize("environment", [AsyncToolEnvironment, ToolEnvironment])
    def test_a_client_that_leaves_in_the_middle_of_a_call_takes_its_session_along(self, environment):
        class Leaving(environment):
            # On a thread, the session ends when the tool's time is over; on the loop, at once.
            tool_timeout_s = 0.2 if environment is ToolEnvironment else 30.0

        with app_of(Leaving) as http:
            server = http.app.state.openenv
            with http.websocket_connect("/mcp") as socket:
                socket.send_text('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang_later"}}')
                eventually(lambda: server.active_sessions == 1)

    def test_a_full_server(self):
        with app_of() as http, http.websocket_connect("/mcp") as first, http.websocket_connect("/mcp") as second:
            for socket in (first, second):
                ask(socket, "tools/call", name="increase")
            with http.websocket_connect("/mcp") as third:
                error = ask(third, "tools/call", name="increase")["error"]
                assert (error["code"], error["data"]["max_sessions"]) == (-32000, 2)

    def test_a_message_that_is_too_large_ends_the_connection(self):
        with app_of(max_message_mb=0.01) as http:
            with http.websocket_connect("/mcp") as socket:
                socket.send_text("x" * 20_000)
                with pytest.raises(WebSocketDisconnect) as caught:
                    socket.receive_text()
                assert caught.value.code == 1009

    def test_keys(self):
        with app_of(**KEYS) as http:
            mine = {"Authorization": "Bearer agent-key-0123456789"}
            with http.websocket_connect("/mcp", headers=mine) as socket:
                assert ask(socket, "tools/call", name="add", arguments={"a": 1})["result"]["data"] == 3
            for headers in ({}, {"Authorization": "Bearer view-key-01234567890"}):
                with pytest.raises(WebSocketDenialResponse), http.websocket_connect("/mcp", headers=headers):
                    pass


class TestFramesOfTheEnvironmentEndpoint:
    @staticmethod
    def frame(socket: Any, data: Any) -> Any:
        socket.send_text(json.dumps({"type": "mcp", "data": data}))
        reply = socket.receive_json()
        assert reply["type"] == "mcp"
        return reply["data"]

    @staticmethod
    def step(socket: Any, **action: Any) -> Any:
        socket.send_text(json.dumps({"type": "step", "data": action}))
        return socket.receive_json()

    def rpc(self, socket: Any, method: str, **params: Any) -> Any:
        return self.frame(socket, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def test_they_use_the_tools_of_the_connections_own_environment(self, http):
        with http.websocket_connect("/ws") as socket:
            socket.send_text('{"type":"reset"}')
            socket.receive_json()
            assert self.rpc(socket, "tools/call", name="increase")["result"]["data"] == {"count": 1}
            reply = self.step(socket, type="call_tool", tool_name="increase", arguments={"by": 4})
            assert reply["data"]["observation"]["result"]["data"] == {"count": 5}
            assert self.rpc(socket, "tools/call", name="episode")["result"]["data"] == 1
            assert "add" in [tool["name"] for tool in self.rpc(socket, "tools/list")["result"]["tools"]]
            assert self.rpc(socket, "openenv/session/create")["result"]["session_id"]
            assert self.rpc(socket, "ping")["result"] == {}

    def test_failures_are_replies(self, http):
        with http.websocket_connect("/ws") as socket:
            assert self.rpc(socket, "tools/call", name="fail")["error"]["data"] == {"error_type": "execution_error"}
            assert self.rpc(socket, "tools/call")["error"]["code"] == -32602
            assert self.rpc(socket, "initialize")["error"]["code"] == -32601
            assert self.frame(socket, {"id": 3})["error"]["code"] == -32600

    def test_tool_actions_are_steps(self, http):
        with http.websocket_connect("/ws") as socket:
            listed = self.step(socket, type="list_tools")["data"]["observation"]
            assert {"name", "description", "input_schema"} == set(listed["tools"][0])
            assert listed.keys() == {"metadata", "tools"}
            told = self.step(socket, type="call_tool", tool_name="jump")["data"]
            assert told["observation"]["error"]["error_type"] == "tool_not_found"
            assert (told["reward"], told["done"]) == (None, False)

    @pytest.mark.parametrize(
        ("action", "place"),
        [
            ({"type": "call_tool"}, ["tool_name"]),
            ({"type": "call_tool", "tool_name": "add", "x": 1}, ["x"]),
            ({"type": "list_tools", "x": 1}, ["x"]),
            ({"arguments": 3, "tool_name": "add"}, ["arguments"]),
        ],
    )
    def test_a_wrong_tool_action_is_told_by_its_own_fields(self, http, action, place):
        with http.websocket_connect("/ws") as socket:
            reply = self.step(socket, **action)
            assert reply["type"] == "error"
            assert reply["data"]["code"] == "VALIDATION_ERROR"
            assert [fault["loc"] for fault in reply["data"]["errors"]] == [place]

    def test_an_environment_with_actions_of_its_own_has_both_kinds(self):
        from ..mcp.environments import Move

        with app_of(types=(Move, Observation)) as http, http.websocket_connect("/ws") as socket:
            assert self.step(socket, by=3)["data"]["reward"] == 3.0
            assert self.step(socket, tool_name="add", type="call_tool", arguments={"a": 1})["data"]["observation"]
            assert self.step(socket, by="x")["data"]["errors"][0]["loc"] == ["by"]
            assert http.post("/step", json={"action": {"type": "list_tools"}}).json()["observation"]["tools"]
            assert http.get("/schema").json()["action"]["title"] == "Move"

    def test_a_function_that_makes_environments_leaves_it_open_what_an_action_is(self):
        def make():
            return ToolEnvironment()

        with app_of(make, types=(Action, Observation)) as http, http.websocket_connect("/ws") as socket:
            assert self.step(socket, type="list_tools")["data"]["observation"]["tools"]
