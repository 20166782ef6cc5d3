from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_context
from fastmcp.server.middleware import Middleware

from openenv.errors import UsageError
from openenv.mcp import CallToolObservation, ListToolsAction, ListToolsObservation, MCPEnvironment, ToolErrorType
from openenv.mcp.types import McpToolResult
from openenv.runtime.profile import Execution, profile_of
from openenv.types import Observation, State

from ..asynchronous import forgotten
from .environments import (
    SERVERS,
    AsyncToolEnvironment,
    Move,
    SdkToolEnvironment,
    ToolEnvironment,
    call,
)

LATE_S = 0.05


@pytest.fixture(params=[ToolEnvironment, SdkToolEnvironment], ids=["fastmcp", "sdk"])
def environment(request, no_threads_left):
    environment = request.param()
    yield environment
    environment.close()


def data_of(observation: Any) -> Any:
    assert isinstance(observation, CallToolObservation)
    assert observation.error is None, observation.error
    assert isinstance(observation.result, McpToolResult)
    return observation.result.data


def error_of(observation: Any) -> tuple[str, str]:
    assert isinstance(observation, CallToolObservation)
    assert observation.result is None
    assert (observation.reward, observation.done) == (None, False)
    return observation.error.error_type.value, observation.error.message


class Small(MCPEnvironment):
    """One server and no state."""

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action) -> Observation:
        return Observation(reward=1.0)

    @property
    def state(self) -> State:
        return State()


class TestCalls:
    def test_values_come_as_data_and_as_content(self, environment):
        result = environment.step(call("add", a=1)).result
        assert (result.data, result.structured_content, result.is_error) == (3, {"result": 3}, False)
        assert [block.text for block in result.content] == ["3"]
        assert data_of(environment.step(call("increase", by=4))) == {"count": 4}
        assert data_of(environment.step(call("later", text="hi"))) == "HI"
        assert data_of(environment.step(call("nothing"))) is None

    def test_every_failure_is_data(self, environment):
        assert error_of(environment.step(call("fail"))) == (
            "execution_error",
            "Error calling tool 'fail': bad luck",
        )
        kind, message = error_of(environment.step(call("jump")))
        assert kind == "tool_not_found"
        assert "'jump'" in message
        assert "add, increase, later" in message

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_tool_that_wants_to_end_the_process_ends_nothing(self, asynchronous):
        server = FastMCP("x")
        environment = Small(server)

        @server.tool
        def leave() -> str:
            raise SystemExit(3)

        @server.tool
        async def leave_later() -> str:
            raise SystemExit(3)

        for name in ("leave", "leave_later"):
            if asynchronous:
                observation = asyncio.run(environment.step_async(call(name)))
            else:
                observation = environment.step(call(name))
            assert error_of(observation) == ("execution_error", f"Error calling tool '{name}': 3")
        environment.close()

    @pytest.mark.parametrize(
        ("arguments", "place"), [({}, "a:"), ({"a": "one"}, "a:"), ({"a": 1, "b": [2]}, "b:")], ids=str
    )
    def test_wrong_arguments_are_named_with_those_there_are(self, environment, arguments, place):
        kind, message = error_of(environment.step(call("add", **arguments)))
        assert kind == "invalid_args"
        assert message.startswith(f"wrong arguments for tool 'add': {place}")
        assert message.endswith("it takes a, b (optional)")

    def test_an_unknown_argument_is_wrong(self):
        environment = ToolEnvironment()
        kind, message = error_of(environment.step(call("add", a=1, c=2)))
        assert (kind, "c:" in message) == ("invalid_args", True)
        environment.close()

    def test_tools_are_listed_with_schemas(self, environment):
        observation = environment.step(ListToolsAction())
        assert isinstance(observation, ListToolsObservation)
        tools = {tool.name: tool for tool in observation.tools}
        assert tools["add"].description == "Adds two numbers."
        assert tools["add"].input_schema["required"] == ["a"]
        assert tools["increase"].description == ""
        assert "only_simulation" in tools

    def test_other_actions_are_the_environments_own(self, environment):
        observation = environment.step(Move(by=3), timeout_s=2.0, speed="slow")
        assert (observation.reward, observation.metadata) == (3.0, {"timeout_s": 2.0, "speed": "slow"})
        assert Small(FastMCP("small")).step(Move(), timeout_s=1.0).reward == 1.0

    @pytest.mark.parametrize("name", ["hang", "hang_later"])
    def test_a_tool_has_its_own_deadline(self, environment, name):
        began = time.monotonic()
        kind, message = error_of(environment.step(call(name), timeout_s=LATE_S))
        assert time.monotonic() - began < 15
        assert kind == "timeout"
        assert f"Tool '{name}' timed out after {LATE_S} seconds" in message
        assert data_of(environment.step(call("add", a=1))) == 3
        assert data_of(environment.step(call("later", text="x"))) == "X"

    def test_the_class_says_how_long_tools_have(self):
        class Hasty(ToolEnvironment):
            tool_timeout_s = LATE_S

        environment = Hasty()
        assert error_of(environment.step(call("hang")))[0] == "timeout"
        assert error_of(environment.step(call("hang"), timeout_s=0))[0] == "timeout"
        environment.close()

    def test_without_a_limit_a_tool_runs_where_the_environment_does(self):
        class Patient(ToolEnvironment):
            tool_timeout_s = None

        environment = Patient()
        assert data_of(environment.step(call("thread"))) == threading.current_thread().name
        assert data_of(environment.step(call("later", text="x"))) == "X"
        environment.close()

    def test_the_tools_of_one_environment_share_a_thread(self):
        environment = ToolEnvironment()
        names = {data_of(environment.step(call("thread"))) for _ in range(3)}
        assert names == {"openenv-tools"}
        environment.close()

    def test_functions_behind_the_tools(self, environment):
        callables = environment.get_callables()
        assert callables["add"](1, 1) == 2
        assert callables["which"]() == "in simulation"


class TestModes:
    @pytest.mark.parametrize(("mode", "own"), [(None, "simulation"), ("production", "production")])
    def test_each_sees_its_own_tools(self, environment, mode, own):
        environment._mode = mode
        other = {"simulation": "production", "production": "simulation"}[own]
        names = [tool.name for tool in environment.step(ListToolsAction()).tools]
        assert f"only_{own}" in names
        assert f"only_{other}" not in names
        assert names.count("which") == 1
        assert data_of(environment.step(call("which"))) == f"in {own}"
        assert data_of(environment.step(call(f"only_{own}"))) == own
        kind, message = error_of(environment.step(call(f"only_{other}")))
        assert kind == "tool_not_found"
        assert f"only_{other}," not in message

    def test_a_tool_of_one_mode_stands_before_one_of_both(self):
        server = FastMCP("x")

        @server.tool
        def which() -> str:
            return "both"

        environment = Small(server)
        environment.tool(mode="production", name="which")(lambda: "mine")
        assert data_of(environment.step(call("which"))) == "both"
        environment._mode = "production"
        assert environment.step(call("which")).result.content[0].text == "mine"
        environment.close()

    def test_wrong_modes_and_names_are_refused(self, environment):
        with pytest.raises(ValueError, match="Invalid mode 'other'"):
            environment.tool(mode="other")(lambda: None)
        for name in ("reset", "step", "state", "close"):
            with pytest.raises(ValueError, match=f"'{name}' is reserved"):
                environment.tool(name=name)(lambda: None)

    @pytest.mark.parametrize("library", SERVERS)
    def test_a_server_with_a_reserved_name_is_refused(self, library):
        server = SERVERS[library]("x")
        server.tool(name="step")(lambda: None)
        with pytest.raises(ValueError, match=r"reserved names: \['step'\]"):
            Small(server)

    def test_what_is_no_server_is_refused(self):
        with pytest.raises(TypeError, match="pass a FastMCP server"):
            Small(object())


class TestServersThatChange:
    def test_a_tool_may_be_declared_replaced_and_taken_away(self):
        server = FastMCP("x", on_duplicate="replace")
        environment = Small(server)
        server.tool(name="say")(_saying("one"))
        assert data_of(environment.step(call("say"))) == "one"
        server.tool(name="say")(_saying("two"))
        assert data_of(environment.step(call("say"))) == "two"
        server.local_provider.remove_tool("say")
        assert error_of(environment.step(call("say")))[0] == "tool_not_found"
        environment.close()

    def test_middleware_is_not_passed_by(self):
        class Loud(Middleware):
            async def on_call_tool(self, context, call_next):
                result = await call_next(context)
                result.structured_content = {"result": "LOUD"}
                return result

        server = FastMCP("x")
        server.tool(name="say")(_saying("quiet"))
        environment = Small(server)
        assert data_of(environment.step(call("say"))) == "quiet"
        server.add_middleware(Loud())
        assert data_of(environment.step(call("say"))) == "LOUD"
        environment.close()

    def test_tools_of_mounted_servers_are_tools(self):
        inner, outer = FastMCP("inner"), FastMCP("outer")
        inner.tool(name="say")(_saying("inside"))
        outer.mount(inner, namespace="in")
        environment = Small(outer)
        assert [tool.name for tool in environment.step(ListToolsAction()).tools] == ["in_say"]
        assert data_of(environment.step(call("in_say"))) == "inside"
        environment.close()

    def test_a_tool_may_ask_for_its_context(self):
        server = FastMCP("x")

        @server.tool
        def by_argument(ctx: Context) -> str:
            return ctx.fastmcp.name

        @server.tool
        def by_call() -> str:
            return get_context().fastmcp.name

        environment = Small(server)
        assert data_of(environment.step(call("by_argument"))) == "x"
        assert data_of(environment.step(call("by_call"))) == "x"
        environment.close()

    def test_a_tool_that_must_stay_where_the_environment_is(self):
        server = FastMCP("x")

        @server.tool(run_in_thread=False)
        def where() -> int:
            return threading.get_ident()

        environment = Small(server)
        assert data_of(environment.step(call("where"), timeout_s=20)) == threading.get_ident()
        environment.close()

    def test_a_validation_in_the_tool_is_not_about_its_arguments(self):
        server = FastMCP("x")

        @server.tool
        def strict() -> int:
            return State.model_validate({"step_count": -1}).step_count

        environment = Small(server)
        kind, message = error_of(environment.step(call("strict")))
        assert kind == "execution_error"
        assert "validation error for State" in message
        environment.close()


class TestLoops:
    """No call may wait for itself. The limit of each test is that of the suite."""

    async def test_a_synchronous_step_inside_a_running_loop(self, environment):
        assert data_of(environment.step(call("add", a=1))) == 3
        assert data_of(environment.step(call("later", text="x"))) == "X"
        assert environment.step(ListToolsAction()).tools

    async def test_an_asynchronous_step(self, environment):
        assert data_of(await environment.step_async(call("add", a=1))) == 3
        assert data_of(await environment.step_async(call("later", text="x"))) == "X"
        assert (await environment.step_async(Move(by=2))).reward == 2.0
        assert (await environment.step_async(ListToolsAction())).tools
        for name in ("hang", "hang_later"):
            assert error_of(await environment.step_async(call(name), timeout_s=LATE_S))[0] == "timeout"
        assert error_of(await environment.step_async(call("jump")))[0] == "tool_not_found"
        assert error_of(await environment.step_async(call("add")))[0] == "invalid_args"

    async def test_a_tool_that_blocks_does_not_block_the_loop(self, environment):
        step = asyncio.ensure_future(environment.step_async(call("hang")))
        await asyncio.sleep(0)
        environment.gate.set()  # nobody could, if it did
        assert data_of(await step) == "over"

    async def test_a_step_that_nobody_waits_for_leaves_the_next_one_its_thread(self, environment):
        step = asyncio.ensure_future(environment.step_async(call("hang")))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert data_of(await environment.step_async(call("add", a=1))) == 3

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_tool_with_a_loop_of_its_own(self, asynchronous):
        async def inside() -> str:
            await asyncio.sleep(0)
            return "inside"

        server = FastMCP("x")
        server.tool(name="run")(lambda: asyncio.run(inside()))
        environment = Small(server)
        if asynchronous:
            observation = asyncio.run(environment.step_async(call("run")))
        else:
            observation = environment.step(call("run"))
        assert observation.result.content[0].text == "inside"
        environment.close()

    @pytest.mark.parametrize("outer", ["plain", "later"])
    @pytest.mark.parametrize("inner", ["add", "later"])
    def test_a_tool_that_steps_another_environment_or_its_own(self, outer, inner):
        server = FastMCP("x")
        other = ToolEnvironment()
        arguments = {"a": 1} if inner == "add" else {"text": "x"}

        @server.tool
        def plain() -> str:
            return str(data_of(other.step(call(inner, **arguments))))

        @server.tool
        async def later() -> str:
            return str(data_of(other.step(call(inner, **arguments))))

        @server.tool
        def add(a: int) -> int:
            return a + 2

        environment = Small(server)
        wanted = "3" if inner == "add" else "X"
        assert data_of(environment.step(call(outer))) == wanted
        if inner == "add":
            other.close()
            other = environment
            assert data_of(environment.step(call(outer))) == wanted
        other.close()
        environment.close()

    def test_two_threads_may_step_two_environments(self, environment):
        other = type(environment)()
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda one=one: found.append(data_of(one.step(call("add", a=1)))))
            for one in (environment, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert found == [3, 3]
        other.close()


class TestSubclasses:
    def test_a_synchronous_one_is_on_a_thread_and_its_step_is_used(self):
        profile = profile_of(ToolEnvironment)
        assert profile.execution is Execution.THREAD
        environment = ToolEnvironment()
        assert data_of(profile.step(environment, call("add", a=1))) == 3
        environment.close()

    def test_an_asynchronous_one_is_on_the_loop(self):
        assert profile_of(AsyncToolEnvironment).execution is Execution.LOOP

    async def test_what_a_subclass_does_in_step_is_done_once_in_either_form(self):
        class Counting(ToolEnvironment):
            def step(self, action, timeout_s=None, **kwargs: Any):
                self.steps += 1
                return super().step(action, timeout_s=timeout_s, **kwargs)

        class Both(Counting):
            async def step_async(self, action, timeout_s=None, **kwargs: Any):
                self.steps += 10
                return await super().step_async(action, timeout_s=timeout_s, **kwargs)

        for cls, each in ((Counting, 1), (Both, 10)):
            environment = cls()
            assert data_of(await environment.step_async(call("add", a=1))) == 3
            assert environment.steps == each
            environment.close()

    def test_a_close_that_forgets_its_base_leaves_no_thread(self, no_threads_left):
        class Forgetful(ToolEnvironment):
            def close(self) -> None:
                pass

        environment = Forgetful()
        environment.step(call("add", a=1))
        environment.step(call("later", text="x"))
        environment.close()

    @pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
    def test_nobody_remembers_one_that_was_closed(self, server):
        class Counter(Small):
            def __init__(self) -> None:
                mcp = server("counter")
                self.count = 0

                @mcp.tool()
                def increase() -> int:
                    self.count += 1
                    return self.count

                @mcp.tool()
                async def look() -> int:
                    return self.count

                if server is FastMCP:

                    @mcp.tool
                    def ask(ctx: Context) -> str:
                        return f"{ctx.fastmcp.name} {self.count}"

                super().__init__(mcp)

                @self.tool(mode="simulation")
                def method() -> int:
                    return self.count

        environment = Counter()
        environment.step(ListToolsAction())
        for name in environment.get_callables():
            assert environment.step(call(name)).error is None
        environment.close()
        memory = weakref.ref(environment)
        del environment
        assert forgotten(memory)

    @pytest.mark.parametrize("base", [ToolEnvironment, SdkToolEnvironment, AsyncToolEnvironment])
    async def test_a_subclass_may_use_any_private_name(self, base, no_threads_left):
        class Crowded(base):
            _tools = _limit = _takes = _toolbox = _client = _mcp_client = _call_tool = "hammer"

        environment = Crowded()
        assert data_of(await asyncio.to_thread(environment.step, call("add", a=1))) == 3
        assert data_of(await environment.step_async(call("add", a=1), timeout_s=20.0)) == 3
        assert (await environment.step_async(ListToolsAction())).tools
        assert "add" in environment.get_callables()
        async with environment.mcp_session() as client:
            assert client is not None
        environment.close()
        assert environment.mcp_client is None
        assert environment._tools == environment._toolbox == environment._mcp_client == "hammer"

    def test_an_environment_works_again_after_close(self, environment):
        environment.close()
        assert data_of(environment.step(call("add", a=1))) == 3

    def test_one_that_forgets_its_server_is_told(self):
        class Forgetful(Small):
            def __init__(self) -> None:
                pass

        environment = Forgetful()
        kind, message = error_of(environment.step(call("add", a=1)))
        assert kind == "execution_error"
        assert "call super().__init__(mcp_server)" in message
        with pytest.raises(UsageError, match="Forgetful has no tools"):
            environment.tool()(lambda: None)
        environment.close()

    async def test_other_actions_may_be_asynchronous(self):
        class Later(AsyncToolEnvironment):
            async def _step_impl(self, action, timeout_s=None, **kwargs: Any):
                await asyncio.sleep(0)
                return Observation(reward=9.0)

        environment = Later()
        assert (await environment.step_async(Move())).reward == 9.0
        environment.close()

    def test_error_types_have_the_words_that_are_on_the_wire(self):
        assert {each.value for each in ToolErrorType} == {
            "execution_error",
            "invalid_args",
            "transport_error",
            "tool_not_found",
            "timeout",
        }


def _saying(word: str) -> Any:
    def say() -> str:
        return word

    return say


class Scored(Small):
    """Scores what its tools answer."""

    def __init__(self):
        super().__init__(FastMCP("scored"), rubric=lambda action, observation: len(observation.tools) + 0.5)

    def step(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        observation = super().step(action, timeout_s, **kwargs)
        observation.reward = self._apply_rubric(action, observation)
        return observation


def test_a_rubric_scores_the_results_of_tools(no_threads_left):
    environment = Scored()
    assert environment.step(ListToolsAction()).reward == 0.5
    environment.close()
