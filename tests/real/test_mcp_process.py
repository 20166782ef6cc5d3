"""The official MCP client, in a process of its own, against our server: under plain uvicorn, and with two workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openenv.client.mcp_client import MCPToolClient

from ..cli.process import LIMIT_S, serving
from ..server.wires import eventually, served

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="several workers")]

APP = """
import os

from fastmcp import FastMCP

from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment
from openenv.server import create_app
from openenv.types import Observation, State


class Counter(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("counter")
        self.count = 0
        self.resets = 0

        @mcp.tool
        def increase(by: int = 1) -> dict:
            self.count += by
            return {"count": self.count, "pid": os.getpid(), "resets": self.resets}

        @mcp.tool
        def fail() -> str:
            raise ValueError("bad luck")

        super().__init__(mcp)

        @self.tool(mode="production")
        def which() -> str:
            return "production"

        @self.tool(mode="simulation")
        def which() -> str:
            return "simulation"

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.resets += 1
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State(step_count=self.count)


app = create_app(Counter, CallToolAction, CallToolObservation, max_concurrent_envs=16)
"""

CLIENT = """
import asyncio, json, sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(url):
    async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
        told = await session.initialize()
        tools = await session.list_tools()
        counts = [await session.call_tool("increase", {"by": by}) for by in (1, 2, 3)]
        failed = [await session.call_tool(name, arguments) for name, arguments in WRONG]
        await session.send_ping()
        again = await session.call_tool("increase", {})
        print(json.dumps({
            "server": told.serverInfo.name,
            "tools": sorted(tool.name for tool in tools.tools),
            "counts": [result.structuredContent for result in counts],
            "failed": [[result.isError, result.content[0].text] for result in failed],
            "again": again.structuredContent["count"],
        }), flush=True)
        await asyncio.to_thread(sys.stdin.read)


WRONG = [("fail", {}), ("jump", {}), ("increase", {"by": "much"})]
asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def official_client(url: str) -> Iterator[Any]:
    """What the official client saw. Its session is there for as long as the block."""
    command = [sys.executable, "-W", "ignore", "-c", CLIENT, f"{url}/mcp"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            seen = process.stdout.readline()
            yield json.loads(seen) if seen else pytest.fail(process.stderr.read())
            _, complaints = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, complaints
        finally:
            process.kill()


def check(seen: Any) -> int:
    """Holds what it saw against what must be seen; returns the process that its session was in."""
    assert seen["server"] == "Counter"
    assert seen["tools"] == ["fail", "increase", "which"]
    assert [count["count"] for count in seen["counts"]] == [1, 3, 6]
    assert {count["resets"] for count in seen["counts"]} == {1}
    (pid,) = {count["pid"] for count in seen["counts"]}
    (raised, jumped, wrong) = seen["failed"]
    assert raised == [True, "Error calling tool 'fail': bad luck"]
    assert jumped[0] is wrong[0] is True
    assert "there are: increase, fail" in jumped[1]
    assert "by:" in wrong[1]
    assert seen["again"] == 7
    return int(pid)


@contextmanager
def project(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "tools_app.py").write_text(APP)
    sys.path.insert(0, str(tmp_path))
    try:
        import tools_app

        yield tools_app.app
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("tools_app", None)


def test_under_plain_uvicorn(tmp_path):
    with project(tmp_path) as app, served(app, ws="websockets-sansio", http="h11") as address:
        with official_client(f"http://{address}") as seen:
            check(seen)
        eventually(lambda: app.state.openenv.active_sessions == 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tools")
    (directory / "tools_app.py").write_text(APP)
    with serving("tools_app:app", "--workers", "2", cwd=directory) as server:
        yield server


@pytest.mark.slow
class TestTwoWorkers:
    def test_the_official_client_keeps_its_session(self, server):
        with ExitStack() as clients:
            seen = [clients.enter_context(official_client(server.url)) for _ in range(4)]
            assert len(set(map(check, seen))) == 2
        eventually(lambda: not server.get("/sessions"))

    def test_sessions_named_in_params_find_their_worker_on_one_kept_connection(self, server):
        def ask(http: httpx.Client, method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return http.post("/mcp", json=body).json()

        with httpx.Client(base_url=server.url, timeout=LIMIT_S) as one, httpx.Client(base_url=server.url) as two:
            sessions = [ask(http, "openenv/session/create")["result"]["session_id"] for http in (one, two) * 3]
            pids = set()
            for http in (one, two):
                for session in sessions:
                    result = ask(http, "tools/call", name="increase", session_id=session)["result"]
                    pids.add(result["data"]["pid"])
                    assert result["data"]["count"] == (1 if http is one else 2)
            assert len(pids) == 2
            for session in sessions:
                assert ask(two, "openenv/session/close", session_id=session)["result"]["closed"] is True
                assert ask(one, "tools/call", name="increase", session_id=session)["error"]["code"] == -32602

    @pytest.mark.parametrize("mode", [None, "production"])
    def test_our_client_has_one_session_in_either_mode(self, server, mode):
        with MCPToolClient(server.url, mode=mode) as env:
            results = [env.call_tool("increase") for _ in range(3)]
            assert [result["count"] for result in results] == [1, 2, 3]
            assert env.call_tool("which") == "simulation"


@pytest.mark.slow
def test_environments_in_processes_of_their_own_know_the_mode(tmp_path):
    (tmp_path / "tools_app.py").write_text(APP)
    with serving("tools_app:app", "--isolation", "process", cwd=tmp_path, OPENENV_MODE="production") as server:
        with official_client(server.url) as seen:
            check(seen)
        with MCPToolClient(server.url, mode="production") as env:
            assert env.call_tool("which") == "production"
        with MCPToolClient(server.url) as env:
            assert env.call_tool("which") == "production"
