"""The road to a model's server: the vendor's SDK where it is installed, else httpx."""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ..errors import MissingExtra, ModelFailed, ModelUnavailable, UsageError

if TYPE_CHECKING:
    import httpx

__all__ = ["Address", "HttpxSender", "Reply", "SDKSender", "Sender", "make_sender"]

_CONNECT_S = 10.0
_MAX_CONNECTIONS = 256
_MAX_ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go, and how they show who sends them.

    Attributes:
        root: URL before the path of a call.
        sdk: Module of the vendor's SDK.
        key: For the SDK, which shows it in its own way.
        auth: Headers that show the key to the server.
        headers: Further ones.
    """

    root: str
    sdk: str
    key: str
    auth: Mapping[str, str]
    headers: Mapping[str, str]

    def __repr__(self) -> str:  # some of it is secret
        return f"Address({self.name!r})"

    @property
    def name(self) -> str:
        """Host and port, without what may stand before them."""
        return urlsplit(self.root).netloc.rpartition("@")[2]

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.root).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer: `content` is its text, or what it holds where the SDK has read it."""

    status: int
    headers: Mapping[str, str]
    content: Any


class Sender(Protocol):
    """Sends requests over connections that it keeps. Belongs to one event loop."""

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """Sends JSON. Raises `ModelUnavailable` if there is no answer."""

    async def close(self) -> None:
        """Closes its connections."""


def make_sender(address: Address, sdk: bool | None) -> Sender:
    """The sender for an address.

    Args:
        address: Where to.
        sdk: Whether to use the vendor's SDK; None: if it is installed.

    Raises:
        MissingExtra: httpx is not installed.
        UsageError: The SDK is not, and was asked for.
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


class HttpxSender:
    """Plain HTTP."""

    def __init__(self, address: Address):
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "llm") from error
        self._address = address
        self._failure = httpx.HTTPError
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            headers={**address.auth, **address.headers},
            # The deadline of a call is its caller's; only a server that cannot be reached is told sooner.
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
            trust_env=not address.is_loopback,
        )

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        url = self._address.root + path
        try:
            async with self._client.stream("POST", url, json=body) as response:
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise ModelFailed(f"{self._address.name} answered with more than {_MAX_ANSWER_BYTES} bytes")
                return Reply(response.status_code, response.headers, content.decode(errors="replace"))
        except self._failure as error:
            raise _unreachable(self._address, error) from error

    async def close(self) -> None:
        await self._client.aclose()


class SDKSender:
    """The vendor's own client, for what its settings bring (organisations, proxies); retries are not its affair."""

    def __init__(self, address: Address, module: Any):
        self._address = address
        self._module = module
        make = module.AsyncOpenAI if address.sdk == "openai" else module.AsyncAnthropic
        self._client = make(
            base_url=address.root,
            # Never None: it would then send the key of its own environment variable to whatever endpoint this is.
            api_key=address.key or "not-needed",
            default_headers=dict(address.headers),
            max_retries=0,
            timeout=None,
        )

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        try:
            return Reply(200, {}, await self._client.post(path, cast_to=str, body=body))
        except self._module.APIStatusError as error:
            return Reply(error.status_code, error.response.headers, error.response.text)
        except self._module.APIConnectionError as error:
            raise _unreachable(self._address, error.__cause__ or error) from error

    async def close(self) -> None:
        await self._client.close()


def _unreachable(address: Address, error: BaseException) -> ModelUnavailable:
    told = str(error) or type(error).__name__
    return ModelUnavailable(f"no answer from {address.name}: {told}; is its server running, and the endpoint right?")
