"""The client of environments that have tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from itertools import count
from typing import Any, cast

from pydantic import ConfigDict, ValidationError
from pydantic_core import from_json, to_json

from .. import errors
from ..mcp.types import CallToolAction, CallToolObservation, ListToolsObservation, McpMethod, Tool
from ..types import Observation, State, StepResult
from .connection import CallKind, ClientConnectionV2, ClientSession, OneSessionConnection, session_lost, too_large
from .endpoints import ANY_SERVER, Endpoint, mcp_url
from .env_client import EnvClient, SyncEnvClient
from .payloads import parse_observation

CAPACITY = -32000


class McpConnection(OneSessionConnection):
    """Tool requests and their replies. Takes arguments as its base does."""

    def __init__(self, max_message_bytes: int):
        super().__init__(max_message_bytes)
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        """See `ClientSession.call`; the server takes only requests for tools (`mcp`)."""
        if self.error is not None:
            raise session_lost(self.error)
        request_id = next(self._ids)
        frame = to_json({"jsonrpc": "2.0", "id": request_id, **data})
        if len(frame) > self._max_bytes:
            raise too_large(len(frame), self._max_bytes)
        waiter = self._waiting[request_id] = self._loop.create_future()
        try:
            return await self._reply(data["method"], frame, waiter, timeout_s)
        finally:
            self._waiting.pop(request_id, None)

    def received(self, frame: bytes | memoryview) -> None:
        try:
            reply = from_json(bytes(frame))
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self.lost(
                errors.ProtocolViolation(f"the server sent a frame that is not a reply: {bytes(frame)[:200]!r}")
            )
            self._drop()
            return
        number = reply.get("id")
        waiter = self._waiting.get(number) if type(number) is int else None
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def lost(self, error: errors.OpenEnvError) -> None:
        self.error = self.error or error
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(self.error)


def rpc_error(tool: str, error: Any) -> errors.OpenEnvError:
    """The `OpenEnvError` for a JSON-RPC error."""
    if not isinstance(error, Mapping):
        return errors.ProtocolViolation(f"the server sent an error that is not a JSON-RPC error: {error!r:.200}")
    message, data = str(error.get("message", "")), error.get("data")
    failure = f"Tool {tool!r} failed: {message}"
    facts: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    if "error_type" in facts:
        return errors.ToolFailed(tool, str(facts["error_type"]), failure)
    if "error" in facts:
        return errors.from_wire({**facts, "message": message})
    if error.get("code") == CAPACITY and "max_sessions" in facts:
        return errors.from_wire({**facts, "error": errors.ServerFull.__name__, "message": message})
    return errors.ToolFailed(tool, "execution_error", failure) if tool else errors.StepFailed(message)


class GenericMCPObservation(Observation):
    """The observation of `reset`, and of a step that calls no tool, with the environment's own fields."""

    model_config = ConfigDict(extra="allow")


class _ExtendedCallToolObservation(CallToolObservation):
    """The result of a tool, with the environment's own fields."""

    model_config = ConfigDict(extra="allow")


async def ask_session(
    client: EnvClient[Any, Any, Any], method: str, params: dict[str, Any], timeout_s: float | None
) -> dict[str, Any]:
    """The `result` or `error` of a JSON-RPC request to a client's session. Raises as `EnvClient.step`."""
    session = await client._open(method)
    return await session.call("mcp", {"method": method, "params": params}, timeout_s)


class MCPClientBase(EnvClient[Any, Any, State]):
    """Lists the tools of an environment; `MCPToolClient` calls them too.

    By default `reset`, `step` and tool calls share one session, and each is executed exactly once. A tool call is not
    a step: it is not counted and has no reward. `step(CallToolAction(...))` calls a tool as a step. With
    `mode="production"` (or OPENENV_CLIENT_MODE) only tools are available: by JSON-RPC at the `/mcp` of the server,
    over a WebSocket that is one session; `reset`, `step` and `state` raise `UsageError`.

    Args:
        options: As for `EnvClient`, but positional ones have another order, which existing code uses.

    Attributes:
        use_production_mode: False makes `call_tool` call tools as steps, without reward.
    """

    use_production_mode: bool = True
    _production_calls = frozenset({"connect", *McpMethod})

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        max_message_size_mb: float = 100.0,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ):
        if mode is not None and mode.lower() == "simulation":
            raise errors.UsageError(
                "MCPToolClient has no mode 'simulation': leave mode out for reset, step and tools in one session, "
                "or use GenericEnvClient"
            )
        super().__init__(
            base_url,
            connect_timeout_s,
            message_timeout_s,
            max_message_size_mb,
            websocket_ping_interval_s,
            websocket_ping_timeout_s,
            provider,
            mode,
            headers,
            **options,
        )

    def list_tools(self, use_cache: bool = True) -> Awaitable[list[Tool]]:
        """The available tools.

        Args:
            use_cache: Ask only once for each connection.
        """
        return self._offered(self._list_tools(use_cache))

    def _begin(self) -> None:
        super()._begin()
        self._tools_cache: list[Tool] | None = None

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        result = parse_observation(None, payload)
        fields = {**result.observation, "reward": result.reward, "done": result.done}
        kind: type[Observation] = _ExtendedCallToolObservation
        if "tools" in fields:
            kind = ListToolsObservation
        elif not {"tool_name", "result"} <= fields.keys():
            kind = GenericMCPObservation
        elif fields.keys() <= CallToolObservation.model_fields.keys():
            kind = CallToolObservation
        try:
            result.observation = kind.model_validate(fields)
        except ValidationError as error:
            raise errors.ProtocolViolation(f"the server's reply is not an observation of tools: {error}") from error
        return result

    async def _list_tools(self, use_cache: bool) -> list[Tool]:
        if self._tools_cache is None or not use_cache:
            answer = await self._ask("tools/list", {})
            try:
                self._tools_cache = [
                    Tool(
                        name=each["name"],
                        description=each.get("description") or "",
                        input_schema=each.get("inputSchema") or each.get("input_schema") or {},
                    )
                    for each in answer["tools"]
                ]
            except (KeyError, TypeError, AttributeError, ValidationError) as error:
                raise errors.ProtocolViolation(f"the server's reply lists no tools: {answer!r:.200}") from error
        return list(self._tools_cache)

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a JSON-RPC request to the session. Raises `ToolFailed` for its error."""
        reply = await ask_session(self, method, params, self._message_timeout_s)
        if reply.get("error") is not None:
            raise rpc_error(str(params.get("name", "")), reply["error"])
        return reply.get("result")

    async def _disconnect_async(self) -> None:
        self._tools_cache = None
        await super()._disconnect_async()

    async def _open(self, what: str, anew: bool = False) -> ClientSession:
        self._check_mode(what)
        return await super()._open(what, anew)

    async def _dial_session(self) -> ClientConnectionV2 | OneSessionConnection:
        if self._client_mode != "production":
            return await super()._dial_session()
        if self._endpoints is None:
            raise errors.UsageError("mode='production' uses the /mcp of a server: pass base_url, and not app")
        self._tools_cache = None
        return await self._at_one_of(self._endpoints, ANY_SERVER, self._dial_mcp)

    async def _dial_mcp(self, endpoint: Endpoint) -> McpConnection:
        link = McpConnection(self._options.max_message_bytes)
        link.begin(await self._transport(endpoint, mcp_url(endpoint.url), lambda _: link))
        return link


class MCPToolClient(MCPClientBase):
    """Calls the tools of an environment::

        with MCPToolClient(base_url="http://localhost:8000").sync() as env:
            env.reset()
            print([tool.name for tool in env.list_tools()])
            print(env.call_tool("add", a=1, b=2))

    In asynchronous code, without `sync()`, the same calls are awaited. See `MCPClientBase` for the modes.
    """

    def call_tool(self, *name: str, **arguments: Any) -> Awaitable[Any]:
        """Calls a tool: `call_tool("add", a=1, b=2)`. This is not a step of the episode.

        Args:
            name: Name of the tool.
            arguments: Its arguments.

        Returns:
            The tool's return value as JSON; its content blocks if it has no such value.

        Raises:
            ToolFailed: No result; `error_type` says why.
            OpenEnvError: As for `EnvClient.step`.
        """
        tool: Any = name[0] if len(name) == 1 else None
        if not name and isinstance(arguments.get("name"), str):  # else `name` may be an argument of a tool
            tool = arguments.pop("name")
        if tool is None:
            raise TypeError("call_tool takes the name of the tool, and its arguments by keyword")
        return self._offered(self._call_tool(tool, arguments))

    def get_tool(self, name: str) -> Awaitable[Tool | None]:
        """The tool of that name; None if there is none."""
        return self._offered(self._get_tool(name))

    def has_tool(self, name: str) -> Awaitable[bool]:
        """Whether there is a tool of that name."""
        return self._offered(self._has_tool(name))

    def sync(self) -> SyncMCPToolClient:
        """This client for code that cannot await."""
        return SyncMCPToolClient(self)

    async def _call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        if self.use_production_mode:
            return _value_of(name, await self._ask("tools/call", {"name": name, "arguments": arguments}))
        observation = (await self._step_async(CallToolAction(tool_name=name, arguments=arguments))).observation
        if not isinstance(observation, CallToolObservation):
            raise errors.ProtocolViolation(f"the server does not call tools: {observation!r:.200}")
        if observation.error is not None:
            error = observation.error
            raise errors.ToolFailed(name, error.error_type.value, f"Tool {name!r} failed: {error.message}")
        return _value_of(name, observation.result)

    async def _get_tool(self, name: str) -> Tool | None:
        return next((tool for tool in await self._list_tools(use_cache=True) if tool.name == name), None)

    async def _has_tool(self, name: str) -> bool:
        return await self._get_tool(name) is not None


class SyncMCPToolClient(SyncEnvClient[Any, Any, State]):
    """`MCPToolClient` without `await`. See `SyncEnvClient` for its arguments."""

    _async_class = MCPToolClient

    def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """See `MCPToolClient.list_tools`."""
        return self._client.waited(self._tool_client.list_tools, use_cache)

    def call_tool(self, *name: str, **arguments: Any) -> Any:
        """See `MCPToolClient.call_tool`."""
        return self._client.waited(self._tool_client.call_tool, *name, **arguments)

    def get_tool(self, name: str) -> Tool | None:
        """See `MCPToolClient.get_tool`."""
        return self._client.waited(self._tool_client.get_tool, name)

    def has_tool(self, name: str) -> bool:
        """See `MCPToolClient.has_tool`."""
        return self._client.waited(self._tool_client.has_tool, name)

    @property
    def _tool_client(self) -> MCPToolClient:
        return cast("MCPToolClient", self._client)


def _value_of(name: str, result: Any) -> Any:
    """The value that a tool returned, from its result."""
    if not isinstance(result, Mapping):
        return result
    if result.get("isError") or result.get("is_error"):
        content = result.get("content") or ()
        said = " ".join(str(block.get("text")) for block in content if isinstance(block, Mapping) and "text" in block)
        raise errors.ToolFailed(name, "execution_error", f"Tool {name!r} failed: {said}")
    value = result["data"] if "data" in result else result.get("structuredContent")
    return result.get("content") or None if value is None else value
