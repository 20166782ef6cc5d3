"""HTTP/1.1 over kept connections, for a fifth of the CPU time of a general client: rollouts call models often."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools

from ..errors import InvalidArgument
from ..settings import is_loopback_for_secrets

_CONNECT_S = 10.0
# Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request would meet its end.
_KEEPALIVE_S = 4.0


class TooLarge(OSError):
    """An answer has more bytes than the client reads."""


@dataclass(slots=True)
class HttpAnswer:
    """An answer.

    Attributes:
        status: The HTTP status.
        headers: The headers, with lower-case names.
        parts: The body, in parts.
        complete: Whether it is whole.
        keeps_alive: Whether the server takes another request on the connection.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False
    keeps_alive: bool = False

    @property
    def body(self) -> bytes:
        """The body."""
        return b"".join(self.parts)

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        return self.status >= 200 and not {"content-length", "transfer-encoding"} & self.headers.keys()


PartReader = Callable[[HttpAnswer, bytes], None]
"""Gets each part of a body as it arrives, with the answer; its head is complete then."""


class HttpClientConnection(asyncio.Protocol):
    """One connection, one request at a time; httptools calls the methods `on_`."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer = HttpAnswer()
        self._waits = False
        self._done: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._read_at = 0.0
        self._left = 0
        self._tunnels = False
        self._on_part: PartReader | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._waits:  # it answers no request
            self.transport.abort()
            return
        self._read_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error.__context__ if isinstance(error.__context__, TooLarge) else OSError(f"no HTTP: {error}"))
            return
        if self._answer.complete:
            self._succeed()

    def connection_lost(self, error: Exception | None) -> None:
        if self._waits and error is None and self._answer.ends_with_connection:
            self._succeed()
        else:
            self._fail(error or ConnectionResetError("the server closed the connection"))
        del self._parser  # it refers to this connection: garbage that only a full collection would find

    def on_message_begin(self) -> None:
        if self._answer.complete:
            raise OSError("a second answer")
        self._answer.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self._answer.complete = self._tunnels

    def on_body(self, body: bytes) -> None:
        self._answer.parts.append(body)
        self._left -= len(body)
        if self._left < 0:
            raise TooLarge
        if self._on_part is not None:
            self._on_part(self._answer, body)

    def on_message_complete(self) -> None:
        self._answer.complete = self._answer.status >= 200  # else the answer follows
        self._answer.keeps_alive = self._parser.should_keep_alive()

    async def tunnel(self, request: bytes) -> HttpAnswer:
        """Sends a CONNECT and returns its answer, which has no body. Raises the errors of `send`."""
        self._tunnels = True
        answer = await self.send(request, b"", 0, None)
        self._tunnels, self._parser = False, httptools.HttpResponseParser(self)
        return answer

    async def send(
        self, head: bytes, body: bytes, most_bytes: int, stall_s: float | None, on_part: PartReader | None = None
    ) -> HttpAnswer:
        """Sends a request and returns its answer.

        Args:
            head, body: The request.
            most_bytes: Most bytes of the answer's body.
            stall_s: Seconds without a byte after which it fails; None for no limit.
            on_part: Called with each part of the body.

        Raises:
            OSError: The answer did not arrive, or not whole; `TimeoutError` after `stall_s`.
        """
        self._answer, self._left, self._waits = HttpAnswer(), most_bytes, True
        self._done, self._read_at = self._loop.create_future(), self._loop.time()
        self._on_part = on_part
        self.transport.writelines((head, body) if body else (head,))
        if stall_s is not None:
            self._watch(self._done, stall_s)
        try:
            return await self._done
        finally:
            self._waits = False
            # An idle connection keeps no answer.
            self._answer, self._done, self._on_part = HttpAnswer(), self._loop.create_future(), None

    def _watch(self, done: asyncio.Future[HttpAnswer], stall_s: float) -> None:
        """Fails the request if no byte has arrived for that long; else looks again later."""
        left = self._read_at + stall_s - self._loop.time()
        if done is self._done and not done.done():
            if left <= 0:
                self._fail(TimeoutError())
            else:
                self._loop.call_later(left, self._watch, done, stall_s)

    def _succeed(self) -> None:
        self._waits = False
        if not self._done.done():
            self._done.set_result(self._answer)

    def _fail(self, error: BaseException) -> None:
        if self._waits and not self._done.done():
            self._done.set_exception(error)


class HttpClient:
    """Sends requests to one origin. Belongs to the running event loop.

    It follows no redirects, keeps no cookies, and asks for no compression. The proxy is that of the environment
    variables; for this machine there is none.

    Args:
        root: URL before the path of a request; may have a user and a password.
        headers: Headers of every request.
        connections: Most connections; 0 for no limit.
        most_bytes: Most bytes of an answer.
        socket_path: A Unix socket that leads to the origin.

    Raises:
        InvalidArgument: A header has a line break, or the proxy is no http one.
    """

    def __init__(
        self,
        root: str,
        headers: Mapping[str, str],
        connections: int,
        most_bytes: int,
        socket_path: str | None = None,
    ):
        self._socket_path = socket_path
        self._url = urlsplit(root)
        self._proxy = _proxy_of(self._url)
        secure = "https" in (self._url.scheme, self._proxy and self._proxy.scheme)
        self._tls = ssl.create_default_context() if secure else None
        self._most_bytes = most_bytes
        self._room = asyncio.Semaphore(connections) if connections else None
        self._idle: list[HttpClientConnection] = []
        self._prefix = quote(self._url.path, safe="/%:@!$&'()*+,;=~")
        fixed = {"host": _host_of(self._url), **_basic(self._url), **headers}
        if self._proxy is not None and self._url.scheme == "http":
            self._prefix = f"http://{fixed['host']}{self._prefix}"
            fixed |= _basic(self._proxy, "proxy-authorization")
        self._head = _lines(fixed)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        stall_s: float | None,
        on_part: PartReader | None = None,
    ) -> HttpAnswer:
        """Sends a request.

        Args:
            method: Its method.
            path: Path behind the root.
            body: Its body; empty for none.
            headers: Further headers.
            stall_s: Seconds without a byte after which it fails; None for no limit.
            on_part: Called with each part of the body.

        Raises:
            OSError: There is no connection, or the answer is not whole; `TooLarge`; `TimeoutError` after `stall_s`.
            InvalidArgument: A header has a line break.
        """
        fields = f"{self._head}{_lines(headers)}content-length: {len(body)}\r\n"
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{fields}\r\n".encode()
        if self._room is None:
            return await self._exchange(head, body, stall_s, on_part)
        async with self._room:
            return await self._exchange(head, body, stall_s, on_part)

    async def _exchange(
        self, head: bytes, body: bytes, stall_s: float | None, on_part: PartReader | None
    ) -> HttpAnswer:
        connection = await self._connection()
        try:
            answer = await connection.send(head, body, self._most_bytes, stall_s, on_part)
        except BaseException:
            connection.transport.abort()
            raise
        if answer.keeps_alive and not connection.transport.is_closing():
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.transport.close()
        return answer

    async def _connection(self) -> HttpClientConnection:
        """An idle connection, or a new one."""
        loop, target, first = asyncio.get_running_loop(), self._url, self._proxy or self._url
        while self._idle:
            idle = self._idle.pop()
            if idle.idle_since > loop.time() - _KEEPALIVE_S and not idle.transport.is_closing():
                return idle
            idle.transport.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                if self._socket_path is not None:
                    return (await loop.create_unix_connection(HttpClientConnection, self._socket_path))[1]
                _, connection = await loop.create_connection(
                    HttpClientConnection,
                    first.hostname or "",
                    first.port or (443 if first.scheme == "https" else 80),
                    ssl=self._tls if first.scheme == "https" else None,
                )
                if self._proxy is not None and target.scheme == "https":
                    await self._tunnel(connection)
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {_CONNECT_S:g} s") from error
        except UnicodeError as error:
            raise ConnectionError(f"{first.hostname} is no name of a host") from error
        return connection

    async def _tunnel(self, connection: HttpClientConnection) -> None:
        """Has the proxy connect to the server, and begins TLS with that."""
        assert self._proxy is not None
        assert self._tls is not None
        host = _host_of(self._url)
        where = host if self._url.port else f"{host}:443"
        headers = {"host": where, **_basic(self._proxy, "proxy-authorization")}
        head = f"CONNECT {where} HTTP/1.1\r\n{_lines(headers)}\r\n"
        try:
            answer = await connection.tunnel(head.encode())
            if answer.status != 200:
                raise ConnectionError(f"the proxy {self._proxy.hostname} answered {answer.status}")
            connection.transport = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, self._tls, server_hostname=self._url.hostname
            )
        except BaseException:
            connection.transport.abort()
            raise

    async def close(self) -> None:
        """Closes the connections."""
        while self._idle:
            self._idle.pop().transport.close()


def _proxy_of(url: SplitResult) -> SplitResult | None:
    """The proxy from the environment variables; none for this machine."""
    host = url.hostname or ""
    if is_loopback_for_secrets(host) or proxy_bypass(host):
        return None
    named = getproxies().get(url.scheme)
    proxy = urlsplit(named if "//" in named else f"http://{named}") if named else None
    if proxy is not None and proxy.scheme not in ("http", "https"):
        raise InvalidArgument(f"the proxy for {url.scheme} is of kind {proxy.scheme!r}: give that of an http one")
    return proxy


def _host_of(url: SplitResult) -> str:
    """Host and port as the URL has them, without credentials."""
    return url.netloc.rpartition("@")[2]


def _basic(url: SplitResult, header: str = "authorization") -> dict[str, str]:
    """The header with the user and password of a URL, if it has any."""
    if url.username is None:
        return {}
    given = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {header: f"Basic {base64.b64encode(given.encode()).decode()}"}


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise InvalidArgument(f"the header {name} has a line break: remove it (is it in the API key?)")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
