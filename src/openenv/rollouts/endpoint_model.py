"""Base of the models behind an HTTP API: endpoints, deadlines, prices, and one reading of every answer."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from ..errors import InvalidArgument, ModelFailed, ModelUnavailable
from ..llm.sender import Address, ModelReply, UnreadableAnswer, failure_of, read_json, unreadable
from .endpoints import EndpointPool
from .model import Completion, ModelRequest, check_values
from .records import TokenUsage
from .streams import error_in, events_of

# What a value of another form than the API's raises.
_OTHER_FORM = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class ModelPrice(msgspec.Struct, frozen=True):
    """What a million tokens cost, in any currency.

    Attributes:
        prompt, completion: A million tokens of prompts, and of completions.
        cached: A million tokens of prompts that came from the endpoint's cache; None: as `prompt`.

    Raises:
        InvalidArgument: A price is negative or not finite.
    """

    prompt: float
    completion: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for price in (self.prompt, self.completion, self.cached or 0.0):
            if not 0 <= price < math.inf:
                raise InvalidArgument(f"a price of {price} is no amount of money: give 0 or more")

    def cost_of(self, usage: TokenUsage) -> float:
        """The cost of a call."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        return (fresh * self.prompt + usage.cached_tokens * cached + usage.completion_tokens * self.completion) / 1e6


class EndpointModel(ABC):
    """A model behind one or several endpoints of one API.

    Args:
        name: Name of the model, as the endpoints know it.
        base_url: URL of the API, or those of several endpoints that serve the same model.
        api_key: Key for the endpoints; messages, reprs and records do not contain it.
        timeout_s: Seconds for a call with all its attempts, for requests without a limit of their own.
        stall_s: Streams answers, and fails an attempt if no byte arrives for that many seconds. None: no streaming,
            which costs less CPU; an endpoint that does not answer is noticed at `timeout_s`.
        retries: Most retries of a call after failures that may pass: no connection, a broken answer, 408, 409, 425,
            429, 5xx.
        backoff_s: The pause before a retry is a random part of `backoff_s * 2**n`, at most 20 s, or the endpoint's
            Retry-After.
        retry_share: Share of calls that may be retries, beyond a reserve of 64. Retries after a failed connection or
            a Retry-After do not count.
        max_requests: Most requests at once to one endpoint. Below it, the number adapts to what the endpoint bears.
        prices: Price of each model by its name, for `TokenUsage.cost`.

    Raises:
        InvalidArgument: A `base_url` is not an http or https URL.
    """

    takes_ids = False
    _streaming: ClassVar[dict[str, Any]] = {"stream": True}
    _answer_name: ClassVar[str]
    # By the base URL and the key, where requests go; the answer that a stream carries, None if it ended early.
    _address_of: Callable[[str, str], Address]
    _answer_of: Callable[[list[dict[str, Any]]], dict[str, Any] | None]
    _models_path: ClassVar[str] = "/models"
    _decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(dict[str, Any])

    def __init__(
        self,
        name: str,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        timeout_s: float | None = 600.0,
        stall_s: float | None = None,
        retries: int = 6,
        backoff_s: float = 0.5,
        retry_share: float = 0.25,
        max_requests: int = 1024,
        prices: Mapping[str, ModelPrice] | None = None,
    ):
        self.name = name
        self.timeout_s = timeout_s
        self.stall_s = stall_s
        self._price = (prices or {}).get(name)
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        if not urls:
            raise InvalidArgument("base_url is empty: give the URL of at least one endpoint")
        addresses = [self._address_of(_root_of(url), api_key or "") for url in urls]
        self._pool = EndpointPool(
            addresses, name, most=max_requests, retries=retries, backoff_s=backoff_s, retry_share=retry_share
        )

    def __repr__(self) -> str:
        hosts = ", ".join(address.name for address in self._pool.addresses)
        return f"{type(self).__name__}({self.name!r}, {hosts!r})"

    async def complete(self, request: ModelRequest) -> Completion:
        """Samples one completion; see `Model`.

        Raises:
            ContextOverflow: The prompt does not fit into the model's context.
            ModelFailed: The endpoint refused the request.
            ModelUnavailable: No endpoint gives an answer that can be read, retries included; `ModelTimeout` after the
                deadline.
        """
        started = time.perf_counter()
        path, fields = self.call_of(request)
        body = {"model": self.name, **fields}
        if self.stall_s is not None:
            body |= self._streaming
        completion = await self._pool.ask(
            path,
            body,
            partial(self._read, request),
            key=request.key,
            session=request.session,
            timeout_s=self.timeout_s if request.timeout_s is None else request.timeout_s,
            stall_s=self.stall_s,
        )
        if self._price is not None:
            completion.usage.cost = self._price.cost_of(completion.usage)
        completion.seconds = time.perf_counter() - started
        return completion

    async def check(self) -> None:
        """Asks every endpoint for its models, which costs no tokens.

        Raises:
            ModelUnavailable: An endpoint does not answer.
            ModelFailed: An endpoint refuses the key, or does not have the model; the message lists those it has.
        """
        for address, reply in await self._pool.get(self._models_path):
            answer = read_json(reply, self.name, address)
            names = [model.get("id") for model in answer.get("data") or () if isinstance(model, Mapping)]
            if names and self.name not in names:
                shown = ", ".join(map(str, names[:10]))
                raise ModelFailed(f"{address.name} has no model {self.name!r}: it has {shown}; check the name")

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        await self._pool.aclose()

    @abstractmethod
    def call_of(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        """The request in the form of the API: path and body."""

    @abstractmethod
    def completion_of(self, answer: Any, request: ModelRequest) -> Completion:
        """Reads what `_decoder` made of an answer; KeyError, IndexError, TypeError, AttributeError or ValueError mean
        that it is none."""

    def _read(self, request: ModelRequest, reply: ModelReply, address: Address) -> Completion:
        try:
            try:
                answer = self._answer_in(reply, address)
                completion = self.completion_of(answer, request)
                if isinstance(answer, dict):  # its values may have any type
                    completion.model = answer.get("model") or self.name
                    check_values(completion)
            except _OTHER_FORM as error:
                raise unreadable(self._answer_name, reply.content, self.name, address) from error
        except UnreadableAnswer as error:  # the next one may be right, under the same key
            raise ModelUnavailable(error.message, status=reply.status) from error
        completion.model = completion.model or self.name
        return completion

    def _answer_in(self, reply: ModelReply, address: Address) -> Any:
        if reply.status != 200 or not reply.headers.get("content-type", "").startswith("text/event-stream"):
            return read_json(reply, self.name, address, self._decoder, self._answer_name)
        events = events_of(reply.content)
        if (error := error_in(events)) is not None:
            # The status that the error would have had: that of a failing server, unless it says more.
            code = error["error"].get("code") if isinstance(error["error"], Mapping) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            raise failure_of(status, error, f"{self.name} at {address.name}", address)
        merged = self._answer_of(events)
        if merged is None:
            raise ModelUnavailable(f"{self.name} at {address.name} ended its stream before the end of its answer")
        return self._decoder.decode(msgspec.json.encode(merged))


def _root_of(url: str) -> str:
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        shown = url.rpartition("@")[2]
        raise InvalidArgument(f"base_url must be a URL such as http://localhost:8000/v1, not {shown!r}")
    return url.rstrip("/")
