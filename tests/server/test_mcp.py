"""`/mcp` over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from openenv import __version__
from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.settings import ServerSettings

from ..mcp.environments import AsyncToolEnvironment, SdkToolEnvironment, ToolEnvironment
from .probe import ProbeAction, ProbeEnvironment, ProbeObservation
from .wires import PATIENCE_S, eventually, served

STANDARD = {"MCP-Protocol-Version": "2025-11-25"}
SESSION = "Mcp-Session-Id"


class Client:
    """A client of `/mcp`."""

    def __init__(self, http: TestClient):
        self.http = http
        self.server = http.app.state.openenv
        self._ids = 0

    def post(self, body: Any, **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, (bytes, str)):
            return self.http.post("/mcp", content=body, headers=names)
        return self.http.post("/mcp", json=body, headers=names)

    def ask(self, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
        self._ids += 1
        body = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        response = self.post(body, **(headers or {}))
        assert response.headers["content-type"] == "application/json"
        reply = response.json()
        assert (reply["jsonrpc"], reply["id"]) == ("2.0", self._ids)
        return reply

    def result(self, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
        return self.ask(method, headers, **params)["result"]

    def error(self, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
        return self.ask(method, headers, **params)["error"]

    def call(self, name: str, session: str | None = None, **arguments: Any) -> Any:
        named = {} if session is None else {"session_id": session}
        return self.ask("tools/call", name=name, arguments=arguments, **named)

    def initialize(self, version: str = "2025-11-25") -> tuple[Any, dict[str, str]]:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        response = self.post(body, Accept="application/json, text/event-stream")
        assert response.status_code == 200
        return response.json()["result"], {SESSION: response.headers[SESSION], **STANDARD}


@contextmanager
def client_of(environment: Any = ToolEnvironment, *, settings: dict[str, Any] | None = None, **options: Any):
    options.setdefault("max_concurrent_envs", 4)
    types = options.pop("types", (CallToolAction, CallToolObservation))
    app = create_app(
        environment, *types, env_name="counter", settings=ServerSettings.read({}, **(settings or {})), **options
    )
    with TestClient(app) as http:
        yield Client(http)
    assert app.state.openenv.active_sessions == 0


@pytest.fixture(
    params=[ToolEnvironment, SdkToolEnvironment, AsyncToolEnvironment], ids=["thread", "sdk", "loop"], scope="module"
)
def client(request):
    with client_of(request.param) as client:
        yield client


class TestSessionsOfOpenEnv:
    def test_a_call_without_a_session_has_an_environment_of_its_own(self, client):
        for _ in range(2):
            result = client.call("increase")["result"]
            assert (result["data"], result["is_error"], result["isError"]) == ({"count": 1}, False, False)
        eventually(lambda: client.server.active_sessions == 0)

    def test_a_session_keeps_its_state_until_it_is_closed(self, client):
        session = client.result("openenv/session/create")["session_id"]
        other = client.result("openenv/session/create")["session_id"]
        for count in (1, 2):
            assert client.call("increase", session)["result"]["data"] == {"count": count}
        assert client.call("increase", other)["result"]["data"] == {"count": 1}
        for each in (session, other):
            told = client.result("openenv/session/close", session_id=each)
            assert told == {"session_id": each, "closed": True}
        for error in (
            client.call("increase", session)["error"],
            client.error("openenv/session/close", session_id=session),
        ):
            assert error["code"] == -32602
            assert error["message"].startswith(f"Unknown session_id: {session}")
        eventually(lambda: client.server.active_sessions == 0)

    def test_tools_are_listed_as_the_specification_has_them(self, client):
        tools = {tool["name"]: tool for tool in client.result("tools/list")["tools"]}
        assert tools["add"]["description"] == "Adds two numbers."
        assert tools["add"]["inputSchema"]["required"] == ["a"]
        assert "only_simulation" in tools
        assert "only_production" not in tools

    def test_failures_of_tools_are_errors_that_say_of_which_kind(self, client):
        for name, arguments, kind, words in (
            ("fail", {}, "execution_error", "bad luck"),
            ("jump", {}, "tool_not_found", "there are: add"),
            ("add", {}, "invalid_args", "a:"),
        ):
            error = client.call(name, **arguments)["error"]
            assert (error["code"], error["data"]) == (-32603, {"error_type": kind})
            assert words in error["message"]

    def test_a_full_server_says_how_full(self):
        with client_of(max_concurrent_envs=1) as client:
            session = client.result("openenv/session/create")["session_id"]
            for method in ("openenv/session/create", "initialize"):
                error = client.error(method)
                assert error["code"] == -32000
                assert (error["data"]["active_sessions"], error["data"]["max_sessions"]) == (1, 1)
                assert error["data"]["retryable"] is True
            assert client.call("add", a=1)["error"]["code"] == -32000
            client.result("openenv/session/close", session_id=session)
            assert client.call("add", a=1)["result"]["data"] == 3

    def test_an_environment_that_cannot_be_made_is_an_error(self):
        class Broken(ToolEnvironment):
            def __init__(self) -> None:
                raise OSError("no database")

        with client_of(Broken) as client:
            for method in ("openenv/session/create", "initialize", "tools/list"):
                error = client.error(method)
                assert (error["code"], error["data"]["error"]) == (-32603, "FactoryFailed")
                assert "no database" in error["message"]


class TestWhatCannotBeRead:
    @pytest.mark.parametrize("body", ["", "{", "nope", "3", '"text"', "\x00"])
    def test_no_json(self, client, body):
        response = client.post(body)
        assert response.status_code == 200
        assert response.json()["error"]["code"] == -32700
        assert response.json()["id"] is None

    @pytest.mark.parametrize(
        "body",
        [
            {},
            [],
            {"jsonrpc": "1.0", "method": "ping"},
            {"jsonrpc": "2.0", "id": 1},
            {"jsonrpc": "2.0", "method": "ping", "params": [1]},
        ],
        ids=str,
    )
    def test_no_request(self, client, body):
        assert client.post(body).json()["error"]["code"] == -32600

    def test_unknown_methods_and_wrong_params(self, client):
        error = client.error("resources/list")
        assert error["code"] == -32601
        assert "known methods: initialize" in error["message"]
        for params in ({}, {"name": 3}, {"name": "add", "arguments": [1]}):
            assert client.error("tools/call", **params)["code"] == -32602
        assert client.error("openenv/session/close")["code"] == -32602
        assert client.error("tools/call", name="add", arguments={"a": 1}, session_id=7)["code"] == -32602

    def test_a_body_that_is_too_large(self):
        with client_of(settings={"max_message_mb": 0.01}) as client:
            response = client.post({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": "x" * 20_000}})
            assert response.status_code == 413

    def test_a_result_that_has_no_json_is_its_text(self):
        class Odd(ToolEnvironment):
            def __init__(self) -> None:
                super().__init__()
                self.tool(name="odd")(lambda: object())

        with client_of(Odd) as client:
            result = client.call("odd")["result"]
            assert result["content"][0]["text"].startswith('"<object object at ')
            assert (result["data"], result["isError"]) == (None, False)


class TestTheSpecification:
    @pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
    def test_the_handshake_in_every_version(self, client, version):
        told, headers = client.initialize(version)
        assert told["protocolVersion"] == version
        assert told["capabilities"] == {"tools": {"listChanged": False}}
        assert told["serverInfo"] == {"name": "counter", "version": __version__}
        assert client.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, **headers).status_code == 202
        assert client.result("ping", headers) == {}
        assert client.http.delete("/mcp", headers=headers).status_code == 200

    def test_an_unknown_version_gets_the_newest_that_is_spoken(self, client):
        told, headers = client.initialize("2099-01-01")
        assert told["protocolVersion"] == "2025-11-25"
        client.http.delete("/mcp", headers=headers)

    def test_a_session_has_an_episode_and_keeps_its_state(self, client):
        _, headers = client.initialize()
        assert "add" in [tool["name"] for tool in client.result("tools/list", headers)["tools"]]
        for count in (1, 2):
            result = client.result("tools/call", headers, name="increase", arguments={})
            assert result["structuredContent"] == {"count": count}
            assert result["isError"] is False
            assert "data" not in result
        episode = client.result("tools/call", headers, name="episode", arguments={})
        assert episode["structuredContent"]["result"] == 1
        eventually(lambda: client.server.active_sessions == 1)
        assert client.http.delete("/mcp", headers=headers).status_code == 200
        eventually(lambda: client.server.active_sessions == 0)

    def test_a_tool_that_fails_has_a_result_that_says_so(self, client):
        _, headers = client.initialize()
        for name, words in (("fail", "bad luck"), ("jump", "Unknown tool"), ("add", "a:")):
            result = client.result("tools/call", headers, name=name, arguments={})
            assert result["isError"] is True
            assert words in result["content"][0]["text"]
        assert client.error("tools/call", headers)["code"] == -32602
        client.http.delete("/mcp", headers=headers)

    def test_a_session_that_is_gone_is_404(self, client):
        _, headers = client.initialize()
        client.http.delete("/mcp", headers=headers)
        for response in (
            client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, **headers),
            client.http.delete("/mcp", headers=headers),
            client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, Mcp_Session_Id="nobody"),
        ):
            assert response.status_code == 404
            assert "Session not found" in response.json()["error"]["message"]
        assert client.http.delete("/mcp").status_code == 400

    def test_a_session_whose_environment_cannot_be_reset_is_not_left_behind(self):
        class Unready(ToolEnvironment):
            def reset(self, seed=None, episode_id=None, **kwargs: Any):
                raise RuntimeError("not today")

        with client_of(Unready) as client:
            error = client.error("initialize")
            assert (error["code"], "not today" in error["message"]) == (-32603, True)
            eventually(lambda: client.server.active_sessions == 0)

    @pytest.mark.parametrize("method", ["initialize", "openenv/session/create"])
    def test_a_session_of_a_client_that_left_while_it_was_opened_is_closed(self, method):
        made = threading.Event()

        class Slow(ToolEnvironment):
            def __init__(self) -> None:
                made.wait(20)
                super().__init__()

        app = create_app(Slow, CallToolAction, CallToolObservation, max_concurrent_envs=4)
        with served(app) as address:
            host, port = address.split(":")
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode()
            head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
                raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                eventually(lambda: app.state.openenv.active_sessions == 1)
            # When a later connection is answered, the end of this one has been heard.
            httpx.get(f"http://{address}/health", timeout=PATIENCE_S, trust_env=False)
            made.set()
            eventually(lambda: app.state.openenv.active_sessions == 0)

    def test_batches_are_answered_in_their_order(self, client):
        _, headers = client.initialize()
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "increase", "arguments": {}}}
        batch = [{**call, "id": 1}, {"jsonrpc": "2.0", "method": "notifications/x"}, {**call, "id": "b"}, 5]
        replies = client.post(batch, **headers).json()
        assert [reply["id"] for reply in replies] == [1, "b", None]
        assert [reply["result"]["structuredContent"]["count"] for reply in replies[:2]] == [1, 2]
        assert replies[2]["error"]["code"] == -32600
        assert client.post([{"jsonrpc": "2.0", "method": "notifications/x"}], **headers).status_code == 202
        client.http.delete("/mcp", headers=headers)

    def test_a_batch_has_a_limit(self):
        with client_of(settings={"max_batch": 2}) as client:
            reply = client.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 3).json()
            assert reply["error"]["code"] == -32600
            assert "max_batch" in reply["error"]["message"]

    def test_replies_of_clients_and_notifications_are_taken(self, client):
        assert client.post({"jsonrpc": "2.0", "id": 9, "result": {}}).status_code == 202
        assert client.post({"jsonrpc": "2.0", "method": "tools/list"}, **STANDARD).status_code == 202
        assert client.post({"jsonrpc": "2.0", "method": "notifications/cancelled"}).status_code == 202

    def test_a_request_without_an_id_is_answered_as_existing_clients_expect(self, client):
        reply = client.post({"jsonrpc": "2.0", "method": "tools/list"}).json()
        assert reply["id"] is None
        assert reply["result"]["tools"]

    def test_headers_that_cannot_be_met(self, client):
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert client.post(ping, Accept="text/html").status_code == 406
        assert client.post(ping, Accept="text/event-stream;q=0.5, application/json").status_code == 200
        refused = client.post(ping, MCP_Protocol_Version="2026-07-28")
        assert refused.status_code == 400
        assert refused.json()["error"]["data"]["requested"] == "2026-07-28"
        assert "2025-11-25" in refused.json()["error"]["data"]["supported"]

    def test_the_documentation_of_the_server_has_it(self, client):
        paths = client.http.get("/openapi.json").json()["paths"]
        assert set(paths["/mcp"]) == {"post", "get", "delete"}

    def test_there_is_no_stream(self, client):
        response = client.http.get("/mcp")
        assert (response.status_code, response.headers["allow"]) == (405, "POST, DELETE")


class TestModes:
    def test_production_has_its_own_tools_and_begins_episodes_itself(self):
        with client_of(mode="production") as client:
            tools = [tool["name"] for tool in client.result("tools/list")["tools"]]
            assert "only_production" in tools
            assert "only_simulation" not in tools
            session = client.result("openenv/session/create")["session_id"]
            assert client.call("episode", session)["result"]["data"] == 1
            assert client.call("which", session)["result"]["data"] == "in production"
            client.result("openenv/session/close", session_id=session)
            assert client.call("episode")["result"]["data"] == 1
            for path in ("/reset", "/step"):
                assert client.http.post(path, json={"action": {}}).status_code in {404, 405}

    def test_in_simulation_whoever_makes_a_session_resets_it(self, client):
        session = client.result("openenv/session/create")["session_id"]
        assert client.call("episode", session)["result"]["data"] == 0
        client.result("openenv/session/close", session_id=session)

    def test_the_setting_does_the_same(self):
        with client_of(settings={"mode": "production"}) as client:
            assert client.call("which")["result"]["data"] == "in production"

    def test_a_server_that_registers_its_routes_in_a_mode_tells_its_environments(self):
        from fastapi import FastAPI

        from openenv.server import HTTPEnvServer

        app = FastAPI()
        server = HTTPEnvServer(ToolEnvironment, CallToolAction, CallToolObservation, settings=ServerSettings.read({}))
        server.register_routes(app, mode="production")
        with TestClient(app) as http:
            assert Client(http).call("which")["result"]["data"] == "in production"


class TestWithoutTools:
    def test_an_environment_without_tools_says_so(self):
        with client_of(ProbeEnvironment, types=(ProbeAction, ProbeObservation)) as client:
            for method in ("tools/list", "tools/call", "initialize"):
                error = client.error(method, name="add")
                assert (error["code"], "does not support MCP" in error["message"]) == (-32603, True)
            assert client.result("ping") == {}

    def test_so_does_one_that_a_function_makes(self):
        def make():
            return ProbeEnvironment()

        with client_of(make, types=(ProbeAction, ProbeObservation)) as client:
            assert client.error("tools/list")["code"] == -32603

    def test_a_function_may_make_one_with_tools(self):
        def make():
            return ToolEnvironment()

        with client_of(make) as client:
            assert client.call("add", a=1)["result"]["data"] == 3


class TestKeys:
    KEYS = {"api_keys": "agent:agent-key-0123456789,agent:other-key-0123456789,view:view-key-01234567890"}

    def test_a_session_belongs_to_the_key_that_made_it(self):
        with client_of(settings=self.KEYS) as client:
            mine = {"Authorization": "Bearer agent-key-0123456789"}
            session = client.result("openenv/session/create", mine)["session_id"]
            call = {"name": "add", "arguments": {"a": 1}, "session_id": session}
            assert client.result("tools/call", mine, **call)["data"] == 3
            theirs = {"Authorization": "Bearer other-key-0123456789"}
            assert client.error("tools/call", theirs, **call)["data"]["error"] == "Unauthorized"
            stolen = client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, **theirs, Mcp_Session_Id=session)
            assert stolen.status_code == 401
            client.result("openenv/session/close", mine, session_id=session)

    def test_without_a_key_or_with_one_that_only_looks_nobody_comes_in(self):
        with client_of(settings=self.KEYS) as client:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert client.post(ping).status_code == 401
            assert client.post(ping, Authorization="Bearer view-key-01234567890").status_code == 403
