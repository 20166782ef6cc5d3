"""`openenv.llm` under its older name."""

from __future__ import annotations

from ._homes import *

__all__ = [
    "AnthropicClient",
    "LLMClient",
    "LLMResponse",
    "OpenAIClient",
    "ToolCall",
    "create_llm_client",
]

__getattr__, __dir__ = take(__name__, __all__)
