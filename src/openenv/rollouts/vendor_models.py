"""Models behind the APIs of OpenAI and Anthropic, and the model of a provider by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from ..errors import InvalidArgument, ModelFailed
from ..llm import messages
from ..llm.vendors import REASONING, anthropic_address, openai_address
from .endpoint_model import EndpointModel
from .model import Completion, ModelRequest, Sampling
from .records import ChatMessage, TokenUsage
from .streams import chat_answer, message_answer, response_answer


class _TokenLogprob(msgspec.Struct, gc=False):
    logprob: float
    id: int | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_TokenLogprob] | None = None
    token_logprobs: list[float] | None = None


class _Choice(msgspec.Struct, gc=False):
    message: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class _UsageDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _UsageDetails | None = None
    completion_tokens_details: _UsageDetails | None = None


class _ChatAnswer(msgspec.Struct, gc=False):
    """What is read of the answer of a (chat) completion."""

    choices: list[_Choice]
    model: str | None = None
    usage: _Usage | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


_ids_decoder = msgspec.json.Decoder(list[int])
_UNKNOWN_FIELD = re.compile(r"return_token_ids|logprobs", re.IGNORECASE)


class OpenAIModel(EndpointModel):
    """A model behind chat completions: OpenAI, vLLM, SGLang, llama.cpp, Ollama, and every compatible endpoint.

    Token ids and their log probabilities come from vLLM, SGLang and llama.cpp. The log probabilities are of the
    distribution that the tokens were sampled from if the temperature is 1, or if the endpoint sends processed ones
    (vLLM: `--logprobs-mode processed_logprobs`).

    Args:
        name: As in `EndpointModel`.
        base_url: As there. A URL without a path gets `/v1`.
        api_key: As there.
        token_ids: Whether to ask for token ids. None: ask, and go on without them if the endpoint refuses to.
            True: its refusal is an error.
        ids: How the model continues a prompt of token ids; None: it does not. `completions`: by `/v1/completions`
            (vLLM, llama.cpp); `parser` reads their text. `input_ids`: by the field of that name in chat completions
            (SGLang), and its own parser reads the text.
        parser: Reads the text of a completion, for `ids="completions"`.
        settings: Those of `EndpointModel`.

    Raises:
        InvalidArgument: A `base_url` is not a URL, or `ids` has another value.
    """

    _answer_name = "no chat completion"
    _address_of = staticmethod(openai_address)
    _answer_of = staticmethod(chat_answer)
    _decoder = msgspec.json.Decoder(_ChatAnswer)
    _streaming: ClassVar[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(
        self,
        name: str,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        token_ids: bool | None = None,
        ids: Literal["completions", "input_ids"] | None = None,
        parser: messages.TextParser = messages.parse_hermes,
        **settings: Any,
    ):
        super().__init__(name, base_url, api_key, **settings)
        if ids not in (None, "completions", "input_ids"):
            raise InvalidArgument(f"ids must be 'completions', 'input_ids' or None, not {ids!r}")
        self.takes_ids = ids is not None
        self._ids = ids
        self._parser = parser
        self._required = token_ids is True or self.takes_ids
        self._with_ids = token_ids is not False
        self._tools: tuple[list[Mapping[str, Any]], list[dict[str, Any]]] = [], []

    async def complete(self, request: ModelRequest) -> Completion:
        """Samples one completion; see `Model`. Raises the errors of `EndpointModel.complete`."""
        try:
            return await super().complete(request)
        except ModelFailed as error:
            refused = error.status in (400, 403, 422) and _UNKNOWN_FIELD.search(error.message)
            # SGLang has ids, but not in streams: that is for the caller to choose.
            if self._required or not self._with_ids or not refused or "stream" in error.message:
                raise
        self._with_ids = False
        return await super().complete(request)

    def _by_ids(self, request: ModelRequest) -> bool:
        return self._ids == "completions" and request.prompt_ids is not None

    def call_of(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        body = sampling_fields(request.sampling)
        if request.sampling.max_tokens is not None:
            reasons = REASONING.match(self.name) is not None
            body["max_completion_tokens" if reasons else "max_tokens"] = request.sampling.max_tokens
        if self._by_ids(request):
            if request.sampling.max_tokens is None:
                raise InvalidArgument("set Sampling.max_tokens: /v1/completions stops after 16 tokens without it")
            return "/completions", {"prompt": request.prompt_ids, "logprobs": 1, "return_token_ids": True, **body}
        body["messages"] = request.messages
        if request.tools:
            if self._tools[0] != request.tools:  # most often they are those of the request before
                functions = [{"type": "function", "function": messages.function_of(tool)} for tool in request.tools]
                self._tools = [*request.tools], functions
            body["tools"] = self._tools[1]
        if self._with_ids:
            body |= {"logprobs": True, "return_token_ids": True}
        if self._ids == "input_ids" and request.prompt_ids is not None:
            body["input_ids"] = request.prompt_ids
        return "/chat/completions", body

    def completion_of(self, answer: _ChatAnswer, request: ModelRequest) -> Completion:
        choice, usage = answer.choices[0], answer.usage or _Usage()
        by_ids = self._by_ids(request)
        if (choice.text if by_ids else choice.message) is None:
            raise ValueError("it has no message")
        message = self._parser(choice.text or "") if by_ids else _assistant(choice.message or {})
        finish = choice.finish_reason
        if message.get("tool_calls") and finish == "stop":
            finish = "tool_calls"
        completion = Completion(
            message=message,
            finish_reason=finish,
            refused=finish == "content_filter" or bool(message.get("refusal")),
            usage=TokenUsage(
                prompt_tokens=usage.prompt_tokens or 0,
                cached_tokens=(usage.prompt_tokens_details or _UsageDetails()).cached_tokens or 0,
                completion_tokens=usage.completion_tokens or 0,
                reasoning_tokens=(usage.completion_tokens_details or _UsageDetails()).reasoning_tokens or 0,
            ),
            model=answer.model or "",
        )
        if self._with_ids or by_ids:
            _read_ids(completion, answer, request)
        if self._required and completion.completion_ids is None:
            raise ModelFailed(f"{self.name} sent no token ids: use vLLM, SGLang or llama.cpp, or leave token_ids out")
        return completion


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """The fields of a request that OpenAI's APIs have in common."""
    named = {"temperature": sampling.temperature, "top_p": sampling.top_p, "stop": list(sampling.stop) or None}
    return {**{name: value for name, value in named.items() if value is not None}, **sampling.extra}


def _assistant(message: Mapping[str, Any]) -> ChatMessage:
    """An answer's message with the fields that a conversation keeps."""
    kept: ChatMessage = {"role": "assistant", "content": messages.text_of(message.get("content"))}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    for name, value in {**message, "reasoning_content": reasoning}.items():
        if name in ("tool_calls", "refusal", "reasoning_content") and value:
            kept[name] = value
    return kept


def _read_ids(completion: Completion, answer: _ChatAnswer, request: ModelRequest) -> None:
    """Reads token ids and log probabilities, where vLLM, SGLang and llama.cpp put them."""
    choice = answer.choices[0]
    logprobs = choice.logprobs or _Logprobs()
    sampled = logprobs.content or []
    ids = choice.token_ids or choice.response_token_ids
    if ids is None and sampled:
        found = [token.id for token in sampled if token.id is not None]
        ids = found or None
    if ids is None:
        return
    values = [token.logprob for token in sampled] or logprobs.token_logprobs
    if values is not None and len(values) != len(ids):
        raise ValueError(f"{len(ids)} token ids and {len(values)} log probabilities")
    completion.completion_ids, completion.logprobs, completion.tokens = ids, values, "sampled"
    given = (bytes(choice.prompt_token_ids), bytes(answer.prompt_token_ids))
    text = next((text for text in given if text not in (b"", b"null")), b"")
    if request.context and text.startswith(request.context):
        completion.repeats_context = True
        text = b"[" + text[len(request.context) :]
    if text:
        completion.prompt_ids = _ids_decoder.decode(text)
    if completion.prompt_ids is None and request.prompt_ids is not None:
        completion.prompt_ids = list(request.prompt_ids)


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
        instructions, items = messages.items_of(request.messages)
        body = {"input": items, "store": False, **sampling_fields(request.sampling)}
        if body.pop("stop", None):
            raise InvalidArgument("Sampling.stop is unknown to responses: leave it out, or use OpenAIModel")
        if instructions:
            body["instructions"] = instructions
        if request.sampling.max_tokens is not None:
            body["max_output_tokens"] = request.sampling.max_tokens
        if request.tools:
            body["tools"] = [
                {"type": "function", "strict": False, **messages.function_of(tool)} for tool in request.tools
            ]
        if REASONING.match(self.name):
            body["include"] = ["reasoning.encrypted_content"]
        return "/responses", body

    def completion_of(self, answer: dict[str, Any], request: ModelRequest) -> Completion:
        message = messages.message_of_items(answer["output"])
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
        system, turns = messages.blocks_of(request.messages)
        body: dict[str, Any] = {
            "messages": turns,
            "max_tokens": sampling.max_tokens or _MAX_TOKENS,
            "system": system or None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_sequences": list(sampling.stop) or None,
        }
        if request.tools:
            body["tools"] = [messages.anthropic_tool(messages.function_of(tool)) for tool in request.tools]
        fields = {name: value for name, value in body.items() if value is not None}
        return "/v1/messages", {**fields, **sampling.extra}

    def completion_of(self, answer: dict[str, Any], request: ModelRequest) -> Completion:
        message, usage = messages.message_of_blocks(answer["content"]), answer.get("usage") or {}
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
