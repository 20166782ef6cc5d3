"""Two small clients for language models: for OpenAI-compatible APIs and for Anthropic's."""

from .service import LLMClient, LLMResponse, ToolCall
from .vendors import AnthropicClient, OpenAIClient, create_llm_client

__all__ = ["AnthropicClient", "LLMClient", "LLMResponse", "OpenAIClient", "ToolCall", "create_llm_client"]
