"""Model clients by API: OpenAI-compatible servers and Anthropic, and `create_llm_client` to pick one by name."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from .messages import anthropic_tool, blocks_of, message_of_blocks
from .sender import Address
from .service import LLMClient, LLMResponse, ServedModel

_API_VERSION = "2023-06-01"


def openai_address(base_url: str, key: str) -> Address:
    """Destination of requests to an OpenAI-compatible server. A URL without a path gets `/v1`."""
    root = base_url if urlsplit(base_url).path else f"{base_url}/v1"
    return Address(root, "openai", key, {"authorization": f"Bearer {key}"} if key else {}, {})


def anthropic_address(base_url: str, key: str) -> Address:
    """Destination of requests to Anthropic's API, with or without `/v1` in the URL."""
    root, auth = base_url.removesuffix("/v1"), {"x-api-key": key} if key else {}
    return Address(root, "anthropic", key, auth, {"anthropic-version": _API_VERSION})


class OpenAIClient(ServedModel):
    """Client for chat completions of OpenAI-compatible servers. An endpoint without a path gets `/v1`.

    Args:
        endpoint: URL of the server, `http://localhost` for instance.
        port: Port of the server; None for the port in the URL, or the default one.
        model: Name of the model.
        api_key: API key; None for a server without authentication.
        system_prompt: System message of conversations without one.
        temperature: Default temperature of calls.
        max_tokens: Default limit of an answer, in tokens.
        use_max_completion_tokens: Send the limit under the name that reasoning models require, and no temperature,
            which they reject.
        timeout_s: Limit for an answer in seconds, with all attempts and pauses.
        retries: Most retries after a refused connection, 408, 409, 425, 429 or 5xx.
        backoff_s: Base of the pause between attempts: a random part of `backoff_s * 2**n` seconds, or Retry-After.
        sdk: Whether to use the package `openai`; None to use it if it is installed.

    Raises:
        ValueError: The endpoint is not a URL, or has another port.
    """

    _address_of = staticmethod(openai_address)
    _tool = staticmethod(lambda function: {"type": "function", "function": function})

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        use_max_completion_tokens: bool = False,
        *,
        timeout_s: float = 120.0,
        retries: int = 2,
        backoff_s: float = 0.5,
        sdk: bool | None = None,
    ):
        self.use_max_completion_tokens = use_max_completion_tokens
        super().__init__(
            endpoint,
            port,
            model,
            api_key,
            system_prompt,
            temperature,
            max_tokens,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            sdk=sdk,
        )

    async def response_of(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> LLMResponse:
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens, **kwargs}
        if self.use_max_completion_tokens:
            settings.pop("temperature")
            settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
        if self.system_prompt and not any(message.get("role") == "system" for message in messages):
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        answer = await self._ask("/chat/completions", {"model": self.model, "messages": messages, **settings})
        try:
            message = answer["choices"][0]["message"]
        except (KeyError, IndexError, TypeError):
            message = None
        if not isinstance(message, dict):
            raise self.unreadable_error("no chat completion", answer)
        if "tools" not in kwargs:  # some servers add calls to an answer although no tool was offered
            message.pop("tool_calls", None)
        return self._responded(message)


class AnthropicClient(ServedModel):
    """Client for Anthropic's messages, with conversations and tools in the same form as for `OpenAIClient`.

    Args:
        endpoint: URL of the server, `https://api.anthropic.com` for instance.
        port: Port of the server; None for the port in the URL, or the default one.
        model: Name of the model.
        api_key: API key; None for a server without authentication.
        system_prompt: System message of conversations without one.
        temperature: Default temperature of calls.
        max_tokens: Default limit of an answer, in tokens.
        timeout_s: Limit for an answer in seconds, with all attempts and pauses.
        retries: Most retries after a refused connection, 408, 409, 425, 429 or 5xx.
        backoff_s: Base of the pause between attempts: a random part of `backoff_s * 2**n` seconds, or Retry-After.
        sdk: Whether to use the package `anthropic`; None to use it if it is installed.

    Raises:
        ValueError: The endpoint is not a URL, or has another port.
    """

    _address_of = staticmethod(anthropic_address)
    _tool = staticmethod(anthropic_tool)

    async def response_of(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> LLMResponse:
        system, turns = blocks_of(messages)
        body = {
            "model": self.model,
            "messages": turns,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **kwargs,
        }
        if system or self.system_prompt:
            body.setdefault("system", system or self.system_prompt)
        answer = await self._ask("/v1/messages", body)
        blocks = answer.get("content")
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise self.unreadable_error("no message", answer)
        return self._responded(message_of_blocks(blocks))


# Reasoning models require another name for the limit, and reject a temperature.
REASONING = re.compile(r"o\d|gpt-5")


def create_llm_client(
    provider: str,
    model: str,
    api_key: str | None = None,
    *,
    system_prompt: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
) -> LLMClient:
    """The client for a provider's service.

    Args:
        provider: `openai` or `anthropic`.
        model: Name of the model.
        api_key: API key of the provider.
        system_prompt: System message of conversations without one.
        temperature: Default temperature of calls.
        max_tokens: Default limit of an answer, in tokens.

    Raises:
        ValueError: The provider is unknown; use `OpenAIClient` with the endpoint of a compatible API.
    """
    name = provider.lower()
    arguments = (f"https://api.{name}.com", 443, model, api_key, system_prompt, temperature, max_tokens)
    if name == "openai":
        return OpenAIClient(*arguments, use_max_completion_tokens=REASONING.match(model) is not None)
    if name == "anthropic":
        return AnthropicClient(*arguments)
    raise ValueError(
        f"Unsupported provider: {provider!r}. Supported: ['anthropic', 'openai']; for another service with a "
        "compatible API use OpenAIClient(endpoint, port, model)"
    )
