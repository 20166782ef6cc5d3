"""An environment of tools, on servers of either library."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import fastmcp

from openenv.mcp import CallToolAction, MCPEnvironment
from openenv.types import Action, Observation, State

try:
    from mcp.server.fastmcp import FastMCP as SdkServer
except ImportError:  # version 2 of the SDK
    from mcp.server.mcpserver import MCPServer as SdkServer

__all__ = ["SERVERS", "AsyncToolEnvironment", "Move", "SdkToolEnvironment", "ToolEnvironment", "call"]

SERVERS = {"fastmcp": fastmcp.FastMCP, "sdk": SdkServer}


class Move(Action):
    """An action that is no tool call."""

    by: int = 1


class ToolEnvironment(MCPEnvironment):
    """Counts. What its tools wait for is `gate`, which belongs to each instance."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    server_class: Any = fastmcp.FastMCP

    def __init__(self) -> None:  # noqa: C901 - as environments are written
        server = self.server_class("counter")
        self.count = 0
        self.steps = 0
        self.resets = 0
        self.gate = threading.Event()

        @server.tool()
        def add(a: int, b: int = 2) -> int:
            """Adds two numbers."""
            return a + b

        @server.tool()
        def increase(by: int = 1) -> dict[str, int]:
            self.count += by
            return {"count": self.count}

        @server.tool()
        async def later(text: str) -> str:
            await asyncio.sleep(0)
            return text.upper()

        @server.tool()
        def episode() -> int:
            return self.resets

        @server.tool()
        def nothing() -> None:
            pass

        @server.tool()
        def fail() -> str:
            raise ValueError("bad luck")

        @server.tool()
        def hang() -> str:
            self.gate.wait(20)
            return "over"

        @server.tool()
        async def hang_later() -> str:
            await asyncio.Event().wait()
            return "never"

        @server.tool()
        def thread() -> str:
            return threading.current_thread().name

        super().__init__(server)

        @self.tool(mode="production")
        def only_production() -> str:
            return "production"

        @self.tool(mode="simulation")
        def only_simulation() -> str:
            return "simulation"

        def here(word: str) -> Any:
            def which() -> str:
                return word

            return which

        self.tool(mode="production")(here("in production"))
        self.tool(mode="simulation")(here("in simulation"))

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        self.resets += 1
        self.count = self.steps = 0
        return Observation(metadata={"seed": seed})

    def _step_impl(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        self.count += action.by
        return Observation(reward=float(self.count), metadata={"timeout_s": timeout_s, **kwargs})

    @property
    def state(self) -> State:
        return State(step_count=self.steps, count=self.count)

    def close(self) -> None:
        self.gate.set()
        super().close()


class SdkToolEnvironment(ToolEnvironment):
    server_class = SdkServer


class AsyncToolEnvironment(ToolEnvironment):
    """On the event loop."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        return self.reset(seed=seed, episode_id=episode_id)

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        self.steps += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)


def call(name: str, **arguments: Any) -> CallToolAction:
    return CallToolAction(tool_name=name, arguments=arguments)
