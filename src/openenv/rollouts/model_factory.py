"""A model from its name, its endpoint and the vendor of its API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from .anthropic_model import AnthropicModel
from .endpoint_model import EndpointModel
from .openai_model import OpenAIModel, ResponsesModel

_PROVIDERS: dict[str, tuple[type[EndpointModel], str]] = {
    "openai": (OpenAIModel, "https://api.openai.com/v1"),
    "responses": (ResponsesModel, "https://api.openai.com/v1"),
    "anthropic": (AnthropicModel, "https://api.anthropic.com"),
}


def create_model(
    name: str, base_url: str | Sequence[str] | None = None, provider: str = "openai", **settings: Any
) -> EndpointModel:
    """A model behind an HTTP API.

    Args:
        name: Name of the model, as its endpoint knows it.
        base_url: URL of the API, or those of several endpoints; None: the vendor's own.
        provider: Its API: `openai` (chat completions, also of vLLM, SGLang, llama.cpp, Ollama), `responses`
            (OpenAI's) or `anthropic` (messages).
        settings: Those of the model's class, such as `api_key`.

    Raises:
        InvalidArgument: The provider is unknown, or `base_url` is not a URL.
    """
    if provider not in _PROVIDERS:
        raise InvalidArgument(f"no provider {provider!r}: there are {', '.join(_PROVIDERS)}")
    cls, own_url = _PROVIDERS[provider]
    return cls(name, base_url or own_url, **settings)
