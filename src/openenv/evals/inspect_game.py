"""One episode that a model of Inspect AI plays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from inspect_ai.model import ChatMessageUser, execute_tools
from inspect_ai.solver import Generate, TaskState
from inspect_ai.tool import ToolDef, ToolError, ToolParams

from ..client import GenericEnvClient
from ..errors import InvalidAction
from ..mcp.types import Tool
from ..types import StepResult
from .wording import Wording, inlined

__all__ = ["Game", "Turns"]

OVER = "the episode is over"


class Game:
    """A session, and what came of its episode so far.

    Args:
        base_url: Address of the server.
        wanted: Arguments of the reset.
        note: Is told what there is, after every step: return, steps, and how it ended.
        client: Further arguments of the client.
    """

    def __init__(
        self,
        base_url: str,
        wanted: Mapping[str, Any],
        note: Callable[[dict[str, Any]], object],
        client: Mapping[str, Any],
    ):
        self._client = GenericEnvClient(base_url, **client)
        self._wanted = wanted
        self._note = note
        self._total: float | None = None
        self._steps = 0
        self.first: dict[str, Any] = {}
        self.done = False

    async def __aenter__(self) -> Self:
        try:
            result = await self._client.reset(**self._wanted)
        except BaseException:
            await self._client.close()
            raise
        self.first, self.done = result.observation, result.done
        self._tell(result)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Does an action. Returns the observation. Raises OpenEnvError."""
        result = await self._client.step(dict(action))
        self._steps += 1
        self.done = result.done
        if result.reward is not None:
            self._total = (self._total or 0.0) + float(result.reward)
        self._tell(result)
        return result.observation

    def tool(self, told: Tool) -> ToolDef:
        """One of the environment's tools, each call of which is a step."""

        async def execute(**arguments: Any) -> str:
            if self.done:
                raise ToolError(OVER)
            seen = await self.step({"type": "call_tool", "tool_name": told.name, "arguments": arguments})
            error = seen.get("error")
            if error:
                raise ToolError(str(error.get("message", error)) if isinstance(error, Mapping) else str(error))
            return _text_of(seen.get("result")) + (f"\n({OVER})" if self.done else "")

        parameters = ToolParams.model_validate(inlined(told.input_schema))
        for field, part in parameters.properties.items():
            part.description = part.description or field
        return ToolDef(execute, told.name, told.description, parameters)

    def _tell(self, result: StepResult[dict[str, Any]]) -> None:
        end = "not over"
        if result.done:
            end = "truncated" if result.truncated and not result.terminated else "terminated"
        self._note({"return": self._total, "steps": self._steps, "end": end})


class Turns:
    """The model and the environment, in turn.

    Args:
        game: The episode.
        state: Inspect's, with the conversation.
        generate: Inspect's: the model's next answer.
        most: Of the model's answers.
    """

    def __init__(self, game: Game, state: TaskState, generate: Generate, most: int):
        self._game = game
        self._state = state
        self._generate = generate
        self._most = most

    async def by_text(self, wording: Wording) -> None:
        """Each answer is an action."""
        self._begin(wording.shown(self._game.first))
        for _ in range(self._most):
            if self._game.done:
                return
            self._state = await self._generate(self._state)
            try:
                seen = wording.shown(await self._game.step(wording.read(self._state.output.completion)))
            except InvalidAction as error:
                seen = f"That is no action: {error}"
            self._state.messages.append(ChatMessageUser(content=seen))

    async def by_tools(self, tools: Sequence[Tool]) -> None:
        """Each tool call is a step; an answer without one ends the episode."""
        self._begin(Wording.shown(self._game.first))
        self._state.tools = [self._game.tool(each).as_tool() for each in tools]
        for _ in range(self._most):
            if self._game.done:
                return
            self._state = await self._generate(self._state, tool_calls="none")
            if not self._state.output.message.tool_calls:
                return
            found = await execute_tools(self._state.messages, self._state.tools)
            self._state.messages.extend(found.messages)

    def _begin(self, text: str) -> None:
        """The first observation, in place of the sample's own words."""
        message = self._state.user_prompt
        message.content = text if text not in {"", "{}"} else "Begin."


def _text_of(result: Any) -> str:
    """What a tool gave, for the model."""
    value = result.get("data") if isinstance(result, Mapping) and "data" in result else result
    if value is None and isinstance(result, Mapping):
        blocks = result.get("content") or ()
        return "\n".join(str(block.get("text", block)) for block in blocks if isinstance(block, Mapping))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
