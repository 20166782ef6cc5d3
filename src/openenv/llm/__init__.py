"""Two small clients for language models: the OpenAI-compatible API and Anthropic's."""

from .anthropic_client import AnthropicClient
from .choice import create_llm_client
from .client import LLMClient, LLMResponse, ToolCall
from .openai_client import OpenAIClient

__all__ = ["AnthropicClient", "LLMClient", "LLMResponse", "OpenAIClient", "ToolCall", "create_llm_client"]
