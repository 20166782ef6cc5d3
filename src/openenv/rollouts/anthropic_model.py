"""A model behind Anthropic's messages."""

from __future__ import annotations

from typing import Any

from ..llm.messages import anthropic_tool, blocks_of, function_of, message_of_blocks
from ..llm.sender import Address
from ..llm.vendors import anthropic_address
from .endpoint_model import EndpointModel
from .model import Completion, ModelRequest
from .records import TokenUsage
from .streams import message_answer

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
        name, base_url, api_key, settings: As in `EndpointModel`; the URL with or without `/v1`. A request without
            `Sampling.max_tokens` asks for at most 4096, since this API requires a limit.
    """

    _answer_name = "no message"
    _models_path = "/v1/models"

    def _address(self, root: str) -> Address:
        return anthropic_address(root, self._key.get_secret_value())

    def _path(self, request: ModelRequest) -> str:
        return "/v1/messages"

    def _body(self, request: ModelRequest) -> dict[str, Any]:
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
        return {**{name: value for name, value in body.items() if value is not None}, **sampling.extra}

    def _merged(self, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        return message_answer(events)

    def _completion(self, answer: dict[str, Any], request: ModelRequest) -> Completion:
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
