"""Send a request to a model server, by HTTP or the vendor's SDK, and name its failures."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .._http import reason_of
from ..errors import ContextOverflow, ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from ..settings import is_loopback_for_secrets
from .http import HttpAnswer, HttpClient, PartReader, TooLarge

_MAX_CONNECTIONS = 256
_MAX_ANSWER_BYTES = 32 * 1024 * 1024
_SILENCE_S = 10.0


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

    def without_key(self, text: str) -> str:
        """A text of the server, in which it may repeat the key."""
        return text.replace(self.key, "[key]") if self.key else text


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An HTTP answer of any status; `content` is its body, or the parsed body from the SDK."""

    status: int
    headers: Mapping[str, str]
    content: Any


class HttpSender:
    """Sends requests without an SDK. Belongs to the running event loop.

    Args:
        address: Destination of requests.
        connections: Most connections; 0 for no limit.

    Raises:
        UsageError: The URL has a password, and there is a key that takes the same header; or a header is invalid.
    """

    def __init__(self, address: Address, connections: int = _MAX_CONNECTIONS):
        if "authorization" in address.auth and urlsplit(address.root).username is not None:
            raise UsageError(
                f"{address.name} has a key and a password in its URL, and one header for both: leave one out"
            )
        self._address = address
        headers = {"content-type": "application/json", **address.auth, **address.headers}
        self._client = HttpClient(address.root, headers, connections, _MAX_ANSWER_BYTES)

    async def post(
        self,
        path: str,
        body: Any,
        *,
        headers: Mapping[str, str] | None = None,
        stall_s: float | None = None,
        on_part: PartReader | None = None,
    ) -> ModelReply:
        """Sends JSON.

        Args:
            path: Path of the call, behind the root of the address.
            body: A value that msgspec encodes, or its JSON as bytes.
            headers: Headers of this call.
            stall_s: Seconds without a byte after which the call fails; None for no limit.
            on_part: Called with each part of the answer's body.

        Raises:
            ModelUnavailable: The server does not answer, or not to the end; `ModelTimeout` after `stall_s`.
            ModelFailed: The answer is too large.
        """
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._reply(self._client.send("POST", path, data, headers or {}, stall_s, on_part), stall_s)

    async def get(self, path: str) -> ModelReply:
        """Reads JSON. Raises the errors of `post`."""
        return await self._reply(self._client.send("GET", path, b"", {}, _SILENCE_S), _SILENCE_S)

    async def _reply(self, sent: Awaitable[HttpAnswer], stall_s: float | None) -> ModelReply:
        name = self._address.name
        try:
            answer = await sent
        except TooLarge as error:
            raise ModelFailed(f"{name} answered with more than {_MAX_ANSWER_BYTES} bytes") from error
        except OSError as error:
            if stall_s is None or not isinstance(error, TimeoutError):
                raise _unreachable(self._address, error) from error
            raise ModelTimeout(
                f"{name} sent no byte for {stall_s:g} s: is it overloaded, or stopped? "
                "raise stall_s if it is only slow"
            ) from error
        return ModelReply(answer.status, answer.headers, answer.body)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


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


Sender = HttpSender | SDKSender
"""Sends requests over pooled connections. Belongs to one event loop."""


def make_sender(address: Address, sdk: bool | None) -> Sender:
    """The sender for an address.

    Args:
        address: Destination of requests.
        sdk: Whether to use the vendor's SDK; None to use it if it is installed.

    Raises:
        UsageError: `sdk` is true and the SDK is not installed.
    """
    if sdk is False:
        return HttpSender(address)
    try:
        module = importlib.import_module(address.sdk)
    except ImportError as error:
        if sdk is None:
            return HttpSender(address)
        raise UsageError(
            f"sdk=True needs the package {address.sdk}: pip install {address.sdk}, or leave it out"
        ) from error
    return SDKSender(address, module)


def _unreachable(address: Address, error: BaseException) -> ModelUnavailable:
    why = reason_of(error)
    return ModelUnavailable(f"no answer from {address.name}: {why}; is its server running, and the endpoint right?")


# Reading an answer

_TRY_AGAIN = frozenset({408, 409, 425, 429})
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|prompt is too long", re.IGNORECASE
)
_TOOL = re.compile(r"schema|\btools?\b|function", re.IGNORECASE)
_KEY_ADVICE = " (check api_key)"
_ADVICE = {401: _KEY_ADVICE, 403: _KEY_ADVICE, 404: " (check the endpoint and the name of the model)"}
_REFUSED = frozenset({400, 413, 422})


class UnreadableAnswer(ModelFailed):
    """An answer that is not what the API promises: the endpoint speaks another, or a proxy failed."""


_NO_OBJECT = "no JSON object"
_objects = msgspec.json.Decoder(dict[str, Any])


def read_json(
    reply: ModelReply,
    model: str,
    address: Address,
    decoder: msgspec.json.Decoder[Any] = _objects,
    other_form: str = _NO_OBJECT,
) -> Any:
    """The JSON in an answer: an object, or what the decoder makes of it.

    Args:
        reply: The answer.
        model: Name of the model, for messages.
        address: Where it comes from.
        decoder: Decodes it.
        other_form: What JSON of another form is called.

    Raises:
        ModelFailed: The server refused the request (`ContextOverflow` if it is too long).
        UnreadableAnswer: The answer is no JSON, or has another form.
        ModelUnavailable: The server cannot answer now.
    """
    if not 200 <= reply.status < 300:
        raise failure_of(reply.status, reply.content, f"{model} at {address.name}", address, reply.headers)
    if isinstance(reply.content, dict):
        return reply.content
    try:
        return decoder.decode(reply.content)
    except (ValueError, RecursionError) as error:
        what = other_form if isinstance(error, msgspec.ValidationError) else _NO_OBJECT
        raise unreadable(what, reply.content, model, address) from error


def failure_of(
    status: int, content: Any, who: str, address: Address, headers: Mapping[str, str] | None = None
) -> ModelFailed:
    """The error for an answer that is none, with the server's words and the next step."""
    said = address.without_key(_error_text(content))
    cls: type[ModelFailed] = ModelUnavailable if status in _TRY_AGAIN or status >= 500 else ModelFailed
    advice = _ADVICE.get(status, "")
    if status in _REFUSED and _OVERFLOW.search(said):
        cls, advice = ContextOverflow, " (shorten the conversation, or lower max_tokens)"
    elif status in _REFUSED and _TOOL.search(said):
        advice = " (the endpoint refuses a tool: simplify the schema that it names)"
    return cls(
        f"{who} answered {status}: {said}{advice}",
        status=status,
        retry_after_s=_seconds((headers or {}).get("retry-after")),
    )


def unreadable(what: str, content: Any, model: str, address: Address) -> UnreadableAnswer:
    """The error for an answer that is not what the API promises."""
    shown = content if isinstance(content, (str, bytes)) else msgspec.json.encode(content)
    text = address.without_key(shown if isinstance(shown, str) else shown.decode(errors="replace"))
    return UnreadableAnswer(
        f"{model} at {address.name} answered with {what}: {text[:200]!r}; "
        "does the endpoint speak the API of this client?"
    )


def as_json(text: Any) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _error_text(content: Any) -> str:
    """The server's error message, from one of the usual fields."""
    facts = content if isinstance(content, dict) else as_json(content)
    if isinstance(facts, Mapping):
        error = facts.get("error", facts)
        text = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
        if text:
            return str(text)[:500]
    shown = content.decode(errors="replace") if isinstance(content, bytes) else str(content)
    return shown.strip()[:500] or "nothing"


def _seconds(header: str | None) -> float | None:
    """The seconds of a Retry-After, which may be a date; None if it is neither."""
    try:
        seconds = float(header or "")
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(header or "").timestamp() - time.time())
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < float("inf") else None
