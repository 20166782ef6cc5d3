"""Two small clients for language models: the OpenAI-compatible API and Anthropic's."""

from .client import LLMClient, LLMResponse, ToolCall
from .vendors import AnthropicClient, OpenAIClient, create_llm_client

__all__ = ["AnthropicClient", "LLMClient", "LLMResponse", "OpenAIClient", "ToolCall", "create_llm_client"]
