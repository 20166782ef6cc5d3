"""The OpenAI-compatible API: OpenAI itself, vLLM, SGLang, Ollama, llama.cpp and most gateways."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from .client import LLMResponse, ToolCall
from .sender import Address
from .service import ServedModel
from .tools import function_of

__all__ = ["OpenAIClient"]


class OpenAIClient(ServedModel):
    """Chat completions. An endpoint without a path gets `/v1`.

    Args:
        endpoint: URL of the server, `http://localhost` for instance.
        port: Its port; None if the URL says it, or for the usual one.
        model: Name of the model.
        api_key: None for a server that asks for none.
        system_prompt: Begins each conversation that has no system message of its own.
        temperature: For calls that do not say otherwise.
        max_tokens: The same.
        use_max_completion_tokens: Send the limit under the name that reasoning models want, and no temperature, which
            they refuse.
        timeout_s: Seconds for an answer, attempts and pauses included.
        retries: How often a call is made again after a refused connection, 408, 409, 425, 429 or 5xx.
        backoff_s: A random part of `backoff_s * 2**n` lies between two attempts; or what Retry-After asks for.
        sdk: Send through the package `openai`; None: if it is installed.

    Raises:
        ValueError: The endpoint is no URL, or names another port.
    """

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

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """Sends a prompt and returns the text of the answer.

        Args:
            prompt: What the user says.
            kwargs: `temperature`, `max_tokens`, and whatever else the API takes.

        Raises:
            ModelFailed: The server refused, or answered what cannot be read.
            ModelUnavailable: It could not be reached, or not now; `ModelTimeout` if the time was over.
            MissingExtra: httpx is not installed.
        """
        return _text(await self._message([{"role": "user", "content": prompt}], kwargs))

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools; see `LLMClient`. Raises as `complete` does."""
        if tools:
            kwargs["tools"] = [{"type": "function", "function": function_of(tool)} for tool in tools]
        message = await self._message(messages, kwargs)
        calls = message.get("tool_calls") or []
        return LLMResponse(_text(message), [self._tool_call(call) for call in calls])

    async def _message(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> dict[str, Any]:
        answer = await self._ask("/chat/completions", self._body(messages, kwargs))
        try:
            message = answer["choices"][0]["message"]
        except (KeyError, IndexError, TypeError):
            message = None
        if not isinstance(message, dict):
            raise self._garbage("no chat completion", answer)
        return message

    def _body(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> dict[str, Any]:
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens, **kwargs}
        if self.use_max_completion_tokens:
            settings.pop("temperature")
            settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
        if self.system_prompt and not any(message.get("role") == "system" for message in messages):
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        return {"model": self.model, "messages": messages, **settings}

    def _tool_call(self, call: Any) -> ToolCall:
        try:
            function = call["function"]
            arguments = json.loads(function.get("arguments") or "{}")
            if isinstance(arguments, dict):
                return ToolCall(str(call.get("id") or ""), str(function["name"]), arguments)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise self._garbage("a tool call whose arguments are no JSON object", call)

    def _address(self) -> Address:
        base, key = self.base_url, self._key.get_secret_value()
        root = base if urlsplit(base).path else f"{base}/v1"
        return Address(root, "openai", key, {"authorization": f"Bearer {key}"} if key else {}, {})


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
