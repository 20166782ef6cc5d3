"""A logbook: its tools log, report progress and keep a state in the session that they are called in."""

from typing import Any, Optional
from uuid import uuid4

from fastmcp import Context, FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class LogbookEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("logbook_env")
        self.entries: list[str] = []
        self.sessions: set[str] = set()

        @mcp.tool
        async def write(text: str, ctx: Context) -> dict[str, Any]:
            """Write an entry; tells how many this session has written."""
            await ctx.info(f"writing {text!r}")
            count = (await ctx.get_state("written") or 0) + 1
            await ctx.set_state("written", count)
            self.sessions.add(ctx.session_id)
            self.entries.append(text)
            return {"written": count, "sessions": len(self.sessions), "request": bool(ctx.request_id)}

        @mcp.tool
        async def copy(times: int, ctx: Context) -> list[str]:
            """Copy the last entry, and tell how far that is."""
            for number in range(times):
                await ctx.report_progress(number, times)
                self.entries.append(self.entries[-1])
            return self.entries

        @mcp.tool
        async def burn(ctx: Context) -> str:
            """Forget everything; fails where there is nothing."""
            if not self.entries:
                await ctx.warning("nothing to burn")
                raise ValueError("the logbook is empty")
            self.entries.clear()
            await ctx.delete_state("written")
            return "burnt"

        super().__init__(mcp)
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> Observation:
        self.entries.clear()
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(done=False, reward=0.0, metadata={"entries": 0})

    def _step_impl(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        return Observation(done=True, reward=-1.0, metadata={"error": "use tools"})

    def step(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    @property
    def state(self) -> State:
        return self._state
