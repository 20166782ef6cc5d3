"""`openenv.llm` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from ..llm import AnthropicClient, LLMClient, LLMResponse, OpenAIClient, ToolCall, create_llm_client

__all__ = [
    "AnthropicClient",
    "LLMClient",
    "LLMResponse",
    "OpenAIClient",
    "ToolCall",
    "create_llm_client",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.llm"))
