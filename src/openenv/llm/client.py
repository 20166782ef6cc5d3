"""What every client for a language model offers, and what it gives back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

__all__ = ["LLMClient", "LLMResponse", "ToolCall"]


@dataclass
class ToolCall:
    """A tool that the model wants called, with its arguments."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """What a model answered: text, and perhaps calls of tools."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The answer as an assistant's message in the form of the OpenAI API, to be put into a conversation."""
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
    """A language model that answers prompts. Subclass it and write `complete` to bring a model of your own.

    Args:
        endpoint: URL of its server, with `http` or `https`.
        port: Its port, if the URL has none.
    """

    def __init__(self, endpoint: str, port: int | None = None):
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """The endpoint with its port, without a slash at the end.

        Raises:
            ValueError: The endpoint is no URL, or names another port than `port`.
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
            prompt: What the user says.
            kwargs: Settings of this one call, such as `temperature` and `max_tokens`.
        """

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools that the model may call.

        Args:
            messages: In the form of the OpenAI API, results of tools (`role: tool`) included.
            tools: Each with `name`, `description` and `input_schema` (or `inputSchema`), or as that API has them.
            kwargs: As for `complete`.
        """
        raise NotImplementedError(f"{type(self).__name__} calls no tools: use OpenAIClient or AnthropicClient")

    async def aclose(self) -> None:  # noqa: B027 - most have nothing to close
        """Closes what the client holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
