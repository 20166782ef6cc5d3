"""The server under test: HTTP requests and a v1 WebSocket connection, each in bounded time."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Self
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from ...client.endpoints import headers_of, http_url, websocket_url
from ...errors import MissingExtra
from ...settings import is_loopback
from ...testing.check import CheckFailure, CheckSkip

# Maximum size of an answer, and of a frame. Observations may be images.
MAX_BYTES = 100 * 1024 * 1024
# Time limit of all checks of a server together, as a multiple of the limit of one call.
ALL_CALLS = 12
# Maximum of characters of a server's answer in messages.
CLIP = 200


class ServerAnswer(NamedTuple):
    """The answer to a request.

    Attributes:
        asked: The request, as method and path.
        status: HTTP status code.
        location: Target of a redirect, if it is one.
        body: Body of the answer.
        seconds: Duration until its last byte, in seconds.
    """

    asked: str
    status: int
    location: str
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body; raises `CheckFailure` if it is not JSON."""
        return strict_json(self.body, f"the answer to {self.asked} (status {self.status})")

    def fault(self, expected: str) -> CheckFailure:
        """The failure for an unexpected status."""
        where = f" (to {excerpt(self.location)})" if self.location else ""
        return CheckFailure(
            f"{self.asked} answers with status {self.status}{where}: {excerpt(self.body)}",
            f"answer {expected}; the server's log has the reason for this answer",
        )


class ServerUnderTest:
    """A server, and the facts about it so far.

    Args:
        url: Address in any form that clients accept.
        timeout_s: Seconds for one call.
        api_key: Key for each call.

    Attributes:
        base: Base address of its routes.
        endpoint: Address of its WebSocket.
        is_nearby: Whether it is on this machine, which proxies do not reach.
        runner: The event loop of all calls.
        place: Its address for messages, without user name and password.
        health: The answer of `/health`, once `url.reach` has run.
        metadata: The answer of `/metadata`, once `url.key` has run.
        paths: The paths of its OpenAPI document.
        schemas: JSON Schemas by `action`, `observation`, `state`, and perhaps `reset_observation`; only valid ones.
        production: Whether clients can only call tools.
        talk: The current connection.
        values: Values in its messages, each with a name, the value, and the name of its schema.

    Raises:
        UsageError: The address or the key is invalid.
        MissingExtra: httpx or jsonschema is not installed.
    """

    def __init__(self, url: str, timeout_s: float, api_key: str | None):
        self.endpoint = websocket_url(url)
        self.base = http_url(self.endpoint)
        self.is_nearby = is_loopback(urlsplit(self.endpoint).hostname or "")
        parts = urlsplit(self.base)
        self.place = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self.headers = headers_of({}, api_key)
        self.has_key = api_key is not None
        self.timeout_s = timeout_s
        self.health: ServerAnswer
        self.metadata: ServerAnswer
        self.paths: Container[str] | None = None
        self.schemas: Mapping[str, Any] = {}
        self.production = False
        self.talk: ProbeConnection | None = None
        self.values: list[tuple[str, Any, str]] = []
        try:
            import httpx
        except ModuleNotFoundError:
            raise MissingExtra("httpx", "core") from None
        self._httpx = httpx
        # Each request has a new connection, so that no request is affected by an earlier one.
        self._client = self._httpx.AsyncClient(
            timeout=None,  # each call has a timeout for its whole duration
            trust_env=not self.is_nearby,
            limits=self._httpx.Limits(max_keepalive_connections=0),
        )
        self._ends = time.monotonic() + ALL_CALLS * timeout_s
        self.runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.talk is not None:
            self.talk.end()
        self.runner.run(self._client.aclose())
        self.runner.close()

    def seconds(self) -> float:
        """Seconds for the next call; raises `CheckSkip` when all time is used up."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise CheckSkip(f"the checks have used up {ALL_CALLS * self.timeout_s:g} s: raise --timeout")
        return min(self.timeout_s, left)

    def late(self, asked: str) -> CheckFailure:
        """The failure for an answer that did not come in time."""
        return CheckFailure(
            f"{asked}: no answer within {self.timeout_s:g} s",
            "see the server's log, or raise --timeout",
        )

    def get(self, path: str) -> ServerAnswer:
        """The answer to `GET` of a path; raises `CheckFailure` if there is none, or it is not HTTP."""
        return self.runner.run(self._ask("GET", path, None))

    def post(self, path: str, body: Any) -> ServerAnswer:
        """The same for `POST` of JSON, or of raw bytes."""
        return self.runner.run(
            self._ask("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())
        )

    async def _ask(self, method: str, path: str, content: bytes | None) -> ServerAnswer:
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
                        raise CheckFailure(
                            f"{asked}: the answer is longer than {MAX_BYTES >> 20} MiB", "send a shorter answer"
                        )
                location = response.headers.get("location", "")
                return ServerAnswer(asked, response.status_code, location, bytes(body), time.monotonic() - began)
        except TimeoutError:
            raise self.late(asked) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CheckFailure(
                f"{asked}: no HTTP answer ({excerpt(_reason(error))})",
                f"check that an HTTP server runs at {self.place}",
            ) from None


def strict_json(text: bytes | str, what: str) -> Any:
    """The value of strict JSON; raises `CheckFailure` if the text is not JSON."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CheckFailure(
            f"{what} is not JSON ({excerpt(str(error))}): {excerpt(text)}", "answer JSON, without NaN and infinity"
        ) from None


def excerpt(value: object) -> str:
    """A short quote of a server's answer for a message, without control characters for a terminal."""
    text = value[: 4 * CLIP].decode(errors="replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:CLIP])
    return shown + ("..." if len(text) > CLIP else "")


def _reason(error: BaseException) -> str:
    """The message of the operating system's error, which libraries wrap in their own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None and inner.strerror:
            return os.strerror(inner.errno) if inner.errno > 0 else inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


class ProbeConnectionClosed(CheckFailure):
    """The server refused or closed the connection; `code` is its close code, if any."""

    def __init__(self, saw: str, fix: str, code: int | None = None):
        super().__init__(saw, fix)
        self.code = code


class _NoRedirectConnect(connect):
    """A connection that does not follow redirects."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class ProbeConnection:
    """One connection, which is one session of the server.

    Args:
        site: The server.
        connection: WebSocket to its endpoint.
    """

    def __init__(self, site: ServerUnderTest, connection: ClientConnection):
        self._site = site
        self._connection = connection

    @classmethod
    def begin(cls, site: ServerUnderTest) -> ProbeConnection:
        """Connects.

        Raises:
            ProbeConnectionClosed: The server refused the connection.
        """

        async def connected() -> ClientConnection:
            async with asyncio.timeout(site.seconds()):
                return await _NoRedirectConnect(
                    site.endpoint,
                    additional_headers=site.headers,
                    open_timeout=None,
                    ping_interval=None,
                    close_timeout=site.timeout_s,
                    max_size=MAX_BYTES,
                    proxy=None if site.is_nearby else True,
                )

        try:
            return cls(site, site.runner.run(connected()))
        except TimeoutError:
            raise site.late("the handshake at /ws") from None
        except InvalidStatus as error:
            status = error.response.status_code
            fix = "serve the environment's WebSocket there"
            if status in {401, 403}:
                fix = "give a key of scope control by --api-key (OPENENV_API_KEY)"
            raise ProbeConnectionClosed(f"/ws answers the handshake with status {status}", fix) from None
        except (InvalidHandshake, WebSocketException, OSError, EOFError) as error:
            raise ProbeConnectionClosed(
                f"/ws is not a WebSocket ({excerpt(str(error) or type(error).__name__)})",
                "serve the environment's WebSocket there",
            ) from None

    def ask(self, frame: Mapping[str, Any] | str) -> dict[str, Any]:
        """Sends a frame and returns the next one. Raises as `take` does."""
        self.say(frame)
        return self.take(f"a frame {excerpt(frame if isinstance(frame, str) else json.dumps(frame))}")

    def say(self, frame: Mapping[str, Any] | str) -> None:
        """Sends a frame: an object as JSON, or a string unchanged."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        seconds = self._site.seconds()
        try:
            self._site.runner.run(asyncio.wait_for(self._connection.send(text), seconds))
        except TimeoutError:
            raise CheckFailure(
                "the server does not read its frames", "read from each connection at all times"
            ) from None
        except ConnectionClosed as error:
            self._closed(error, "the last frame")

    def take(self, after: str) -> dict[str, Any]:
        """The next frame: an object with `type` and `data`.

        Args:
            after: The request that it answers, for messages.

        Raises:
            CheckFailure: The frame is invalid, or none comes in time.
            ProbeConnectionClosed: The connection is closed.
        """
        seconds = self._site.seconds()
        try:
            text = self._site.runner.run(asyncio.wait_for(self._connection.recv(), seconds))
        except TimeoutError:
            raise self._site.late(after) from None
        except ConnectionClosed as error:
            self._closed(error, after)
        if isinstance(text, bytes):
            raise CheckFailure(
                f"{after} is answered by a binary frame: {excerpt(text)}", "v1 speaks JSON in text frames"
            )
        frame = strict_json(text, f"the answer to {after}")
        if not (
            isinstance(frame, dict) and isinstance(frame.get("type"), str) and isinstance(frame.get("data"), dict)
        ):
            raise CheckFailure(
                f"{after} is answered by {excerpt(text)}",
                'answer an object {"type": ..., "data": {...}}, as in v1',
            )
        return frame

    def end(self) -> None:
        """Closes the connection, in any state."""
        try:
            with suppress(TimeoutError):
                self._site.runner.run(asyncio.wait_for(self._connection.close(), self._site.timeout_s))
        finally:
            self._connection.transport.abort()

    def _closed(self, error: ConnectionClosed, after: str) -> NoReturn:
        code = None if error.rcvd is None else error.rcvd.code
        how = (
            "without a close frame"
            if error.rcvd is None
            else f"with code {error.rcvd.code} {excerpt(error.rcvd.reason)}"
        )
        said = f"after {after} the server closed the connection {how.strip()}"
        raise ProbeConnectionClosed(said, "keep the connection open until the client closes it", code) from None
