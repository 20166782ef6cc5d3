"""`HarnessEnvironment`: an agent program lives inside an environment, and each message to it is a step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from .._asyncio import on_thread, run_async_safely, run_to_completion
from .._exceptions import add_cleanup_note
from ..environment import Transform
from ..mcp.environment import MCPEnvironment, toolbox_of
from ..mcp.types import CallToolAction, ListToolsAction, Tool
from ..types import Action, Observation, State
from .agents import (
    AgenticHarnessAdapter,
    HarnessError,
    HarnessEvent,
    HarnessEventType,
    HarnessNotRunningError,
    HarnessTurnTimeoutError,
    events_to_metadata,
    resolve_tool_conflicts,
    turn_of,
)
from .tool_server import HarnessMCPBridge, build_bridge_server

logger = logging.getLogger("openenv.harness")


class HarnessAction(Action):
    """A message for the agent."""

    message: str


class HarnessEnvironment(MCPEnvironment):
    """An episode is a conversation with an agent program; each of its turns is a step.

    `reset` starts the agent, with the tools of `mcp` served to it. A turn that fails ends the episode: the
    observation is done, `metadata` has `error`, `error_type` and the events until then, and the reward is None, since
    no reward is known.

    Args:
        adapter: Runs the agent; nothing starts before `reset`.
        mcp: FastMCP server with tools for the agent; by default one without tools.
        rubric: Scores each turn; without one the reward of a turn is 0.
        transform: Applied to the observation of each turn.
    """

    SUPPORTS_CONCURRENT_SESSIONS = False

    def __init__(
        self,
        adapter: AgenticHarnessAdapter,
        mcp: Any = None,
        rubric: Callable[[Any, Any], Any] | None = None,
        transform: Transform[Any] | None = None,
    ) -> None:
        if mcp is None:
            from fastmcp import FastMCP

            mcp = FastMCP("harness")
        super().__init__(mcp, transform=transform, rubric=rubric)
        self.adapter = adapter
        self._bridge: HarnessMCPBridge | None = None
        self._active = False
        self._state = State()
        self._trajectory: list[HarnessEvent] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def trajectory(self) -> list[HarnessEvent]:
        """The events of all turns of the episode."""
        return list(self._trajectory)

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """Stops the old agent, and starts another.

        Returns:
            An observation with `episode_id` and `injected_tools` in its metadata.

        Raises:
            HarnessStartupError: The agent did not start.
            ValueError: A tool has a name that cannot be used.
        """
        await self._tear_down()
        try:
            tools, url = await self._serve_tools()
            await self.adapter.inject_tools(tools, url)
            await self.adapter.start(self.adapter.config.working_directory)
            self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
            self._trajectory = []
            await self._reset_rubric_async()
        except BaseException as error:
            with add_cleanup_note(error):
                await self._tear_down()
            raise
        self._active = True
        names = [tool.name for tool in tools]
        return Observation(
            done=False, reward=0.0, metadata={"episode_id": self._state.episode_id, "injected_tools": names}
        )

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """`reset_async` for synchronous callers."""
        return run_async_safely(self.reset_async(seed=seed, episode_id=episode_id, **kwargs))

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Gives a message to the agent, or calls a tool.

        Args:
            action: A `HarnessAction`, or a tool action as in `MCPEnvironment`.
            timeout_s: Seconds for the turn; by default `session_timeout_s` of the adapter's configuration.

        Returns:
            `response`, `turn_events` and `turn_number` in the metadata of an observation with the rubric's reward.

        Raises:
            HarnessNotRunningError: There is no episode: call `reset` first.
            TypeError: The action is of another kind.
        """
        if isinstance(action, ListToolsAction | CallToolAction):
            observation: Observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
            return observation
        self._check(action)
        async with aclosing(self.stream_turn(action, timeout_s)) as turn:
            async for each in turn:
                if isinstance(each, Observation):
                    return each
        raise HarnessError("the turn has no observation")

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """`step_async` for synchronous callers."""
        return run_async_safely(self.step_async(action, timeout_s=timeout_s, **kwargs))

    async def stream_turn(
        self, action: HarnessAction, timeout_s: float | None = None
    ) -> AsyncGenerator[HarnessEvent | Observation, None]:
        """One turn as it happens.

        Yields:
            The agent's events, then the observation of the turn.
        """
        if not self._active:
            raise HarnessNotRunningError("there is no episode: call reset() first")
        limit_s = self.adapter.config.session_timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + limit_s
        events: list[HarnessEvent] = []
        failure: Exception | None = None
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                if not await self.adapter.is_alive():
                    raise HarnessNotRunningError(f"the agent {self.adapter.config.name} has ended")
            stream = self.adapter.send_message_streaming(action.message)
            while True:
                limit = asyncio.timeout_at(deadline)
                async with limit:
                    event = await anext(stream, None)
                if event is None:
                    break
                events.append(event)
                self._trajectory.append(event)
                yield event
            turn = turn_of(events)
        except (GeneratorExit, asyncio.CancelledError):
            await self._tear_down()
            raise
        except TimeoutError as error:
            what = f"the turn took more than {limit_s:g} s (timeout_s, session_timeout_s)"
            failure = HarnessTurnTimeoutError(what) if limit.expired() else error
        except Exception as error:  # noqa: BLE001 - the edge to foreign code
            failure = error
        if failure is not None:
            facts = {"message": str(failure) or type(failure).__name__, "recoverable": False}
            events.append(HarnessEvent(type=HarnessEventType.ERROR, data=facts))
            self._trajectory.append(events[-1])
            yield await self._failed(failure, events)
            return
        self._state.step_count += 1
        done = {"response": turn.response, "turn_events": events_to_metadata(events)}
        observation = Observation(done=turn.done, metadata={**done, "turn_number": self._state.step_count})
        observation.reward = await self._apply_rubric_async(action, observation)
        yield self._apply_transform(observation)

    def close(self) -> None:
        """Stops the agent and the server of its tools."""
        try:
            run_async_safely(self._tear_down())
        finally:
            super().close()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return run_async_safely(self.step_async(action, timeout_s=timeout_s, **kwargs))

    def _check(self, action: Any) -> None:
        if not isinstance(action, HarnessAction):
            raise TypeError(
                f"{type(action).__name__} is no action of this environment: pass HarnessAction(message=...)"
            )

    async def _serve_tools(self) -> tuple[list[Tool], str | None]:
        """The tools under the names that the agent sees, and the address of their server; None without tools."""
        toolbox = toolbox_of(self)
        if toolbox is None:
            return [], None
        own = [listed.tool for listed in await toolbox.library.tools()]
        dropped = toolbox.names_of_modes()
        if dropped:
            logger.warning("tools %s exist in one mode only, and are not served to the agent", dropped)
        resolved = resolve_tool_conflicts(own, self.adapter.BUILTIN_TOOL_NAMES)
        if not resolved:
            return [], None
        renames = {
            tool.name: source.name for tool, source in zip(resolved, own, strict=True) if tool.name != source.name
        }
        self._bridge = HarnessMCPBridge(await build_bridge_server(self.mcp_server, renames))
        return resolved, await on_thread(self._bridge.start)

    async def _failed(self, failure: Exception, events: list[HarnessEvent]) -> Observation:
        """The observation of a turn that failed. The agent is stopped."""
        logger.warning("a turn of %s failed", self.adapter.config.name, exc_info=failure)
        kind = "turn_timeout" if isinstance(failure, HarnessTurnTimeoutError) else "harness_crashed"
        try:
            await self._tear_down()
        except Exception:  # the edge to foreign code
            logger.warning("%s could not be stopped", self.adapter.config.name, exc_info=True)
        facts = {"error": str(failure) or type(failure).__name__, "error_type": kind}
        return Observation(done=True, reward=None, metadata={**facts, "turn_events": events_to_metadata(events)})

    async def _tear_down(self) -> None:
        """Stops the agent and the server of its tools, also if the caller is cancelled."""
        self._active = False
        await run_to_completion(self._stop())

    async def _stop(self) -> None:
        try:
            await self.adapter.stop()
        finally:
            if self._bridge is not None:
                await on_thread(self._bridge.stop)
                self._bridge = None
