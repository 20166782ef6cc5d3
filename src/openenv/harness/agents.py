"""What an adapter of an agent program implements: configuration, events of a turn, errors, and names of tools."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from enum import Enum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..mcp.types import RESERVED_TOOL_NAMES, Tool


class HarnessTransport(str, Enum):  # noqa: UP042 - existing code prints its members
    """How an adapter reaches its agent."""

    STDIO = "stdio"
    STREAMABLE_HTTP = "http"
    MCP = "mcp"


class HarnessConfig(BaseModel):
    """How to run an agent program.

    Attributes:
        name: Name of the agent for clients.
        command: The program and its arguments.
        working_directory: Folder that it starts in.
        env_vars: Environment variables on top of those of this process.
        transport: How to reach it.
        mcp_config_path: File that tells the agent of its tools; None: the adapter knows another way.
        startup_timeout_s: Seconds that it may take to start.
        session_timeout_s: Seconds that one turn may take.
        model: Name of the model that it calls.
        api_key_env_var: Environment variable with the key for that model.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    command: list[str] = Field(min_length=1)
    working_directory: str = "/workspace"
    env_vars: dict[str, str] = Field(default_factory=dict)
    transport: HarnessTransport = HarnessTransport.STDIO
    mcp_config_path: str | None = None
    startup_timeout_s: float = 30.0
    session_timeout_s: float = 600.0
    model: str | None = None
    api_key_env_var: str | None = None


class HarnessEventType(str, Enum):  # noqa: UP042 - the same
    """Kinds of events of a turn. Each comment names the keys of `data`."""

    LLM_REQUEST = "llm_request"  # messages, model
    LLM_RESPONSE = "llm_response"  # content, usage
    LLM_CHUNK = "llm_chunk"  # content, index
    TOOL_CALL = "tool_call"  # tool_name, arguments
    TOOL_RESULT = "tool_result"  # tool_name, result, error
    TEXT_OUTPUT = "text_output"  # text
    ERROR = "error"  # message, recoverable
    TURN_COMPLETE = "turn_complete"  # response, done (if the episode has ended)


class HarnessEvent(BaseModel):
    """One event of a turn.

    Attributes:
        type: Its kind.
        timestamp: Unix time in seconds.
        data: Facts; `HarnessEventType` names them.
    """

    type: HarnessEventType
    timestamp: float = Field(default_factory=time.time)
    data: dict[str, Any] = Field(default_factory=dict)


class HarnessResponse(BaseModel):
    """A whole turn: the agent's answer, its events, and whether the episode has ended."""

    response: str
    events: list[HarnessEvent] = Field(default_factory=list)
    done: bool = False


class HarnessClientMessage(BaseModel):
    """A frame of a client of `/harness`: the next message for the agent."""

    type: Literal["message"]
    content: str


class HarnessProtocolError(BaseModel):
    """The frame that answers one that cannot be read; `data` has `message` and `code`."""

    type: Literal["protocol_error"] = "protocol_error"
    data: dict[str, Any]


def events_to_metadata(events: Iterable[HarnessEvent]) -> list[dict[str, Any]]:
    """Events in JSON's types, for the metadata of an observation."""
    return [event.model_dump(mode="json") for event in events]


class HarnessError(Exception):
    """An agent program or its adapter failed."""


class HarnessStartupError(HarnessError):
    """The agent did not start."""


class HarnessNotRunningError(HarnessError):
    """There is no running agent."""


class HarnessTurnTimeoutError(HarnessError):
    """A turn took too long."""


class AgenticHarnessAdapter(ABC):
    """Runs one agent program. Subclass it for each kind of agent.

    Args:
        config: How to run it.

    Attributes:
        BUILTIN_TOOL_NAMES: Tools that the agent has by itself. A tool of the environment with such a name is renamed.
    """

    BUILTIN_TOOL_NAMES: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: HarnessConfig):
        self.config = config

    @abstractmethod
    async def start(self, working_directory: str) -> None:
        """Starts the agent in a folder. Raises `HarnessStartupError`."""

    @abstractmethod
    async def stop(self) -> None:
        """Stops the agent. May be called repeatedly, and if it does not run."""

    @abstractmethod
    async def inject_tools(self, tools: list[Tool], bridge_url: str | None = None) -> None:
        """Tells the agent of the environment's tools; called before `start`.

        Args:
            tools: The tools under the names that the agent calls.
            bridge_url: The MCP server of the tools; None without tools.
        """

    @abstractmethod
    def send_message_streaming(self, message: str) -> AsyncIterator[HarnessEvent]:
        """Has the agent do one turn.

        Yields:
            Events. The last is TURN_COMPLETE with the key `response`, and `done` if the episode has ended.
        """

    @abstractmethod
    async def is_alive(self) -> bool:
        """Whether the agent can take a message."""

    async def send_message(self, message: str) -> HarnessResponse:
        """Has the agent do one turn, and waits for its end.

        Raises:
            HarnessError: The turn ended without TURN_COMPLETE.
        """
        return turn_of([event async for event in self.send_message_streaming(message)])


def turn_of(events: list[HarnessEvent]) -> HarnessResponse:
    """The whole turn of its events. Raises `HarnessError` if the last is not TURN_COMPLETE."""
    last = events[-1] if events else None
    if last is None or last.type is not HarnessEventType.TURN_COMPLETE:
        seen = "no event" if last is None else last.type.value
        raise HarnessError(f"the turn ended with {seen}: the adapter must end each turn with turn_complete")
    return HarnessResponse(
        response=str(last.data.get("response") or ""), events=events, done=bool(last.data.get("done"))
    )


def resolve_tool_conflicts(
    env_tools: Iterable[Tool], harness_builtin_tools: Iterable[str], prefix: str = "env_"
) -> list[Tool]:
    """Renames tools of an environment that have the name of a tool of the agent.

    Args:
        env_tools: The tools of the environment; they are not changed.
        harness_builtin_tools: Names of the agent's own tools.
        prefix: Put before a name that both have.

    Returns:
        The tools under the names that the agent sees.

    Raises:
        ValueError: A tool has a reserved name, two tools have the same name, or a name with the prefix is taken.
    """
    tools, builtin = list(env_tools), frozenset(harness_builtin_tools)
    reserved = sorted(RESERVED_TOOL_NAMES.intersection(tool.name for tool in tools))
    if reserved:
        raise ValueError(f"tools cannot use reserved names: {reserved}, which drive the environment")
    repeated = [name for name, times in Counter(tool.name for tool in tools).items() if times > 1]
    if repeated:
        raise ValueError(f"duplicate tool names: {repeated}: rename all but one of each")
    taken = builtin.union(tool.name for tool in tools)
    resolved = []
    for tool in tools:
        name = prefix + tool.name if tool.name in builtin else tool.name
        if name != tool.name and name in taken:
            raise ValueError(f"tool {tool.name!r} cannot be renamed to {name!r}, which is taken: rename one of them")
        resolved.append(tool if name == tool.name else tool.model_copy(update={"name": name}))
    return resolved
