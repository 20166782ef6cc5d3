"""A client by the name of its provider."""

from __future__ import annotations

import re

from .anthropic_client import AnthropicClient
from .client import LLMClient
from .openai_client import OpenAIClient

__all__ = ["create_llm_client"]

# Models that think before they answer: they want the limit under another name, and refuse a temperature.
_REASONING = re.compile(r"o\d|gpt-5")


def create_llm_client(
    provider: str,
    model: str,
    api_key: str | None = None,
    *,
    system_prompt: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
) -> LLMClient:
    """The client of a provider's own service.

    Args:
        provider: `openai` or `anthropic`.
        model: Name of the model.
        api_key: The provider's.
        system_prompt: Begins each conversation that has no system message of its own.
        temperature: For calls that do not say otherwise.
        max_tokens: The same.

    Raises:
        ValueError: Another provider; `OpenAIClient` takes the endpoint of any that has a compatible API.
    """
    name = provider.lower()
    if name == "openai":
        return OpenAIClient(
            "https://api.openai.com",
            443,
            model,
            api_key,
            system_prompt,
            temperature,
            max_tokens,
            use_max_completion_tokens=_REASONING.match(model) is not None,
        )
    if name == "anthropic":
        return AnthropicClient(
            "https://api.anthropic.com", 443, model, api_key, system_prompt, temperature, max_tokens
        )
    raise ValueError(
        f"Unsupported provider: {provider!r}. Supported: ['anthropic', 'openai']; for another service with a "
        "compatible API use OpenAIClient(endpoint, port, model)"
    )
