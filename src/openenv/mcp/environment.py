"""`MCPEnvironment`, and the operations that a server runs on it: set its mode, list its tools, call one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from .._introspection import AcceptedArguments, accepted_arguments
from ..environment import Environment, Transform
from ..errors import NotForkable, UsageError
from ..types import Action, Observation, State
from . import types
from .session import client_of
from .toolbox import VALID_MODES, Toolbox

F = TypeVar("F", bound=Callable[..., Any])
# A limit of 0 s is already over.
SHORTEST_S = 0.001


class MCPEnvironment(Environment[Any, Any, Any]):
    """An environment that offers the tools of a FastMCP server::

        class Shop(MCPEnvironment):
            def __init__(self):
                mcp = FastMCP("shop")

                @mcp.tool
                def price(item: str) -> float:
                    "What an item costs."
                    return PRICES[item]

                super().__init__(mcp)

    `ListToolsAction` and `CallToolAction` are answered from the server's tools; other actions go to `_step_impl`.
    The outcome of a tool call is data: an unknown tool, wrong arguments, an exception and a tool that takes too
    long are `CallToolObservation.error`, and the step itself does not fail.

    Tools are called on the server object, with no client in between. A synchronous tool runs on a thread that the
    environment keeps for its tools, so it may block or run event loops of its own; an asynchronous one on the event
    loop of the caller of `step_async`, or on one that the environment keeps for its tools. A tool that must run where
    `reset` runs (Playwright's synchronous API) is declared with `run_in_thread=False`; no deadline can end it.

    A subclass may override `step` alone; it is then what clients step, and the asynchronous form calls it.

    Args:
        mcp_server: The server; of the package `fastmcp`, or `mcp.server.fastmcp.FastMCP`.
        transform: For `_apply_transform`, in `_step_impl`; observations of tools are left as they are.
        rubric: For `_apply_rubric`, in `_step_impl` or in a `step` that scores the results of tools.

    Raises:
        TypeError: `mcp_server` is not such a server.
        ValueError: A tool has a reserved name: reset, step, state or close, which drive an environment.

    Attributes:
        tool_timeout_s: Seconds that a tool has, unless the step gives `timeout_s`; None sets no limit, and runs
            synchronous tools on the environment's own thread.
        mcp_server: The server.
    """

    tool_timeout_s: ClassVar[float | None] = types.MCP_TOOL_CALL_TIMEOUT

    # Set by the server for its sessions, before any call; None is simulation.
    _mode: str | None = None
    # With the name of this class: subclasses may have members of any name.
    __toolbox: Toolbox | None = None
    __client: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("close")
        if inspect.isfunction(own):
            type.__setattr__(cls, "close", _wrap_close(own))

    def __init__(
        self,
        mcp_server: Any,
        transform: Transform[Any] | None = None,
        rubric: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(transform=transform, rubric=rubric)
        self.mcp_server = mcp_server
        self.__toolbox = Toolbox(mcp_server)

    def save_state(self) -> Any:
        """Raises `NotForkable`: tools are functions of one environment, so a subclass must define its state."""
        name = type(self).__name__
        raise NotForkable(f"{name} cannot be forked with its tools alone: implement save_state() and load_state()")

    def tool(self, mode: str | None = None, *, name: str | None = None) -> Callable[[F], F]:
        """Declares a tool of this environment: `@self.tool(mode="production")`.

        Args:
            mode: The only mode that has the tool; None for both. The two modes may have different tools of the same
                name, and a tool of one mode has precedence over a tool of both.
            name: Name of the tool; by default that of its function.

        Raises:
            ValueError: The name is reserved, or there is no such mode.
        """
        if callable(mode):  # @self.tool without parentheses
            declared: Any = _tools(self).declare(mode, None, name)
            return declared
        return lambda function: _tools(self).declare(function, mode, name)

    @property
    def mcp_client(self) -> Any:
        """A client of the server for code that connects it itself (`async with`); None after `close`."""
        tools = _tools(self)
        if self.__client is None and not tools.closed:
            self.__client = client_of(tools.library.server)
        return self.__client

    @mcp_client.setter
    def mcp_client(self, client: Any) -> None:
        self.__client = client

    @contextlib.asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[Any]:
        """Opens the MCP session that the tools run in, for the length of a block, and yields its client.

        The client is a `fastmcp.Client`, or that of the SDK where `fastmcp` is not installed. Steps on the same event
        loop use the same session. A session that the block opens ends with the block; one that a step has opened
        lasts until the environment closes.

        Raises:
            RuntimeError: The environment was closed, or the server cannot begin a session.
        """
        tools = _tools(self)
        if tools.closed:
            raise RuntimeError(
                f"MCP client is not available: this {type(self).__name__} was closed; make another one"
            )
        async with tools.library.sessions.connect() as client:
            yield client

    @property
    def supports_code_mode(self) -> bool:
        """Whether there is `execute_code`: yes."""
        return True

    def execute_code(self, code: str) -> Observation:
        """Runs Python code that may call the tools as functions, in this process and without a limit of time.

        The functions are those of `get_callables`, so a tool that takes a `Context` has to be given one.

        Args:
            code: Statements. What they assign to `result` is the result.

        Returns:
            An observation with `metadata["result"]`, which is None if nothing was assigned, or with
            `metadata["error"]` if the code failed. Neither is a step: `reward` is 0.
        """
        names: dict[str, Any] = dict(self.get_callables())
        tool = names.get("result")
        try:
            exec(compile(code, "<string>", "exec"), names)  # noqa: S102 - that is what it is for
        except types.INTERRUPTIONS:
            raise
        except SyntaxError as error:
            return _code_observation(error=f"Syntax error: {error}")
        except BaseException as error:  # noqa: BLE001 - SystemExit of the code, too, is a result of it
            return _code_observation(error=types.message_of(error) or type(error).__name__)
        result = names.get("result")
        return _code_observation(result=None if result is tool else result)

    def get_callables(self) -> dict[str, Callable[..., Any]]:
        """The functions behind the tools, by name, of those that were declared in this process."""
        return _tools(self).functions(mode_of(self))

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Answers a tool action, or does another one by `_step_impl`. May be called inside a running event loop."""
        if isinstance(action, types.CallToolAction):
            return _tool_observation(action, _call_tool(self, action.tool_name, action.arguments, timeout_s))
        if isinstance(action, types.ListToolsAction):
            return types.ListToolsObservation(tools=[listed.tool for listed in _tools(self).tools(mode_of(self))])
        arguments = _accepted_arguments(type(self)._step_impl).of({"timeout_s": timeout_s, **kwargs})
        return self._step_impl(action, **arguments)

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """`step` for async callers."""
        given = {"timeout_s": timeout_s, **kwargs}
        if not is_asynchronous(type(self)) and type(self).step is not MCPEnvironment.step:
            # The own `step` of the subclass defines its steps.
            return await asyncio.to_thread(self.step, action, **_accepted_arguments(type(self).step).of(given))
        if isinstance(action, types.CallToolAction):
            outcome = await _call_tool_async(self, action.tool_name, action.arguments, timeout_s)
            return _tool_observation(action, outcome)
        if isinstance(action, types.ListToolsAction):
            found = await _tools(self).tools_async(mode_of(self))
            return types.ListToolsObservation(tools=[listed.tool for listed in found])
        observation: Any = self._step_impl(action, **_accepted_arguments(type(self)._step_impl).of(given))
        return await observation if inspect.isawaitable(observation) else observation

    # Classes that override it are asynchronous; by itself it does not make one so (see `execution.profile`).
    vars(step_async)["follows_sync"] = True

    @abstractmethod
    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Does an action that is not a tool call. May be a coroutine function, if `step_async` is overridden."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The episode's state."""

    def close(self) -> None:
        """Ends the threads of the tools, as does a `close` that overrides this one and does not call it."""
        _close_tools(self)


def mode_of(environment: MCPEnvironment) -> str:
    """The mode of the server that an environment is in."""
    mode = environment._mode
    return mode if mode in VALID_MODES else "simulation"


def is_asynchronous(cls: type[MCPEnvironment]) -> bool:
    """Whether a class defines its own `step_async`."""
    return cls.step_async is not MCPEnvironment.step_async


def toolbox_of(environment: Any) -> Toolbox | None:
    """The tools of an environment; None for one that has none."""
    toolbox: Toolbox | None = environment._MCPEnvironment__toolbox
    return toolbox


def _tools(environment: MCPEnvironment) -> Toolbox:
    toolbox = toolbox_of(environment)
    if toolbox is None:
        what = f"{type(environment).__name__} has no tools: call super().__init__(mcp_server) in its __init__"
        raise UsageError(what)
    return toolbox


def _limit(environment: MCPEnvironment, timeout_s: float | None) -> float | None:
    limit = environment.tool_timeout_s if timeout_s is None else timeout_s
    return limit if limit is None else max(limit, SHORTEST_S)


def _close_tools(environment: Any) -> None:
    toolbox = toolbox_of(environment)
    if toolbox is not None:
        toolbox.close()
        environment._MCPEnvironment__client = None


def _wrap_close(close: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `close` of a subclass, after which the threads of the tools end too.

    Nothing else would end them: FastMCP remembers the functions of tools, and so the environment that they use.
    """

    @functools.wraps(close)
    def closing(self: Any) -> Any:
        try:
            return close(self)
        finally:
            _close_tools(self)

    return closing


@functools.lru_cache(maxsize=256)
def _accepted_arguments(method: Any) -> AcceptedArguments:
    """Which arguments a method takes beside itself and the action."""
    return accepted_arguments(method, positional=2)


def _code_observation(**metadata: Any) -> Observation:
    return Observation(done=False, reward=0.0, metadata=metadata)


def _call_tool(
    environment: MCPEnvironment, name: str, arguments: dict[str, Any], timeout_s: float | None = None
) -> types.McpToolResult | types.ToolFault:
    """The outcome of a tool call: every exception that the tool raises, `SystemExit` too, becomes an answer."""
    try:
        return _tools(environment).call(name, arguments, _limit(environment, timeout_s), mode_of(environment))
    except types.INTERRUPTIONS:
        raise
    except BaseException as error:  # noqa: BLE001 - the edge to foreign code
        return types.fault_of(name, error)


async def _call_tool_async(
    environment: MCPEnvironment, name: str, arguments: dict[str, Any], timeout_s: float | None = None
) -> types.McpToolResult | types.ToolFault:
    """The same for an async caller."""
    try:
        limit_s = _limit(environment, timeout_s)
        return await _tools(environment).call_async(name, arguments, limit_s, mode_of(environment))
    except types.INTERRUPTIONS:
        raise
    except BaseException as error:  # noqa: BLE001 - the edge to foreign code
        return types.fault_of(name, error)


def _tool_observation(
    action: types.CallToolAction, outcome: types.McpToolResult | types.ToolFault
) -> types.CallToolObservation:
    if isinstance(outcome, types.ToolFault):
        return types.CallToolObservation(tool_name=action.tool_name, error=outcome.error)
    return types.CallToolObservation(tool_name=action.tool_name, result=outcome)


class FactoryInMode(functools.partial[Any]):
    """A factory of environments that know the mode: `FactoryInMode(factory).of("production")`.

    It is a partial, so that `class_of` finds the class that the factory makes.
    """

    mode: str | None = None

    def of(self, mode: str) -> FactoryInMode:
        """Sets the mode; returns itself."""
        self.mode = mode
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        environment = super().__call__(*args, **kwargs)
        if isinstance(environment, MCPEnvironment):
            environment._mode = self.mode
        return environment


def answer(environment: Any, ask: types.ToolRequest) -> dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]:
    """The operation: `{"result": ...}`, or `{"error": {code, message, data}}`.

    An asynchronous environment returns an awaitable of it, as for its steps.
    """
    if not isinstance(environment, MCPEnvironment) or toolbox_of(environment) is None:
        return types.error_reply(types.NO_TOOLS)
    if is_asynchronous(type(environment)):

        async def answer_async() -> dict[str, Any]:
            if ask.name is None:
                tools = await _tools(environment).tools_async(mode_of(environment))
                return types.listing_reply(listed.wire for listed in tools)
            return ask.reply(await _call_tool_async(environment, ask.name, ask.arguments))

        return answer_async()
    if ask.name is None:
        return types.listing_reply(listed.wire for listed in _tools(environment).tools(mode_of(environment)))
    return ask.reply(_call_tool(environment, ask.name, ask.arguments))
