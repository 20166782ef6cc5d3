"""A policy without a thought: actions made up from the JSON Schema that the server tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ..errors import PolicyFailed, UsageError
from ..mcp.types import Tool
from ..testing.schema_values import NoValue, SchemaValues
from .policy import Player

__all__ = ["RandomPolicy"]

# What is part of every action, and of none in particular.
_BESIDE = frozenset({"metadata"})


class RandomPolicy:
    """Does anything that the schema allows. The same seed does the same.

    Args:
        schema: The action's JSON Schema.
        tools: Where actions are tool calls.

    Raises:
        UsageError: There is nothing to do.
    """

    name = "random"
    # A schema may allow what the environment's own validation does not.
    attempts = 20

    def __init__(self, schema: Mapping[str, Any], tools: Sequence[Tool] | None = None):
        if tools is not None and not tools:
            raise UsageError("the environment offers no tools, so the policy `random` has nothing to do")
        self._schema = schema
        self._tools = tools

    async def begin(self, seed: int | None) -> Player:
        return _Playing(self._schema, self._tools, Random(seed))  # noqa: S311 - no secrets

    def close(self) -> None:
        pass


class _Playing:
    """One episode."""

    def __init__(self, schema: Mapping[str, Any], tools: Sequence[Tool] | None, random: Random):
        self._random = random
        self._actions = None if tools is not None else SchemaValues(schema, random.getrandbits(32), _BESIDE)
        self._tools = [(tool.name, SchemaValues(tool.input_schema, random.getrandbits(32))) for tool in tools or ()]

    async def act(self, observation: Mapping[str, Any]) -> Any:
        try:
            if self._actions is not None:
                return self._actions.value()
            name, arguments = self._random.choice(self._tools)
            return {"type": "call_tool", "tool_name": name, "arguments": arguments.value()}
        except NoValue as reason:
            raise PolicyFailed(f"random cannot make up an action: {reason}; give a policy of your own") from None
