"""Models behind OpenAI's responses and Anthropic's messages, and the model of a provider by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from ..llm.messages import anthropic_tool, blocks_of, function_of, items_of, message_of_blocks, message_of_items
from ..llm.vendors import REASONING, anthropic_address, openai_address
from .endpoint_model import EndpointModel
from .model import Completion, ModelRequest
from .openai_model import OpenAIModel, sampling_fields
from .records import TokenUsage
from .streams import message_answer, response_answer


class ResponsesModel(EndpointModel):
    """A model behind OpenAI's responses. It stores nothing there: each request carries the whole conversation.

    Args:
        name: As in `EndpointModel`.
        base_url: As there. A URL without a path gets `/v1`.
        api_key: As there.
    """

    _answer_name = "no response"
    _address_of = staticmethod(openai_address)
    _answer_of = staticmethod(response_answer)

    def call_of(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        instructions, items = items_of(request.messages)
        body = {"input": items, "store": False, **sampling_fields(request.sampling)}
        if body.pop("stop", None):
            raise InvalidArgument("Sampling.stop is unknown to responses: leave it out, or use OpenAIModel")
        if instructions:
            body["instructions"] = instructions
        if request.sampling.max_tokens is not None:
            body["max_output_tokens"] = request.sampling.max_tokens
        if request.tools:
            body["tools"] = [{"type": "function", "strict": False, **function_of(tool)} for tool in request.tools]
        if REASONING.match(self.name):
            body["include"] = ["reasoning.encrypted_content"]
        return "/responses", body

    def completion_of(self, answer: dict[str, Any], request: ModelRequest) -> Completion:
        message = message_of_items(answer["output"])
        cut = (answer.get("incomplete_details") or {}).get("reason")
        finish = {"max_output_tokens": "length", None: "tool_calls" if message.get("tool_calls") else "stop"}.get(
            cut, cut
        )
        usage = answer.get("usage") or {}
        return Completion(
            message=message,
            finish_reason=finish,
            refused=finish == "content_filter" or "refusal" in message,
            usage=TokenUsage(
                prompt_tokens=usage.get("input_tokens") or 0,
                cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens") or 0,
                completion_tokens=usage.get("output_tokens") or 0,
                reasoning_tokens=(usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0,
            ),
        )


_MAX_TOKENS = 4096
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class AnthropicModel(EndpointModel):
    """A model behind Anthropic's messages. It sends no token ids.

    Args:
        name: As in `EndpointModel`. A request without `Sampling.max_tokens` asks for at most 4096, since this API
            requires a limit.
        base_url: As there, with or without `/v1`.
        api_key: As there.
    """

    _answer_name = "no message"
    _address_of = staticmethod(anthropic_address)
    _answer_of = staticmethod(message_answer)
    _models_path = "/v1/models"

    def call_of(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        system, turns = blocks_of(request.messages)
        body: dict[str, Any] = {
            "messages": turns,
            "max_tokens": sampling.max_tokens or _MAX_TOKENS,
            "system": system or None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_sequences": list(sampling.stop) or None,
        }
        if request.tools:
            body["tools"] = [anthropic_tool(function_of(tool)) for tool in request.tools]
        fields = {name: value for name, value in body.items() if value is not None}
        return "/v1/messages", {**fields, **sampling.extra}

    def completion_of(self, answer: dict[str, Any], request: ModelRequest) -> Completion:
        message, usage = message_of_blocks(answer["content"]), answer.get("usage") or {}
        reason = answer.get("stop_reason")
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        return Completion(
            message=message,
            finish_reason=_FINISH.get(str(reason), reason),
            refused=reason == "refusal",
            usage=TokenUsage(
                prompt_tokens=(usage.get("input_tokens") or 0) + cached + written,
                cached_tokens=cached,
                completion_tokens=usage.get("output_tokens") or 0,
            ),
        )


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
