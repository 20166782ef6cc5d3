"""Tools in an MCP session: what a `Context` does, for how long, and on which event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_context
from fastmcp.server.middleware import Middleware

from openenv.mcp import CallToolObservation, ListToolsAction, MCPEnvironment
from openenv.types import Observation, State

from ..asynchronous import forgotten
from .environments import SERVERS, call

try:
    from mcp.server.fastmcp import Context as SdkContext
except ImportError:  # version 2 of the SDK
    from mcp.server.mcpserver import Context as SdkContext

LATE_S = 0.05


class Bare(MCPEnvironment):
    """A server and nothing else."""

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


class AsyncBare(Bare):
    async def reset_async(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        return Observation()

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)


def data_of(observation: Any) -> Any:
    assert isinstance(observation, CallToolObservation)
    assert observation.error is None, observation.error
    return observation.result.data


def message_of(observation: Any) -> str:
    assert isinstance(observation, CallToolObservation)
    assert observation.error is not None, observation.result
    return str(observation.error.message)


def talking_server() -> FastMCP:  # noqa: C901 - as environments are written
    """Its tools use their context in every way there is."""
    server = FastMCP("talking")

    @server.tool
    async def log(ctx: Context) -> str:
        await ctx.debug("d")
        await ctx.info("i")
        await ctx.warning("w", logger_name="mine")
        await ctx.error("e", extra={"a": 1})
        return "logged"

    @server.tool
    async def progress(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        return "reported"

    @server.tool
    async def names(ctx: Context) -> dict[str, str]:
        return {"session": ctx.session_id, "request": ctx.request_id}

    @server.tool
    def names_at_once(ctx: Context) -> dict[str, str]:
        return {"session": ctx.session_id, "request": ctx.request_id}

    @server.tool
    async def count(ctx: Context) -> int:
        number = (await ctx.get_state("count") or 0) + 1
        await ctx.set_state("count", number)
        return number

    @server.tool
    async def forget(ctx: Context) -> None:
        await ctx.delete_state("count")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("how many?", int)
        return "answered"

    @server.tool
    async def log_without() -> str:
        await get_context().info("i")
        return get_context().session_id

    @server.tool
    def names_without() -> dict[str, str]:
        context = get_context()
        return {"session": context.session_id, "request": context.request_id}

    @server.tool
    async def count_without() -> int:
        async def add_one() -> int:
            context = get_context()
            number = (await context.get_state("count") or 0) + 1
            await context.set_state("count", number)
            return number

        return await asyncio.create_task(add_one())

    @server.tool
    def session_without() -> str:
        return str(get_context().session)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    return server


class Stepper:
    """Steps an environment by `step`, or by `step_async` on one event loop."""

    def __init__(self, environment: MCPEnvironment, runner: asyncio.Runner | None):
        self.environment = environment
        self.runner = runner

    def __call__(self, action: Any, **arguments: Any) -> Any:
        if self.runner is None:
            return self.environment.step(action, **arguments)
        return self.runner.run(self.environment.step_async(action, **arguments))

    def close(self) -> None:
        if self.runner is None:
            self.environment.close()
        else:
            self.runner.run(asyncio.to_thread(self.environment.close))  # as servers do


@pytest.fixture(params=["step", "step_async"])
def stepping(request, no_threads_left):
    """Makes a `Stepper` of a server of tools, or of an environment."""
    steppers = []
    with contextlib.ExitStack() as stack:
        runner = None if request.param == "step" else stack.enter_context(asyncio.Runner())

        def of(made: Any) -> Stepper:
            environment = made
            if not isinstance(made, MCPEnvironment):
                environment = Bare(made) if runner is None else AsyncBare(made)
            steppers.append(Stepper(environment, runner))
            return steppers[-1]

        yield of
        for stepper in steppers:
            stepper.close()


class TestContext:
    def test_logs_and_progress_are_sent(self, stepping):
        step = stepping(talking_server())
        assert data_of(step(call("log"))) == "logged"
        assert data_of(step(call("progress"))) == "reported"

    @pytest.mark.parametrize("name", ["names", "names_at_once"])
    def test_one_session_and_a_request_for_each_call(self, stepping, name):
        step = stepping(talking_server())
        found = [data_of(step(call(name))) for _ in range(3)]
        assert len({names["session"] for names in found}) == 1
        assert len({names["request"] for names in found}) == 3

    def test_state_lasts_as_long_as_the_environment(self, stepping):
        step = stepping(talking_server())
        assert [data_of(step(call("count"))) for _ in range(3)] == [1, 2, 3]
        step.environment.reset()
        assert data_of(step(call("count"))) == 4
        data_of(step(call("forget")))
        assert data_of(step(call("count"))) == 1

    def test_environments_of_one_server_have_sessions_of_their_own(self, stepping):
        server = talking_server()
        one, other = stepping(server), stepping(server)
        assert [data_of(step(call("count"))) for step in (one, other, one)] == [1, 1, 2]
        sessions = {data_of(step(call("names")))["session"] for step in (one, other)}
        assert len(sessions) == 2

    def test_what_only_a_model_could_answer_is_refused_at_once(self, stepping):
        step = stepping(talking_server())
        assert "not supported" in message_of(step(call("ask")))
        assert data_of(step(call("add", a=1, b=2))) == 3

    def test_code_that_a_tool_calls_finds_the_context(self, stepping):
        step = stepping(talking_server())
        names = data_of(step(call("names_without")))
        assert data_of(step(call("log_without"))) == names["session"]
        assert [data_of(step(call(name))) for name in ("count", "count_without", "count")] == [1, 2, 3]
        assert "give the tool a parameter of the type Context" in message_of(step(call("session_without")))

    def test_middleware_and_mounted_servers_are_in_the_session(self, stepping):
        seen = []

        class Watching(Middleware):
            async def on_call_tool(self, context, call_next):
                seen.append(context.fastmcp_context.session_id)
                return await call_next(context)

        outer = FastMCP("outer")
        outer.add_middleware(Watching())
        outer.mount(talking_server(), namespace="in")
        step = stepping(outer)
        assert [data_of(step(call("in_count"))) for _ in range(2)] == [1, 2]
        assert data_of(step(call("in_names")))["session"] == seen[0] == seen[-1]

    def test_tools_that_a_tool_hides_are_hidden(self, stepping):
        server = talking_server()

        @server.tool
        async def hide(ctx: Context) -> None:
            await ctx.disable_components(names={"add"})

        step, other = stepping(server), stepping(server)
        assert data_of(step(call("add", a=1, b=2))) == 3
        data_of(step(call("hide")))
        assert step(call("add", a=1, b=2)).error.error_type == "tool_not_found"
        assert "add" not in [tool.name for tool in step(ListToolsAction()).tools]
        assert data_of(other(call("add", a=1, b=2))) == 3

    def test_a_tool_that_is_late_is_stopped_and_the_session_goes_on(self, stepping):
        server = talking_server()
        stopped = threading.Event()

        @server.tool
        async def hang(ctx: Context) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        step = stepping(server)
        assert data_of(step(call("count"))) == 1
        assert step(call("hang"), timeout_s=LATE_S).error.error_type == "timeout"
        assert stopped.wait(20)
        assert data_of(step(call("count"))) == 2

    def test_errors_are_told_as_they_are_without_a_context(self, stepping):
        server = talking_server()

        @server.tool
        async def fail(ctx: Context) -> None:
            raise ValueError("bad luck")

        assert message_of(stepping(server)(call("fail"))) == "Error calling tool 'fail': bad luck"

    @pytest.mark.parametrize("library", SERVERS)
    def test_servers_of_either_library(self, stepping, library):
        server = SERVERS[library]("x")
        annotation = {"fastmcp": Context, "sdk": SdkContext}[library]

        async def log(ctx, text: str) -> str:
            await ctx.info(text)
            return f"{text} {ctx.request_id}"

        def name(ctx) -> str:
            return str(ctx.request_id)

        log.__annotations__["ctx"] = name.__annotations__["ctx"] = annotation
        for tool in (log, name):
            server.tool()(tool)
        step = stepping(server)
        assert data_of(step(call("log", text="a"))).startswith("a ")
        assert data_of(step(call("name"))) != data_of(step(call("name")))


class Lifespan:
    """A server that sets something up for its sessions, and counts that."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun = self.ended = 0
        self.error = error

    @contextlib.asynccontextmanager
    async def __call__(self, server: Any):
        self.begun += 1
        if self.error is not None:
            raise self.error
        try:
            yield {"pool": "ready"}
        finally:
            self.ended += 1


class TestLifespan:
    @pytest.mark.parametrize("library", SERVERS)
    def test_it_lasts_from_the_first_tool_to_the_end_of_the_environment(self, stepping, library):
        lifespan = Lifespan()
        server = SERVERS[library]("x", lifespan=lifespan)

        @server.tool()
        def begun() -> int:
            return lifespan.begun

        @server.tool()
        async def begun_later() -> int:
            return lifespan.begun

        step = stepping(server)
        assert [data_of(step(call(name))) for name in ("begun", "begun_later", "begun")] == [1, 1, 1]
        assert len(step(ListToolsAction()).tools) == 2
        assert (lifespan.begun, lifespan.ended) == (1, 0)
        step.close()
        assert (lifespan.begun, lifespan.ended) == (1, 1)

    def test_one_that_fails_at_the_end_is_logged_and_ends_nothing_else(self, stepping, caplog):
        class Failing(Lifespan):
            @contextlib.asynccontextmanager
            async def __call__(self, server: Any):
                yield {}
                raise OSError("the database is gone")

        server = FastMCP("x", lifespan=Failing())
        server.tool(name="add")(lambda a: a)
        step = stepping(server)
        assert step(call("add", a=1)).error is None
        step.close()
        assert "the MCP session of the tools ended with an error" in caplog.text
        assert step(call("add", a=1)).error is None

    def test_tools_have_what_it_gave(self, stepping):
        server = FastMCP("x", lifespan=Lifespan())

        @server.tool
        async def pool(ctx: Context) -> str:
            return str(ctx.lifespan_context["pool"])

        @server.tool
        def pool_at_once() -> str:
            return str(get_context().lifespan_context["pool"])

        step = stepping(server)
        assert [data_of(step(call(name))) for name in ("pool_at_once", "pool")] == ["ready", "ready"]

    @pytest.mark.parametrize("failure", [SystemExit, KeyboardInterrupt])
    def test_one_that_wants_to_end_the_process_ends_nothing(self, failure):
        lifespan = Lifespan(failure("no database"))
        server = FastMCP("x", lifespan=lifespan)
        server.tool(name="add")(lambda a: a)
        environment = Bare(server)
        assert "could not be opened" in message_of(environment.step(call("add", a=1)))
        lifespan.error = None
        assert environment.step(call("add", a=1)).error is None
        environment.close()

    def test_one_that_fails_fails_each_call_and_says_why(self, stepping):
        lifespan = Lifespan(OSError("no database"))
        server = FastMCP("x", lifespan=lifespan)

        @server.tool
        def say() -> str:
            return "said"

        step = stepping(server)
        for _ in range(2):
            message = message_of(step(call("say")))
            assert "the MCP session of the tools could not be opened" in message
            assert "no database" in message
        lifespan.error = None
        assert data_of(step(call("say"))) == "said"

    def test_middleware_sees_the_session_begin_once(self, stepping):
        begun = []

        class Watching(Middleware):
            async def on_initialize(self, context, call_next):
                begun.append(context.method)
                return await call_next(context)

        server = talking_server()
        server.add_middleware(Watching())
        step = stepping(server)
        assert data_of(step(call("add", a=1, b=2))) == 3
        assert data_of(step(call("count"))) == 1
        assert begun == ["initialize"]

    def test_many_environments_of_one_server_begin_at_once(self, no_threads_left):
        lifespan = Lifespan()
        server = FastMCP("x", lifespan=lifespan)

        @server.tool
        async def name(ctx: Context) -> str:
            return ctx.session_id

        environments = [Bare(server) for _ in range(8)]
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda each=each: found.append(data_of(each.step(call("name")))))
            for each in environments
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 8
        for environment in environments:
            environment.close()


class TestLoops:
    def test_each_event_loop_has_its_own_and_state_goes_on(self):
        environment = Bare(talking_server())
        assert data_of(environment.step(call("count"))) == 1
        assert data_of(asyncio.run(environment.step_async(call("count")))) == 2
        assert data_of(asyncio.run(environment.step_async(call("count")))) == 3
        assert data_of(environment.step(call("count"))) == 4
        environment.close()

    def test_it_may_be_closed_on_its_own_loop(self):
        lifespan = Lifespan()

        async def play() -> None:
            environment = Bare(FastMCP("x", lifespan=lifespan))
            await environment.step_async(ListToolsAction())
            environment.close()

        asyncio.run(play())
        assert (lifespan.begun, lifespan.ended) == (1, 1)

    def test_a_loop_that_stands_still_is_not_waited_for(self):
        loop = asyncio.new_event_loop()
        environment = Bare(talking_server())
        assert data_of(loop.run_until_complete(environment.step_async(call("count")))) == 1
        environment.close()
        loop.run_until_complete(asyncio.sleep(0))
        assert data_of(environment.step(call("count"))) == 2
        environment.close()
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
        loop.close()


class TestEnd:
    def test_a_session_whose_connection_has_ended_is_opened_again(self):
        async def play() -> None:
            environment = Bare(talking_server())
            assert data_of(await environment.step_async(call("count"))) == 1
            async with environment.mcp_session() as client:
                await client.close()
            assert data_of(await environment.step_async(call("count"))) == 2
            await asyncio.to_thread(environment.close)

        asyncio.run(play())

    def test_a_closed_environment_is_forgotten(self):
        class Own(Bare):
            def __init__(self) -> None:
                super().__init__(FastMCP("x"))

                @self.tool()
                async def mine(ctx: Context) -> str:
                    await ctx.info("i")
                    return type(self).__name__

        environment = Own()
        assert data_of(environment.step(call("mine"))) == "Own"
        environment.close()
        memory = weakref.ref(environment)
        del environment
        assert forgotten(memory)


class TestClient:
    def test_the_session_has_a_client(self):
        async def play() -> None:
            environment = Bare(talking_server())
            async with environment.mcp_session() as client:
                assert "count" in [tool.name for tool in await client.list_tools()]
                assert (await client.call_tool("count", {})).data == 1
                assert data_of(await environment.step_async(call("count"))) == 2
                async with environment.mcp_session() as same:
                    assert same is client
                assert (await client.call_tool("count", {})).data == 3
            assert not client.is_connected()
            environment.close()

        asyncio.run(play())

    def test_it_stays_open_when_a_step_has_opened_it(self):
        async def play() -> None:
            lifespan = Lifespan()
            environment = Bare(FastMCP("x", lifespan=lifespan))
            await environment.step_async(ListToolsAction())
            async with environment.mcp_session():
                pass
            assert (lifespan.begun, lifespan.ended) == (1, 0)
            await asyncio.to_thread(environment.close)
            assert (lifespan.begun, lifespan.ended) == (1, 1)

        asyncio.run(play())

    def test_a_closed_environment_has_none(self):
        async def play() -> None:
            environment = Bare(talking_server())
            async with environment.mcp_client as client:
                assert await client.list_tools()
            environment.close()
            assert environment.mcp_client is None
            with pytest.raises(RuntimeError, match="was closed"):
                async with environment.mcp_session():
                    pass

        asyncio.run(play())


class TestCodeMode:
    @pytest.fixture
    def environment(self):
        environment = Bare(talking_server())
        yield environment
        environment.close()

    def test_code_calls_tools_and_leaves_a_result(self, environment):
        assert environment.supports_code_mode
        observation = environment.execute_code("def twice(n):\n    return add(n, n)\nresult = twice(add(a=1, b=2))")
        assert (observation.metadata, observation.reward, observation.done) == ({"result": 6}, 0.0, False)
        assert environment.execute_code("add(1, 2)").metadata == {"result": None}

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            ("1 +", "Syntax error: invalid syntax"),
            ("add(1)", "missing 1 required positional argument: 'b'"),
            ("raise KeyError", "KeyError"),
            ("raise SystemExit(3)", "3"),
        ],
    )
    def test_what_fails_is_data(self, environment, code, error):
        observation = environment.execute_code(code)
        assert error in observation.metadata["error"]
        assert (observation.reward, observation.done) == (0.0, False)

    def test_a_tool_called_result_is_no_result(self):
        server = FastMCP("x")
        server.tool(name="result")(lambda: 1)
        environment = Bare(server)
        assert environment.execute_code("pass").metadata == {"result": None}
        assert environment.execute_code("result = result() + 1").metadata == {"result": 2}
        environment.close()
