from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from openenv.client import MCPToolClient, memory
from openenv.client.endpoints import mcp_url, websocket_url
from openenv.client.mcp_client import GenericMCPObservation, SyncMCPToolClient
from openenv.errors import (
    ConnectionFailed,
    InvalidAction,
    ServerFull,
    SessionLost,
    StepTimeout,
    ToolFailed,
    UsageError,
)
from openenv.mcp import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation
from openenv.recording.difference import within
from openenv.recording.reader import Recording
from openenv.replay import ReplayOutcome, ReplayPlayer, ReplayRules, app_target
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import State

from ..chaos.proxy import Proxy
from ..mcp.environments import AsyncToolEnvironment, ToolEnvironment
from ..server.wires import served

pytestmark = pytest.mark.real


def app_of(environment: Any = ToolEnvironment, *, most: int = 8, **settings: Any) -> Any:
    settings.setdefault("resume_window_s", 0.0)
    return create_app(
        environment,
        CallToolAction,
        CallToolObservation,
        env_name="counter",
        max_concurrent_envs=most,
        settings=ServerSettings.read({}, **settings),
    )


@pytest.fixture(scope="module", params=[ToolEnvironment, AsyncToolEnvironment], ids=["thread", "loop"])
def address(request):
    with served(app_of(request.param)) as address:
        yield f"http://{address}" if "://" not in str(address) else address


@contextmanager
def at(app: Any):
    with served(app) as address:
        yield f"http://{address}" if "://" not in str(address) else address


@pytest.mark.parametrize("mode", ["simulation", "SIMULATION"])
def test_there_is_no_simulation_mode(mode):
    with pytest.raises(UsageError, match="leave mode out"):
        MCPToolClient("127.0.0.1:9", mode=mode)


class TestBothModes:
    @pytest.fixture(params=[None, "production"], ids=["steps", "requests"])
    def mode(self, request):
        return request.param

    async def test_tools_are_listed_and_called_in_one_session(self, address, mode):
        async with MCPToolClient(address, mode=mode) as env:
            assert await env.call_tool("add", a=1) == 3
            assert await env.call_tool("increase") == {"count": 1}
            assert await env.call_tool("increase", by=2) == {"count": 3}
            assert await env.call_tool("later", text="x") == "X"
            assert await env.call_tool("nothing") is None
            tool = await env.get_tool("add")
            assert (tool.name, tool.description, tool.input_schema["required"]) == ("add", "Adds two numbers.", ["a"])
            assert await env.get_tool("jump") is None
            assert await env.has_tool("fail")

    @pytest.mark.parametrize(
        ("name", "arguments", "kind", "blame"),
        [
            ("fail", {}, "execution_error", "environment"),
            ("jump", {}, "tool_not_found", "client"),
            ("add", {"a": "x"}, "invalid_args", "client"),
        ],
    )
    async def test_a_tool_that_gives_nothing_raises_and_the_session_goes_on(
        self, address, mode, name, arguments, kind, blame
    ):
        async with MCPToolClient(address, mode=mode) as env:
            await env.call_tool("increase")
            with pytest.raises(ToolFailed) as caught:
                await env.call_tool(name, **arguments)
            error = caught.value
            assert isinstance(error, RuntimeError)
            assert (error.tool_name, error.error_type, error.blame) == (name, kind, blame)
            again = pickle.loads(pickle.dumps(error))
            assert (str(again), again.error_type, again.blame) == (str(error), kind, blame)
            assert await env.call_tool("increase") == {"count": 2}

    def test_without_await(self, address, mode):
        with MCPToolClient(address, mode=mode) as env:
            assert env.call_tool("add", a=1) == 3
            assert "add" in [tool.name for tool in env.list_tools()]
            assert env.has_tool("add")
        client = MCPToolClient(base_url=address, mode=mode)
        assert client.call_tool("add", a=4) == 6
        client.close()
        with MCPToolClient(address, mode=mode).sync() as sync:
            assert isinstance(sync, SyncMCPToolClient)
            assert sync.call_tool("add", a=1, b=1) == 2
            assert sync.get_tool("later").name == "later"
            assert not sync.has_tool("jump")
            assert sync.list_tools(use_cache=False)

    async def test_without_await_inside_a_running_event_loop_and_with_what_a_subclass_overrides(self, address, mode):
        class Polite(MCPToolClient):
            async def call_tool(self, *name: str, **arguments: Any) -> Any:
                return "please", await super().call_tool(*name, **arguments)

            async def twice(self, number: int) -> Any:
                return await self.call_tool("add", a=number, b=number)

        with Polite(address, mode=mode).sync() as sync:
            assert sync.call_tool("add", a=1, b=1) == ("please", 2)
            assert sync.twice(2) == ("please", 4)
            assert sync.has_tool("add")

    async def test_several_calls_at_a_time(self, address, mode):
        async with MCPToolClient(address, mode=mode) as env:
            found = await asyncio.gather(*(env.call_tool("add", a=number, b=0) for number in range(20)))
            assert found == list(range(20))

    def test_from_several_threads(self, address, mode):
        found: list[Any] = []

        def use() -> None:
            with MCPToolClient(address, mode=mode) as env:
                found.extend(env.call_tool("increase") for _ in range(3))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [each["count"] for each in found].count(3) == 4

    async def test_a_tool_may_have_an_argument_called_name(self, mode):
        class Named(ToolEnvironment):
            def __init__(self) -> None:
                super().__init__()
                self.tool()(greet)

        def greet(name: str) -> str:
            return f"hello {name}"

        with at(app_of(Named)) as address:
            async with MCPToolClient(address, mode=mode) as env:
                assert await env.call_tool("greet", name="you") == "hello you"
                assert await env.call_tool(name="add", a=1) == 3
                for wrong in ((), ("add", "b")):
                    with pytest.raises(TypeError, match="name of the tool"):
                        await env.call_tool(*wrong)

    async def test_tools_are_asked_for_once_unless_they_shall_be_asked_again(self, mode):
        class Growing(ToolEnvironment):
            def __init__(self) -> None:
                super().__init__()
                self.tool(name="grow")(lambda: str(self.tool(name="grown")(lambda: "grown")))

        with at(app_of(Growing)) as address:
            async with MCPToolClient(address, mode=mode) as env:
                assert not await env.has_tool("grown")
                await env.call_tool("grow")
                assert "grown" not in [tool.name for tool in await env.list_tools()]
                assert "grown" in [tool.name for tool in await env.list_tools(use_cache=False)]
                assert await env.has_tool("grown")

    async def test_a_full_server(self, mode):
        with at(app_of(most=1)) as address:
            async with MCPToolClient(address, mode=mode) as first:
                await first.call_tool("increase")
                async with MCPToolClient(address, mode=mode) as second:
                    with pytest.raises(ServerFull) as caught:
                        await second.call_tool("increase")
                    assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)

    async def test_a_connection_that_is_lost_takes_the_session_along(self, mode):
        with at(app_of()) as address, Proxy(urlsplit(address).port) as proxy:
            async with MCPToolClient(proxy.url, mode=mode) as env:
                assert await env.call_tool("increase") == {"count": 1}
                await asyncio.to_thread(proxy.cut_all, 1, 0.01)
                with pytest.raises(ConnectionFailed):
                    for _ in range(2):
                        await env.call_tool("increase")
                with pytest.raises(SessionLost):
                    await env.call_tool("increase")
                await env.connect()
                assert await env.call_tool("increase") == {"count": 1}

    async def test_a_call_that_takes_too_long(self, mode):
        over = threading.Event()

        class Slow(ToolEnvironment):
            def __init__(self) -> None:
                super().__init__()
                self.tool(name="wait")(lambda: str(over.wait(20)))

        with at(app_of(Slow)) as address:
            async with MCPToolClient(address, mode=mode) as env:
                assert await env.call_tool("increase") == {"count": 1}
                env._message_timeout_s = 0.1
                with pytest.raises(StepTimeout):
                    await env.call_tool("wait")
                over.set()

    async def test_nobody_is_there(self, mode):
        with pytest.raises(ConnectionFailed):
            await MCPToolClient("127.0.0.1:9", mode=mode).call_tool("add", a=1)

    async def test_after_close_there_is_no_session(self, address, mode):
        env = MCPToolClient(address, mode=mode)
        await env.call_tool("increase")
        await env.close()
        with pytest.raises(SessionLost):
            await env.call_tool("increase")
        await env.connect()
        assert await env.call_tool("increase") == {"count": 1}
        await env.close()

    @pytest.mark.slow
    def test_a_client_that_nobody_has_any_more_is_closed_with_its_process_in_silence(self, address, mode):
        # In development mode, asyncio warns of callbacks that a busy machine slows down.
        program = f"""
import gc, logging
from openenv.client import MCPToolClient
logging.getLogger("asyncio").setLevel("ERROR")
MCPToolClient({address!r}, mode={mode!r}).list_tools()
gc.collect()
"""
        command = [sys.executable, "-W", "error", "-X", "dev", "-c", program]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stderr) == (0, "")

    async def test_it_is_pickled_without_its_connection(self, address, mode):
        env = MCPToolClient(address, mode=mode)
        await env.list_tools()
        await env.close()
        copy = pickle.loads(pickle.dumps(env))
        assert await copy.call_tool("increase") == {"count": 1}
        other = await copy.new_session()
        assert await other.call_tool("increase") == {"count": 1}
        await copy.close()


class Counting(ToolEnvironment):
    """Counts each step, as environments with a `step` of their own do."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self.steps += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)


class TestCallsThatAreNoSteps:
    @pytest.mark.parametrize("environment", [Counting, AsyncToolEnvironment], ids=["thread", "loop"])
    @pytest.mark.parametrize("version", ["v2", "v1"])
    async def test_tools_that_are_called_and_listed_are_no_steps(self, environment, version, monkeypatch):
        if version == "v1":
            monkeypatch.setattr(memory, "SUBPROTOCOL", None)
        async with MCPToolClient(app=app_of(environment)) as env:
            await env.reset()
            for number in range(1, 10):
                assert await env.call_tool("increase") == {"count": number}
                assert await env.list_tools(use_cache=False)
            with pytest.raises(ToolFailed) as caught:
                await env.call_tool("fail")
            assert (caught.value.tool_name, caught.value.error_type) == ("fail", "execution_error")
            assert (await env.state()).step_count == 0
            for _ in range(5):
                await env.step(CallToolAction(tool_name="increase"))
            assert (await env.state()).step_count == 5
            assert await env.call_tool("increase") == {"count": 15}
            env.use_production_mode = False
            assert await env.call_tool("increase") == {"count": 16}
            with pytest.raises(ToolFailed, match="Tool 'fail' failed: "):
                await env.call_tool("fail")
            assert (await env.state()).step_count == 7

    async def test_what_a_cut_connection_leaves_in_doubt_is_called_once(self):
        with at(app_of(Counting, resume_window_s=20.0)) as address, Proxy(urlsplit(address).port) as proxy:
            async with MCPToolClient(proxy.url) as env:
                for number in range(1, 13):
                    call = asyncio.ensure_future(env.call_tool("increase"))
                    await asyncio.to_thread(proxy.cut_all, 400, 0.01)
                    assert await call == {"count": number}

    async def test_a_call_that_is_late_takes_no_session_along_that_can_be_stopped(self):
        with at(app_of(AsyncToolEnvironment)) as address:
            async with MCPToolClient(address) as env:
                assert await env.call_tool("increase") == {"count": 1}
                env._message_timeout_s = 0.1
                with pytest.raises(StepTimeout):
                    await env.call_tool("hang_later")
                env._message_timeout_s = 20.0
                assert await env.call_tool("increase") == {"count": 2}

    @pytest.mark.parametrize("where", ["client", "server"])
    async def test_a_record_of_them_can_be_played_again(self, where, tmp_path):
        app = app_of(Counting, **({"record": str(tmp_path)} if where == "server" else {}))
        async with MCPToolClient(app=app, record=tmp_path if where == "client" else None) as env:
            await env.reset(seed=1)
            await env.call_tool("increase", by=3)
            with pytest.raises(ToolFailed):
                await env.call_tool("fail")
            await env.step(CallToolAction(tool_name="increase"))
        await app.state.openenv.aclose()
        (episode,) = Recording(tmp_path).episodes()
        actions = [(line.action or {}).get("tool_name") for line in episode.transitions()]
        assert actions == [None, "increase", "fail", "increase"]
        venue = app_target("counter", app_of(Counting))
        verdict = await ReplayPlayer(episode, venue, ReplayRules(within(0.0), unseeded=True)).verdict()
        await venue.aclose()
        assert (verdict.outcome, verdict.steps, verdict.note) == (ReplayOutcome.SAME, 3, ""), verdict.sentence()


class TestToolsThatAreClients:
    """A tool may be a client of its own server: no session waits for another one's thread or loop."""

    @pytest.mark.parametrize("base", [ToolEnvironment, AsyncToolEnvironment], ids=["thread", "loop"])
    @pytest.mark.parametrize("mode", [None, "production"], ids=["steps", "requests"])
    def test_synchronously_and_asynchronously(self, base, mode):
        class Calling(base):
            def __init__(self) -> None:
                super().__init__()

                @self.tool()
                def ask(url: str) -> int:
                    with MCPToolClient(url, mode=mode) as env:
                        return int(env.call_tool("add", a=1))

                @self.tool()
                async def ask_later(url: str) -> int:
                    async with MCPToolClient(url, mode=mode) as env:
                        return int(await env.call_tool("add", a=2))

        with at(app_of(Calling)) as address, MCPToolClient(address, mode=mode) as env:
            assert env.call_tool("ask", url=address) == 3
            assert env.call_tool("ask_later", url=address) == 4


class LimitedObservation(CallToolObservation):
    truncated: bool = False


class LimitedToolEnvironment(ToolEnvironment):
    """Cuts an episode short when it has counted to three."""

    def step(self, action, timeout_s=None, **kwargs):
        seen = super().step(action, timeout_s=timeout_s, **kwargs)
        over = self.count >= 3
        return LimitedObservation(tool_name=seen.tool_name, result=seen.result, done=over, truncated=over)


class TestSteps:
    async def test_reset_step_and_state_are_of_the_same_session(self, address):
        async with MCPToolClient(address) as env:
            result = await env.reset(seed=3)
            assert isinstance(result.observation, GenericMCPObservation)
            assert result.metadata == {"seed": 3}
            result = await env.step(CallToolAction(tool_name="increase", arguments={"by": 5}))
            assert isinstance(result.observation, CallToolObservation)
            assert result.observation.result["data"] == {"count": 5}
            assert isinstance((await env.step(ListToolsAction())).observation, ListToolsObservation)
            state = await env.state()
            assert isinstance(state, State)
            assert state.count == 5
            with pytest.raises(InvalidAction):
                await env.step({"type": "call_tool"})

    async def test_an_observation_may_have_fields_of_the_environments_own(self):
        async with MCPToolClient(app=app_of(LimitedToolEnvironment)) as env:
            await env.reset()
            assert await env.call_tool("increase", by=2) == {"count": 2}
            result = await env.step(CallToolAction(tool_name="increase"))
            assert isinstance(result.observation, CallToolObservation)
            assert result.observation.result["data"] == {"count": 3}
            assert result.observation.truncated
            assert (result.done, result.truncated, result.terminated) == (True, True, False)

    async def test_in_this_process(self):
        async with MCPToolClient(app=app_of()) as env:
            await env.reset()
            assert await env.call_tool("increase") == {"count": 1}

    async def test_of_several_servers_the_next_is_tried_and_its_connections_count(self):
        with at(app_of(mode="production")) as address:
            async with MCPToolClient(["127.0.0.1:1", address], mode="production") as env:
                assert await env.call_tool("only_production") == "production"
                assert [endpoint.connections for endpoint in env._endpoints.all] == [0, 1]
                first, second = MCPToolClient([address, "127.0.0.1:1"], mode="production"), env._endpoints
                second.all[0].resting = 0.0  # so that it is asked first, again
                async with first:
                    assert await first.call_tool("only_production") == "production"
                    assert [endpoint.connections for endpoint in second.all] == [0, 2]
            assert [endpoint.connections for endpoint in second.all] == [0, 0]

    async def test_against_a_server_in_production(self):
        with at(app_of(mode="production")) as address:
            async with MCPToolClient(address) as env:
                assert await env.call_tool("only_production") == "production"
                await env.reset()


class TestRequests:
    @pytest.mark.parametrize("what", ["reset", "state", "step"])
    async def test_what_drives_an_episode_is_refused(self, address, what):
        async with MCPToolClient(address, mode="production") as env:
            arguments = (ListToolsAction(),) if what == "step" else ()
            with pytest.raises(UsageError, match=f"{what} is not for clients in production mode"):
                await getattr(env, what)(*arguments)

    async def test_the_environment_variable_does_the_same(self, address, monkeypatch):
        monkeypatch.setenv("OPENENV_CLIENT_MODE", "production")
        async with MCPToolClient(address) as env:
            with pytest.raises(UsageError, match="OPENENV_CLIENT_MODE"):
                await env.reset()
            assert await env.call_tool("add", a=1) == 3

    async def test_a_server_in_production_has_begun_the_episode(self):
        with at(app_of(mode="production")) as address:
            async with MCPToolClient(address, mode="production") as env:
                assert await env.call_tool("episode") == 1
                assert await env.call_tool("which") == "in production"

    async def test_it_needs_a_server(self):
        with pytest.raises(UsageError, match="pass base_url"):
            await MCPToolClient(app=app_of(), mode="production").call_tool("add", a=1)

    @pytest.mark.parametrize(
        ("base", "endpoint"),
        [
            ("http://host:1", "ws://host:1/mcp"),
            ("https://host/prefix/", "wss://host/prefix/mcp"),
            ("ws://host:1/ws?a=b", "ws://host:1/mcp?a=b"),
        ],
    )
    def test_where_requests_go(self, base, endpoint):
        assert mcp_url(websocket_url(base)) == endpoint

    async def test_a_key_is_shown(self):
        with at(app_of(api_keys="agent:agent-key-0123456789")) as address:
            async with MCPToolClient(address, mode="production", api_key="agent-key-0123456789") as env:
                assert await env.call_tool("add", a=1) == 3
