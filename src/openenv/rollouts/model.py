"""The protocol between the engine and a model: one request, one completion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from .records import ChatMessage, TokenSource, TokenUsage


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model samples. None leaves a setting to the endpoint.

    Attributes:
        temperature, top_p: As in OpenAI's API.
        max_tokens: Most tokens of one completion.
        stop: Texts that end a completion.
        extra: Further fields of the request's body, such as `{"top_k": 20}`.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One call of a model.

    Attributes:
        messages: The conversation.
        tools: Function tools in the form of OpenAI's chat completions.
        sampling: How to sample.
        prompt_ids: The prompt as token ids, for a model with `takes_ids`; None: it tokenizes `messages`.
        context: The token ids of the turns before as the beginning of a JSON list, `[1,2,`; empty without. A model
            whose answer repeats them need not read them again: see `Completion.repeats_context`.
        key: Idempotency key: the same for each repeat of this call, and for no other.
        timeout_s: Seconds for this call, retries included; None for no limit.
        session: The same for each call of a rollout, so that an endpoint can find its cached prefix.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    sampling: Sampling = Sampling()
    prompt_ids: Sequence[int] | None = None
    context: bytes = b""
    key: str = ""
    timeout_s: float | None = None
    session: str = ""


@dataclass(slots=True, kw_only=True)
class Completion:
    """A model's answer.

    Attributes:
        message: The assistant message, in the form of OpenAI's chat completions.
        finish_reason: `stop`, `length`, `tool_calls` or `content_filter`.
        refused: The model or its endpoint refused to answer.
        usage: Tokens and money.
        prompt_ids: The prompt as token ids; None if the endpoint does not say.
        repeats_context: Whether the prompt begins with the `context` of the request, which `prompt_ids` leaves out.
        completion_ids: The completion as token ids; None if the endpoint does not say.
        logprobs: Log probability of each id of `completion_ids`; None if the endpoint does not say.
        tokens: Where the ids come from.
        model: Name of the model that answered.
        version: Version of the policy that answered, if the model knows it.
        seconds: Duration, retries included.
    """

    message: ChatMessage
    finish_reason: str | None = None
    refused: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)
    prompt_ids: list[int] | None = None
    repeats_context: bool = False
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    tokens: TokenSource = "none"
    model: str = ""
    version: int | None = None
    seconds: float = 0.0


_Facts = tuple[str | None, str, tuple[int, ...], list[int] | None, list[int] | None, list[float] | None]


def check_values(completion: Completion) -> None:
    """Raises ValueError if a value has another type than in a record, whose file would be unreadable."""
    usage, logprobs = completion.usage, completion.logprobs
    counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens)
    ids = (completion.prompt_ids, completion.completion_ids)
    msgspec.convert((completion.finish_reason, completion.model, counts, *ids, logprobs), _Facts)
    if logprobs is not None and not all(map(math.isfinite, logprobs)):
        raise ValueError("a log probability is not a finite number")


class Model(Protocol):
    """A language model.

    Attributes:
        name: Its name.
        takes_ids: Whether it continues from `ModelRequest.prompt_ids`.
    """

    name: str
    takes_ids: bool

    async def complete(self, request: ModelRequest) -> Completion:
        """Samples one completion.

        Raises:
            ContextOverflow: The prompt does not fit into the model's context.
            ModelFailed: The endpoint refused the request, or its answer cannot be read.
            ModelUnavailable: It cannot answer now, retries included.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
