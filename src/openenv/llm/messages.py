"""Messages in the forms of three APIs: OpenAI's chat completions, its responses, and Anthropic's messages.

A message of this package has the form of chat completions. What only another API knows (signed reasoning) stays in it
under a key of its own, since that API wants it back: `thinking_blocks` (Anthropic), `reasoning_items` (responses).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .sender import as_json


def function_of(tool: Any) -> dict[str, Any]:
    """Converts a tool to a function description of the OpenAI API.

    Args:
        tool: A mapping or an object with `name`, `description` and `input_schema` (or MCP's `inputSchema`); or a
            function description of the OpenAI API, with or without `{"type": "function", "function": ...}` around it.

    Raises:
        ValueError: The tool has no name.
    """
    names = ("name", "description", "parameters", "input_schema", "inputSchema")
    facts: Mapping[str, Any] = (
        tool if isinstance(tool, Mapping) else {name: getattr(tool, name, None) for name in names}
    )
    facts = facts.get("function") or facts
    name = facts.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a tool needs a name: {tool!r:.200}")
    schema: Mapping[str, Any] = next(
        (facts[key] for key in ("parameters", "input_schema", "inputSchema") if facts.get(key)), {}
    )
    parameters = {"type": "object", "properties": {}, **schema}
    return {"name": name, "description": facts.get("description") or "", "parameters": parameters}


def text_of(content: Any) -> str:
    """The text of a message's content: a text, or the texts among its parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def assistant_message(content: str, calls: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """An assistant message.

    Args:
        content: Its text.
        calls: Its tool calls, each with `id`, `name` and `arguments` as JSON text.
        more: Further fields; those that are empty are left out.
    """
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return {**message, **{name: value for name, value in more.items() if value}}


# Plain text

TextParser = Callable[[str], dict[str, Any]]
"""From the text that a model sampled to its assistant message."""

_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"


def parse_hermes(text: str) -> dict[str, Any]:
    """Reads `<think>` and `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write them.

    A call that is no such JSON stays in the text, where the environment's answer can name it.
    """
    thoughts, end, rest = text.partition(_THOUGHT_END)
    text = rest.lstrip() if end else text
    calls: list[dict[str, str]] = []
    content, position = "", 0
    # No regular expression: a model may write spaces, or begin calls, without end.
    while (stop := text.find(_CALL_END, position)) >= 0:
        start = text.find(_CALL, position, stop)
        call = as_json(text[start + len(_CALL) : stop]) if start >= 0 else None
        stop += len(_CALL_END)
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            arguments = call.get("arguments", {})
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append({"id": f"call_{len(calls)}", "name": call["name"], "arguments": shown})
            content += text[position:start].rstrip()
        else:
            content += text[position:stop]
        position = stop
    reasoning = thoughts.strip().removeprefix(_THOUGHT).strip() if end else ""
    return assistant_message(content + text[position:], calls, reasoning_content=reasoning)


# Anthropic's messages


def blocks_of(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Converts a conversation to the form of Anthropic's API.

    Returns:
        The system messages as one text, and the turns: results of tools are part of user turns, and turns of the same
        role are joined, since that API requires them to alternate.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") == "system":
            system.append(text_of(message.get("content")))
            continue
        role = "assistant" if message.get("role") == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a function description of the OpenAI API to a tool of Anthropic's."""
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def message_of_blocks(blocks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Converts the content of an answer of Anthropic's API to an assistant message."""
    text, thoughts, calls = [], [], []
    for block in blocks:
        match block.get("type"):
            case "text":
                text.append(str(block.get("text") or ""))
            case "thinking" | "redacted_thinking":
                thoughts.append(block)
            case "tool_use":
                given = block.get("input") or {}
                arguments = given if isinstance(given, str) else json.dumps(given)
                calls.append({"id": block.get("id") or "", "name": block.get("name"), "arguments": arguments})
    reasoning = "".join(str(block.get("thinking") or "") for block in thoughts)
    return assistant_message("".join(text), calls, reasoning_content=reasoning, thinking_blocks=thoughts)


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        result = _parts(content) if isinstance(content, list) else content or ""
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": result}]
    blocks = [*message.get("thinking_blocks", ()), *(_parts(content) if isinstance(content, list) else ())]
    if isinstance(content, str) and content:
        blocks.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        given = arguments
        if isinstance(arguments, str):  # the API demands an object: those that are none are kept as text in one
            try:
                given = json.loads(arguments)
            except ValueError:
                given = None
            given = given if isinstance(given, dict) else {"invalid": arguments}
        blocks.append({"type": "tool_use", "id": call.get("id", ""), "name": function["name"], "input": given})
    return blocks


def _parts(parts: Iterable[Mapping[str, Any]]) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        if not _is_image(part):
            found.append(part)
            continue
        url = _url(part)
        kind, comma, data = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": kind, "data": data} if comma else {"type": "url", "url": url}
        found.append({"type": "image", "source": source})
    return found


def _is_image(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image_url"


def _url(part: Mapping[str, Any]) -> str:
    image = part["image_url"]
    return str(image["url"] if isinstance(image, Mapping) else image)


# OpenAI's responses


def items_of(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Converts a conversation to the form of OpenAI's responses: the instructions, and the input items."""
    instructions: list[str] = []
    items: list[dict[str, Any]] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        given = content or ""
        if isinstance(content, list):
            given = [
                {"type": "input_image", "image_url": _url(part)}
                if _is_image(part)
                else {"type": "input_text", "text": part.get("text", "")}
                for part in content
            ]
        if role == "system":
            instructions.append(text_of(content))
        elif role == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": given}
            )
        elif role == "assistant":
            items += message.get("reasoning_items", ())
            if content:
                items.append({"role": role, "content": text_of(content)})
            for call in message.get("tool_calls") or ():
                items.append({"type": "function_call", "call_id": call.get("id", ""), **call["function"]})
        else:
            items.append({"role": role, "content": given})
    return "\n\n".join(instructions), items


def message_of_items(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Converts the output of OpenAI's responses to an assistant message, with `refusal` if the model refused."""
    text, refusals, thoughts, calls = [], [], [], []
    for item in items:
        match item.get("type"):
            case "message":
                for part in item.get("content") or ():
                    text.append(str(part.get("text") or ""))
                    refusals.append(str(part.get("refusal") or ""))
            case "reasoning":
                thoughts.append(item)
            case "function_call":
                calls.append({"id": item.get("call_id") or "", **{key: item[key] for key in ("name", "arguments")}})
    reasoning = "\n\n".join(text_of(item.get("summary") or item.get("content")) for item in thoughts)
    return assistant_message(
        "".join(text), calls, refusal="".join(refusals), reasoning_content=reasoning, reasoning_items=thoughts
    )
