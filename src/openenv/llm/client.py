"""The interface of model clients: messages, tools and tool calls, in the forms of OpenAI and Anthropic."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit


@dataclass
class ToolCall:
    """A tool call that the model requests, with its arguments."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """A model's answer: text, and tool calls if any."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The answer as an assistant message of the OpenAI API, to append to a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.args)},
                }
                for call in self.tool_calls
            ]
        return message


class LLMClient(ABC):
    """A language model that answers prompts. For another model, subclass it and implement `complete`.

    Args:
        endpoint: URL of the server, with `http` or `https`.
        port: Port of the server, if the URL has none.
    """

    def __init__(self, endpoint: str, port: int | None = None):
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """The endpoint with its port, without a trailing slash.

        Raises:
            ValueError: The endpoint is not a URL, or its port is not `port`.
        """
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint {self.endpoint!r} must be a URL such as http://localhost:8000")
        netloc = parts.netloc
        if self.port is not None and parts.port not in (None, self.port):
            raise ValueError(
                f"endpoint {self.endpoint!r} names port {parts.port}, but port={self.port} was given: leave one out"
            )
        if self.port is not None and parts.port is None:
            netloc = f"{netloc}:{self.port}"
        return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))

    @abstractmethod
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """Sends a prompt and returns the text of the answer.

        Args:
            prompt: The user's message.
            kwargs: Settings of this call, such as `temperature` and `max_tokens`.
        """

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools that the model may call.

        Args:
            messages: Messages in the form of the OpenAI API, with results of tools (`role: tool`).
            tools: Tools with `name`, `description` and `input_schema` (or `inputSchema`), or in the form of that API.
            kwargs: Settings of this call, as in `complete`.
        """
        raise NotImplementedError(f"{type(self).__name__} calls no tools: use OpenAIClient or AnthropicClient")

    async def aclose(self) -> None:  # noqa: B027 - most clients have nothing to close
        """Closes the client's connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


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


def blocks_of(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Converts a conversation from the form of the OpenAI API to that of Anthropic's.

    Returns:
        The system messages as one text, and the turns: results of tools are part of user turns, and turns of the same
        role are joined, since that API requires them to alternate.
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
