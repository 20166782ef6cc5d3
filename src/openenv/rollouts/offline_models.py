"""Models without an endpoint: a Python function, and random calls of tools."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutinefunction
from random import Random
from typing import Any

import msgspec

from ..errors import ModelFailed, OpenEnvError
from ..llm.service import within
from ..testing.schemas import NoValue, SchemaValues
from .model import Completion, ModelRequest, check_values
from .records import ChatMessage

Answer = str | ChatMessage | Completion
"""What a function answers: a text, an assistant message, or a whole completion."""


class FunctionModel:
    """A model that is a function from the messages to an answer.

    An asynchronous function runs on the event loop. A synchronous one runs on a thread, since it may block; several
    may run at once.

    Args:
        function: `function(messages) -> Answer`, or an asynchronous one.
        name: Name of the model; None: that of the function.
    """

    takes_ids = False

    def __init__(
        self, function: Callable[[Sequence[ChatMessage]], Answer | Awaitable[Answer]], name: str | None = None
    ):
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self._function = function

    async def complete(self, request: ModelRequest) -> Completion:
        """Calls the function.

        Raises:
            ModelFailed: The function raised, or returned something else than an answer.
            ModelTimeout: It took longer than `request.timeout_s`.
        """
        started = time.perf_counter()
        try:
            answer = await within(
                request.timeout_s, lambda: self._answer(request.messages), retries=0, backoff_s=0.0, what=self.name
            )
        except OpenEnvError:
            raise
        except Exception as error:
            raise ModelFailed(f"the function {self.name} raised {type(error).__name__}: {error}") from error
        given = answer.message if isinstance(answer, Completion) else answer
        try:
            msgspec.json.encode(given)
            if isinstance(answer, Completion):
                check_values(answer)
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelFailed(f"the function {self.name} returned what cannot be recorded: {error}") from error
        if isinstance(answer, Completion):
            return answer
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        if not isinstance(message, dict) or message.get("role") != "assistant":
            raise ModelFailed(
                f"the function {self.name} returned {type(answer).__name__}: return a text, a message with "
                "role 'assistant', or a Completion"
            )
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(
            message=message, finish_reason=finish, model=self.name, seconds=time.perf_counter() - started
        )

    async def _answer(self, messages: Sequence[ChatMessage]) -> Any:
        if iscoroutinefunction(self._function):
            return await self._function(messages)
        answer = await asyncio.to_thread(self._function, messages)
        return await answer if isawaitable(answer) else answer  # an object may have an asynchronous `__call__`

    async def aclose(self) -> None:
        """Does nothing: a function has no connections."""


class RandomModel:
    """Calls a random one of the tools, with random arguments that its schema allows: a baseline, and a way to try an
    environment without an endpoint.

    The same key of a request repeats the same answer.

    Attributes:
        name: `random`.
    """

    name = "random"
    takes_ids = False

    async def complete(self, request: ModelRequest) -> Completion:
        """Chooses a tool call.

        Raises:
            ModelFailed: There are no tools: the environment takes its actions from text.
        """
        if not request.tools:
            raise ModelFailed("the model `random` calls tools, but this environment takes actions from text")
        random = Random(request.key)  # noqa: S311 - no secrets
        function = random.choice(request.tools)["function"]
        try:
            arguments = SchemaValues(function.get("parameters") or {"type": "object"}, random.getrandbits(32)).value()
        except NoValue as reason:
            raise ModelFailed(f"random cannot make up arguments of {function['name']}: {reason}") from None
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        calls = [{"id": f"call-{random.getrandbits(32):08x}", "type": "function", "function": call}]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        return Completion(message=message, finish_reason="tool_calls", model=self.name)

    async def aclose(self) -> None:
        """Does nothing: there are no connections."""
