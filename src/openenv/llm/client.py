"""The interface of model clients."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from .messages import assistant_message


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
        calls = [{"id": call.id, "name": call.name, "arguments": json.dumps(call.args)} for call in self.tool_calls]
        return assistant_message(self.content, calls)


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
