"""Tools and conversations in the forms that the two APIs want."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["blocks_of", "function_of"]


def function_of(tool: Any) -> dict[str, Any]:
    """A tool as the OpenAI API describes a function.

    Args:
        tool: A mapping or an object with `name`, `description` and `input_schema` (or `inputSchema`, as MCP has it);
            or what the OpenAI API wants, with or without `{"type": "function", "function": ...}` around it.

    Raises:
        ValueError: It has no name.
    """
    facts = _facts(tool)
    facts = facts.get("function") or facts
    name = facts.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a tool needs a name: {tool!r:.200}")
    schema: Mapping[str, Any] = next(
        (facts[key] for key in ("parameters", "input_schema", "inputSchema") if facts.get(key)), {}
    )
    parameters = {"type": "object", "properties": {}, **schema}
    return {"name": name, "description": facts.get("description") or "", "parameters": parameters}


def _facts(tool: Any) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        return tool
    names = ("name", "description", "parameters", "input_schema", "inputSchema")
    return {name: getattr(tool, name, None) for name in names}


def blocks_of(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """A conversation in the form of the OpenAI API as Anthropic's wants it.

    Returns:
        The system messages as one text, and the turns: results of tools are part of the user's, and turns of the same
        side are joined, since that API wants them to alternate.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") == "system":
            system.append(str(message.get("content") or ""))
            continue
        role = "assistant" if message.get("role") == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": content or ""}]
    blocks = list(content) if isinstance(content, list) else []
    if isinstance(content, str) and content:
        blocks.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        blocks.append({"type": "tool_use", "id": call.get("id", ""), "name": function["name"], "input": given})
    return blocks
