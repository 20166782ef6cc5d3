"""The interface of model clients, and their base: retries within a deadline, on a loop that all threads share."""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from .._asyncio import BackgroundLoop, shared_loop
from .._backoff import Backoff, system_random
from ..errors import ModelFailed, ModelTimeout
from .messages import assistant_message, function_of, text_of
from .sender import Address, Sender, make_sender, read_json, unreadable


@dataclass
class ToolCall:
    """A tool call that the model requests, with its arguments."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """A model's answer: text, and tool calls if any."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The answer as an assistant message of the OpenAI API, to append to a conversation."""
        calls = [{"id": call.id, "name": call.name, "arguments": json.dumps(call.args)} for call in self.tool_calls]
        return assistant_message(self.content, calls)


class LLMClient(ABC):
    """A language model that answers prompts. For another model, subclass it and implement `complete`.

    Args:
        endpoint: URL of the server, with `http` or `https`.
        port: Port of the server, if the URL has none.
    """

    def __init__(self, endpoint: str, port: int | None = None):
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """The endpoint with its port, without a trailing slash.

        Raises:
            ValueError: The endpoint is not a URL, or its port is not `port`.
        """
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint {self.endpoint!r} must be a URL such as http://localhost:8000")
        netloc = parts.netloc
        if self.port is not None and parts.port not in (None, self.port):
            raise ValueError(
                f"endpoint {self.endpoint!r} names port {parts.port}, but port={self.port} was given: leave one out"
            )
        if self.port is not None and parts.port is None:
            netloc = f"{netloc}:{self.port}"
        return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))

    @abstractmethod
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """Sends a prompt and returns the text of the answer.

        Args:
            prompt: The user's message.
            kwargs: Settings of this call, such as `temperature` and `max_tokens`.
        """

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools that the model may call.

        Args:
            messages: Messages in the form of the OpenAI API, with results of tools (`role: tool`).
            tools: Tools with `name`, `description` and `input_schema` (or `inputSchema`), or in the form of that API.
            kwargs: Settings of this call, as in `complete`.
        """
        raise NotImplementedError(f"{type(self).__name__} calls no tools: use OpenAIClient or AnthropicClient")

    async def aclose(self) -> None:  # noqa: B027 - most clients have nothing to close
        """Closes the client's connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


T = TypeVar("T")
_LONGEST_PAUSE_S = 20.0


async def within(
    timeout_s: float | None,
    call: Callable[[], Awaitable[T]],
    *,
    retries: int,
    backoff_s: float,
    what: str,
    may_retry: Callable[[Exception], bool] = lambda error: True,
) -> T:
    """Makes a call and retries temporary failures, all within one deadline.

    The pause between two attempts is a random part of `backoff_s * 2**n`, at most 20 s, or the server's Retry-After
    if that is longer. If the pause would last beyond the deadline, the last error is raised at once.

    Args:
        timeout_s: Limit for all attempts in seconds; None for no limit.
        call: Starts one attempt.
        retries: Most attempts after the first one.
        backoff_s: Base of the pause in seconds.
        what: The called service, for the message.
        may_retry: Asked before each retry of a temporary failure.

    Raises:
        ModelTimeout: The deadline is over.
        Exception: The error of the last attempt.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    failure: BaseException | None = None
    backoff = Backoff(backoff_s, _LONGEST_PAUSE_S)
    try:
        async with asyncio.timeout_at(deadline) as limit:
            for attempt in itertools.count():
                try:
                    return await call()
                except Exception as error:
                    pause = pause_before_retry(error, backoff.grow())
                    late = deadline is not None and pause is not None and loop.time() + pause >= deadline
                    if attempt >= retries or pause is None or late or not may_retry(error):
                        raise
                    failure = error
                await asyncio.sleep(pause)
    except TimeoutError as error:
        if not limit.expired():
            raise
        before = f"; the attempt before: {failure}" if failure is not None else ""
        message = f"{what} did not answer within {timeout_s:g} s{before}: raise timeout_s, or ask for less at a time"
        raise ModelTimeout(message) from (failure or error)
    raise AssertionError("the last attempt returns or raises")


def pause_before_retry(error: BaseException, longest_s: float) -> float | None:
    """Seconds before another attempt; None if the error is permanent."""
    if not getattr(error, "retryable", isinstance(error, (ConnectionError, TimeoutError))):
        return None
    asked = getattr(error, "retry_after_s", None) or 0.0
    return max(float(asked), system_random.uniform(0.0, longest_s))


class ServedModel(LLMClient):
    """Base of the two clients.

    Any number of event loops and threads may use a client: its connections belong to a separate loop, one per
    process, and are shared by all. It may be pickled, and used in a forked child.

    Args:
        endpoint, port: Address of the server, as in `LLMClient`.
        model: Name of the model.
        api_key: Key for the endpoint; messages and reprs do not contain it.
        system_prompt: System message of conversations without one.
        temperature, max_tokens: Defaults for calls.
        timeout_s: Limit for an answer in seconds, with all attempts and pauses.
        retries: Most retries after a refused connection, 408, 409, 425, 429 or 5xx.
        backoff_s: Base of the pause between attempts: a random part of `backoff_s * 2**n` seconds, or Retry-After.
        sdk: Whether to use the vendor's SDK; None to use it if it is installed.
    """

    # By the base URL and the key, where requests go; by a function of OpenAI's API, a tool of this one.
    _address_of: Callable[[str, str], Address]
    _tool: Callable[[dict[str, Any]], dict[str, Any]]

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        *,
        timeout_s: float = 120.0,
        retries: int = 2,
        backoff_s: float = 0.5,
        sdk: bool | None = None,
    ):
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s
        self._key = SecretStr(api_key or "")
        self._sdk = sdk
        self._home: BackgroundLoop | None = None
        self._sender: Sender | None = None
        self._address()  # raises for an invalid endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address().name!r}, model={self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_home": None, "_sender": None}

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """Sends a prompt and returns the text of the answer.

        Args:
            prompt: The user's message.
            kwargs: `temperature`, `max_tokens`, and other fields of the API.

        Raises:
            ModelFailed: The server refused the request, or its answer is invalid.
            ModelUnavailable: The server cannot be reached or is overloaded; `ModelTimeout` after `timeout_s`.
        """
        return (await self.response_of([{"role": "user", "content": prompt}], kwargs)).content

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools; see `LLMClient`. Raises the errors of `complete`."""
        if tools:
            kwargs["tools"] = [self._tool(function_of(tool)) for tool in tools]
        return await self.response_of(messages, kwargs)

    def _address(self) -> Address:
        return self._address_of(self.base_url, self._key.get_secret_value())

    @abstractmethod
    async def response_of(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> LLMResponse:
        """Sends a conversation in the form of the OpenAI API."""

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the JSON object in the answer."""

        async def attempt() -> dict[str, Any]:
            home = shared_loop()
            if self._sender is None or self._home is not home:  # after a fork, the connections belong to the parent
                self._home, self._sender = home, make_sender(self._address(), self._sdk)
            answer: dict[str, Any] = read_json(await self._sender.post(path, body), self.model, self._address())
            return answer

        answer = within(
            self.timeout_s,
            attempt,
            retries=self.retries,
            backoff_s=self.backoff_s,
            what=f"{self.model} at {self._address().name}",
        )
        return await asyncio.wrap_future(shared_loop().submit(answer))

    def unreadable_error(self, what: str, content: Any) -> ModelFailed:
        """The error for an answer that cannot be read: it has `what`, with this content."""
        return unreadable(what, content, self.model, self._address())

    def _responded(self, message: Mapping[str, Any]) -> LLMResponse:
        """The response that an assistant message of the OpenAI API is."""
        return LLMResponse(
            text_of(message.get("content")), [self._tool_call(call) for call in message.get("tool_calls") or ()]
        )

    def _tool_call(self, call: Any) -> ToolCall:
        try:
            function = call["function"]
            arguments = json.loads(function.get("arguments") or "{}")
            if isinstance(arguments, dict) and isinstance(function["name"], str):
                return ToolCall(str(call.get("id") or ""), function["name"], arguments)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise self.unreadable_error("a tool call whose arguments are not a JSON object", call)

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        sender, home, self._sender = self._sender, self._home, None
        if sender is not None and home is not None and home is shared_loop():
            await asyncio.wrap_future(home.submit(sender.close()))
