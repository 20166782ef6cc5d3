"""A server somewhere, of whichever implementation: asked over HTTP, in bounded time, and believed nothing."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Container, Coroutine, Mapping
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from ...client.headers import headers_of
from ...client.url import http_url, is_loopback, websocket_url
from ...errors import MissingExtra
from ...testing.probe import CannotTell, Fault

if TYPE_CHECKING:
    from .url_talk import Talk

__all__ = ["MAX_BYTES", "Answer", "Learned", "Site", "clipped", "parsed"]

T = TypeVar("T")
# Of an answer, and of a frame. Observations may be images.
MAX_BYTES = 100 * 1024 * 1024
# All checks of one server may take so many times what one call may.
ALL_CALLS = 12
# Of what servers say, in messages.
CLIP = 200


class Answer(NamedTuple):
    """What came back for a request.

    Attributes:
        asked: The request, in words.
        status: Of HTTP.
        location: Where it redirects to, if it does.
        body: Its bytes.
        seconds: Until the last of them was there.
    """

    asked: str
    status: int
    location: str
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body; raises `Fault` if that is no JSON."""
        return parsed(self.body, f"the answer to {self.asked} (status {self.status})")

    def fault(self, expected: str) -> Fault:
        """That the status is none of those which were expected."""
        where = f" (to {clipped(self.location)})" if self.location else ""
        return Fault(
            f"{self.asked} answers with status {self.status}{where}: {clipped(self.body)}",
            f"answer {expected}; the server's log says why it did not",
        )


@dataclass
class Learned:
    """What one probe found out of a server and another needs.

    Attributes:
        health: What `/health` answered.
        metadata: What `/metadata` answered.
        paths: Those of its OpenAPI document.
        schemas: JSON Schemas by `action`, `observation`, `state`, and perhaps `reset_observation`; only valid ones.
        production: Whether it lets clients call tools only.
        talk: The conversation that goes on.
        values: What was said in it: what that is, its value, and the name of its schema.
    """

    health: Answer | None = None
    metadata: Answer | None = None
    paths: Container[str] | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)
    production: bool = False
    talk: Talk | None = None
    values: list[tuple[str, Any, str]] = field(default_factory=list)


class Site:
    """A server, and what was learned of it so far.

    Args:
        url: In any form that clients take.
        timeout_s: What one call may take.
        api_key: Shown with each.

    Attributes:
        base: Address of its routes.
        endpoint: Address of its environment.
        place: Its address for people: without a name and password.
        learned: What is known of it by now.

    Raises:
        UsageError: The address or the key is none.
        MissingExtra: What is needed to ask is not installed.
    """

    def __init__(self, url: str, timeout_s: float, api_key: str | None):
        self.endpoint = websocket_url(url)
        self.base = http_url(self.endpoint)
        parts = urlsplit(self.base)
        self.place = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self.headers = headers_of({}, api_key)
        self.has_key = api_key is not None
        self.timeout_s = timeout_s
        self.learned = Learned()
        self._httpx = _httpx()
        # Each request on a connection of its own: what one did to it is not held against the next.
        self._client = self._httpx.AsyncClient(
            timeout=None,  # each call has one for all of it
            trust_env=not self.nearby,
            limits=self._httpx.Limits(max_keepalive_connections=0),
        )
        self._ends = time.monotonic() + ALL_CALLS * timeout_s
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.learned.talk is not None:
            self.learned.talk.end()
        self._runner.run(self._client.aclose())
        self._runner.close()

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine, where proxies do not lead."""
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end; all calls have one event loop."""
        return self._runner.run(call)

    def seconds(self) -> float:
        """What the next call may take; raises `CannotTell` when all time is used up."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise CannotTell(f"the server used up {ALL_CALLS * self.timeout_s:g} s: give it longer with --timeout")
        return min(self.timeout_s, left)

    def late(self, asked: str) -> Fault:
        """That something took longer than it may."""
        return Fault(
            f"{asked}: no answer within {self.timeout_s:g} s",
            "see what the server is doing, or give it longer with --timeout",
        )

    def get(self, path: str) -> Answer:
        """What `GET` of a path answers; raises `Fault` if nothing does, or no HTTP."""
        return self.run(self._ask("GET", path, None))

    def post(self, path: str, body: Any) -> Answer:
        """The same for `POST` of JSON, or of bytes as they are."""
        return self.run(self._ask("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode()))

    async def _ask(self, method: str, path: str, content: bytes | None) -> Answer:
        asked, seconds, httpx = f"{method} {path}", self.seconds(), self._httpx
        headers = [*self.headers, ("Accept", "application/json")]
        if content is not None:
            headers.append(("Content-Type", "application/json"))
        began = time.monotonic()
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.stream(method, self.base + path, content=content, headers=headers) as response,
            ):
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise Fault(
                            f"{asked}: more than {MAX_BYTES >> 20} MiB came, and no end", "answer what is asked"
                        )
                location = response.headers.get("location", "")
                return Answer(asked, response.status_code, location, bytes(body), time.monotonic() - began)
        except TimeoutError:
            raise self.late(asked) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Fault(
                f"{asked}: no answer of HTTP ({clipped(_reason(error))})",
                f"see that a server of HTTP runs at {self.place}",
            ) from None


def parsed(text: bytes | str, what: str) -> Any:
    """JSON, as strictly as it is written; raises `Fault` if it is none."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Fault(
            f"{what} is no JSON ({clipped(str(error))}): {clipped(text)}", "answer JSON; NaN and infinity are none"
        ) from None


def clipped(value: object) -> str:
    """What a server said, for a message: not too much of it, and nothing that a terminal would obey."""
    text = value[: 4 * CLIP].decode(errors="replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:CLIP])
    return shown + ("..." if len(text) > CLIP else "")


def _reason(error: BaseException) -> str:
    """What the system said, which libraries hide behind words of their own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None and inner.strerror:
            return os.strerror(inner.errno) if inner.errno > 0 else inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _httpx() -> ModuleType:
    try:
        import httpx
    except ModuleNotFoundError:
        raise MissingExtra("httpx", "core") from None
    return httpx
