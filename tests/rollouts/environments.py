"""Environments and models that the tests of rollouts share."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from openenv.environment import Environment
from openenv.errors import NotForkable
from openenv.rollouts import ChatMessage, Completion, ModelRequest, TokenUsage
from openenv.types import Action, Observation, State

from ..model_server import ModelReply
from ..model_server.policies import tool

__all__ = ["Add", "ScriptedModel", "Sums", "Total", "adding", "calling"]


class Add(Action):
    """Adds a number from 1 to 9."""

    by: int


class Total(Observation):
    """The sum so far."""

    total: int = 0


class Sums(Environment[Add, Total, State]):
    """Add numbers to the seed. The reward of a step is the number; the fault of an episode is an argument of reset.

    Attributes:
        resets: Number of resets by seed, in this process.
        taken: Number of steps.
        live: Number of environments, and the most there were.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"
    resets: Counter[int] = Counter()
    taken: int = 0
    live: int = 0
    most_live: int = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).live += 1
        type(self).most_live = max(self.live, self.most_live)

    @classmethod
    def forget(cls) -> None:
        """Begins to count anew."""
        cls.resets, cls.taken = Counter(), 0
        cls.most_live = cls.live

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, length: int = 3, fault: str = "", **_: Any
    ) -> Total:
        self.seed = self.total = seed or 0
        self.resets[self.seed] += 1
        self.steps, self.length, self.fault = 0, length, fault
        if fault == "reset":
            raise RuntimeError("no episode")
        return Total(total=self.total)

    def step(self, action: Add, timeout_s: float | None = None, **_: Any) -> Total:
        if not 1 <= action.by <= 9:
            raise ValueError(f"{action.by} is not from 1 to 9")
        self.steps += 1
        type(self).taken += 1
        if self.fault == "raise" and self.steps == 2:
            raise RuntimeError("broken")
        self.total += action.by + (self.resets[self.seed] if self.fault == "random" else 0)
        reward = float("nan") if self.fault == "nan" and self.steps == 2 else float(action.by)
        return Total(total=self.total, reward=reward, done=self.steps >= self.length)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)

    def save_state(self) -> Any:
        if self.fault in {"locked", "random"}:
            raise NotForkable("no copies")
        return self.seed, self.total, self.steps, self.length, self.fault

    def load_state(self, state: Any) -> None:
        self.seed, self.total, self.steps, self.length, self.fault = state

    def close(self) -> None:
        type(self).live -= 1


Answer = Callable[[Sequence[ChatMessage]], Any]


class ScriptedModel:
    """Answers by a function of the messages: it gives the arguments of `add`, or a text, or raises.

    Without a function it calls the first tool.

    Attributes:
        requests: All requests.
        answered: The idempotency keys of those that were answered, in order.
        most: The most calls at the same time.
    """

    name = "scripted"
    takes_ids = False

    def __init__(self, answer: Answer | None):
        self._answer = answer
        self._live = 0
        self.requests: list[ModelRequest] = []
        self.answered: list[str] = []
        self.most = 0

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of all requests."""
        return [request.key for request in self.requests]

    async def complete(self, request: ModelRequest) -> Completion:
        self.requests.append(request)
        self._live += 1
        self.most = max(self.most, self._live)
        try:
            await asyncio.sleep(0)
            said = self._answer(request.messages) if self._answer is not None else tool([], list(request.tools))
            if hasattr(said, "__await__"):
                said = await said
        finally:
            self._live -= 1
        self.answered.append(request.key)
        if isinstance(said, Completion):
            return said
        if isinstance(said, ModelReply):
            calls = [_call(number, *call) for number, call in enumerate(said.calls)]
            return Completion(message={"role": "assistant", "content": said.content, "tool_calls": calls})
        usage = TokenUsage(prompt_tokens=10 * len(request.messages), completion_tokens=5, cost=0.5)
        if isinstance(said, str):
            return Completion(message={"role": "assistant", "content": said}, usage=usage)
        given = said if isinstance(said, list) else [said]
        calls = [_call(number, "add", json.dumps(arguments)) for number, arguments in enumerate(given)]
        return Completion(message={"role": "assistant", "content": None, "tool_calls": calls}, usage=usage)

    async def aclose(self) -> None: ...


def _call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def calling() -> ScriptedModel:
    """Always calls the first tool."""
    return ScriptedModel(None)


def adding(by: int = 2) -> ScriptedModel:
    """Always adds that number."""
    return ScriptedModel(lambda messages: {"by": by})
