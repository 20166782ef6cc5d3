"""What the models of the server answer: functions of the conversation, by the name of the model."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelReply:
    """What a policy says.

    Attributes:
        content: The text.
        calls: Tool calls: name, and arguments as JSON text.
        reasoning: The reasoning.
        finish: `stop`, `length`, `tool_calls`, `content_filter`; None: what follows from the rest.
        refusal: Why it refuses.
        byte_tokens: Sampled byte by byte: tokenizing the text again gives other ids.
    """

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    reasoning: str = ""
    finish: str | None = None
    refusal: str | None = None
    byte_tokens: bool = False


Policy = Callable[[list[dict[str, Any]], list[dict[str, Any]]], ModelReply | str]
"""From messages and function tools, in the form of OpenAI's chat completions, to a reply."""


def echo(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Says the last message again."""
    said = messages[-1].get("content") if messages else ""
    return ModelReply(said if isinstance(said, str) else json.dumps(said))


def tool(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Calls the first tool with the least arguments that its schema allows; without tools it answers with them."""
    if not tools:
        return ModelReply("{}")
    function = tools[0].get("function", tools[0])
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    arguments = {name: _least(properties.get(name, {})) for name in schema.get("required") or ()}
    return ModelReply(calls=[(function["name"], json.dumps(arguments))])


def bytewise(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """As `echo`, sampled byte by byte."""
    return ModelReply(echo(messages, tools).content, byte_tokens=True)


def thinking(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """As `tool`, with reasoning."""
    reply = tool(messages, tools)
    reply.reasoning = "The first tool should do."
    return reply


def refuse(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Refuses."""
    return ModelReply(refusal="I cannot help with that.")


def filtered(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Is stopped by a filter."""
    return ModelReply("I would", finish="content_filter")


def garble(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Calls the first tool with arguments that are no JSON."""
    return ModelReply(calls=[((tools[0].get("function", tools[0]))["name"] if tools else "none", "{broken")])


POLICIES: dict[str, Policy] = {
    policy.__name__: policy for policy in (echo, tool, bytewise, thinking, refuse, filtered, garble)
}


def policy_of(model: str, own: Mapping[str, Policy]) -> Policy | None:
    """The policy of a model's name.

    `say:TEXT` always says that text, `tokens:N` one of N tokens, `call:NAME:JSON` always calls that tool, and
    `package.module:function` is a policy of any module.
    """
    if model in own or model in POLICIES:
        return own.get(model) or POLICIES[model]
    kind, _, rest = model.partition(":")
    if kind == "say":
        return lambda messages, tools: rest
    if kind == "tokens":
        return lambda messages, tools: "ab" * (int(rest) - 1)  # a token has two bytes; the last one ends the answer
    if kind == "call":
        name, _, arguments = rest.partition(":")
        return lambda messages, tools: ModelReply(calls=[(name, arguments or "{}")])
    if rest and "." in kind:
        found: Policy = getattr(importlib.import_module(kind), rest)
        return found
    return None


_LEAST = {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}, "null": None}


def _least(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _least(options[0])
    if "minimum" in schema:
        return schema["minimum"]
    return _LEAST.get(schema.get("type", ""), "x" * int(schema.get("minLength", 1)))
