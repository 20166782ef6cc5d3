"""Send a request to a model server, by SDK or httpx, with retries within a deadline and clear errors."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from .._asyncio import BackgroundLoop, shared_loop
from .._backoff import Backoff, system_random
from ..errors import MissingExtra, ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from ..settings import is_loopback_for_secrets
from .client import LLMClient, LLMResponse, function_of

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_LONGEST_PAUSE_S = 20.0


async def within(
    timeout_s: float | None, call: Callable[[], Awaitable[T]], *, retries: int, backoff_s: float, what: str
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
                    pause = _pause(error, backoff.grow())
                    if attempt >= retries or pause is None or (deadline and loop.time() + pause >= deadline):
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


def _pause(error: BaseException, longest_s: float) -> float | None:
    """Seconds before another attempt; None if the error is permanent."""
    if not getattr(error, "retryable", isinstance(error, (ConnectionError, TimeoutError))):
        return None
    asked = getattr(error, "retry_after_s", None) or 0.0
    return max(float(asked), system_random.uniform(0.0, longest_s))


_CONNECT_S = 10.0
_MAX_CONNECTIONS = 256
_MAX_ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Destination and authentication of requests.

    Attributes:
        root: URL before the path of a call.
        sdk: Module of the vendor's SDK.
        key: API key for the SDK.
        auth: Headers with the key.
        headers: Further headers.
    """

    root: str
    sdk: str
    key: str
    auth: Mapping[str, str]
    headers: Mapping[str, str]

    def __repr__(self) -> str:  # without secrets
        return f"Address({self.name!r})"

    @property
    def name(self) -> str:
        """Host and port, without credentials in the URL."""
        return urlsplit(self.root).netloc.rpartition("@")[2]

    @property
    def is_loopback(self) -> bool:
        return is_loopback_for_secrets(urlsplit(self.root).hostname)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An HTTP answer: `content` is its text, or the parsed body from the SDK."""

    status: int
    headers: Mapping[str, str]
    content: Any


class HttpxSender:
    """Sends requests with httpx."""

    def __init__(self, address: Address):
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "llm") from error
        self._address = address
        self._failure = httpx.HTTPError
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            headers={**address.auth, **address.headers},
            # The caller sets the deadline of a call; only a failed connection ends it sooner.
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
            trust_env=not address.is_loopback,
        )

    async def post(self, path: str, body: dict[str, Any]) -> ModelReply:
        """Sends JSON. Raises `ModelUnavailable` if the server does not answer."""
        url = self._address.root + path
        try:
            async with self._client.stream("POST", url, json=body) as response:
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise ModelFailed(f"{self._address.name} answered with more than {_MAX_ANSWER_BYTES} bytes")
                return ModelReply(response.status_code, response.headers, content.decode(errors="replace"))
        except self._failure as error:
            raise _unreachable(self._address, error) from error

    async def close(self) -> None:
        await self._client.aclose()


class SDKSender:
    """Sends requests with the vendor's SDK, for its settings (organisations, proxies), but without its retries."""

    def __init__(self, address: Address, module: Any):
        self._address = address
        self._module = module
        make = module.AsyncOpenAI if address.sdk == "openai" else module.AsyncAnthropic
        self._client = make(
            base_url=address.root,
            # Never None: the SDK would then send the key of its environment variable to this endpoint.
            api_key=address.key or "not-needed",
            default_headers=dict(address.headers),
            max_retries=0,
            timeout=None,
        )

    async def post(self, path: str, body: dict[str, Any]) -> ModelReply:
        """Sends JSON. Raises `ModelUnavailable` if the server does not answer."""
        try:
            return ModelReply(200, {}, await self._client.post(path, cast_to=str, body=body))
        except self._module.APIStatusError as error:
            return ModelReply(error.status_code, error.response.headers, error.response.text)
        except self._module.APIConnectionError as error:
            raise _unreachable(self._address, error.__cause__ or error) from error

    async def close(self) -> None:
        await self._client.close()


Sender = HttpxSender | SDKSender
"""Sends requests over pooled connections. Belongs to one event loop."""


def make_sender(address: Address, sdk: bool | None) -> Sender:
    """The sender for an address.

    Args:
        address: Destination of requests.
        sdk: Whether to use the vendor's SDK; None to use it if it is installed.

    Raises:
        MissingExtra: httpx is not installed.
        UsageError: `sdk` is true and the SDK is not installed.
    """
    if sdk is False:
        return HttpxSender(address)
    try:
        module = importlib.import_module(address.sdk)
    except ImportError as error:
        if sdk is None:
            return HttpxSender(address)
        raise UsageError(
            f"sdk=True needs the package {address.sdk}: pip install {address.sdk}, or leave it out to send with httpx"
        ) from error
    return SDKSender(address, module)


def _unreachable(address: Address, error: BaseException) -> ModelUnavailable:
    why = str(error) or type(error).__name__
    return ModelUnavailable(f"no answer from {address.name}: {why}; is its server running, and the endpoint right?")


_TRY_AGAIN = frozenset({408, 409, 425, 429})
_ADVICE = {
    401: " (check api_key)",
    403: " (check api_key)",
    404: " (check the endpoint and the name of the model)",
}


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
            MissingExtra: httpx is not installed.
        """
        return (await self._response([{"role": "user", "content": prompt}], kwargs)).content

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Sends a conversation with tools; see `LLMClient`. Raises the errors of `complete`."""
        if tools:
            kwargs["tools"] = [self._tool(function_of(tool)) for tool in tools]
        return await self._response(messages, kwargs)

    @abstractmethod
    def _address(self) -> Address:
        """The destination of this client's requests."""

    @abstractmethod
    def _tool(self, function: dict[str, Any]) -> dict[str, Any]:
        """A function description of the OpenAI API in the form of this client's API."""

    @abstractmethod
    async def _response(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> LLMResponse:
        """Sends a conversation in the form of the OpenAI API."""

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the JSON object in the answer."""

        async def attempt() -> dict[str, Any]:
            home = shared_loop()
            if self._sender is None or self._home is not home:  # after a fork, the connections belong to the parent
                self._home, self._sender = home, make_sender(self._address(), self._sdk)
            return self._read(await self._sender.post(path, body))

        answer = within(
            self.timeout_s,
            attempt,
            retries=self.retries,
            backoff_s=self.backoff_s,
            what=f"{self.model} at {self._address().name}",
        )
        return await asyncio.wrap_future(shared_loop().submit(answer))

    def _read(self, reply: ModelReply) -> dict[str, Any]:
        if 200 <= reply.status < 300:
            content = reply.content if isinstance(reply.content, dict) else _as_json(reply.content)
            if isinstance(content, dict):
                return content
            raise self._garbage("no JSON object", reply.content)
        cls = ModelUnavailable if reply.status in _TRY_AGAIN or reply.status >= 500 else ModelFailed
        said = self._without_key(_error_text(reply.content))
        raise cls(
            f"{self.model} at {self._address().name} answered {reply.status}: {said}{_ADVICE.get(reply.status, '')}",
            status=reply.status,
            retry_after_s=_seconds(reply.headers.get("retry-after")),
        )

    def _garbage(self, what: str, content: Any) -> ModelFailed:
        shown = self._without_key(content if isinstance(content, str) else json.dumps(content, default=repr))
        return ModelFailed(
            f"{self.model} at {self._address().name} answered with {what}: {shown[:200]!r}; "
            "does the endpoint speak the API of this client?"
        )

    def _without_key(self, text: str) -> str:
        key = self._key.get_secret_value()
        return text.replace(key, "[key]") if key else text

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        sender, home, self._sender = self._sender, self._home, None
        if sender is not None and home is not None and home is shared_loop():
            await asyncio.wrap_future(home.submit(sender.close()))


def _as_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def _error_text(content: Any) -> str:
    """The server's error message, from one of the usual fields."""
    facts = content if isinstance(content, dict) else _as_json(content)
    if isinstance(facts, Mapping):
        error = facts.get("error", facts)
        text = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
        if text:
            return str(text)[:500]
    return str(content).strip()[:500] or "nothing"


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None  # a date, or missing
    return seconds if 0 <= seconds < float("inf") else None
