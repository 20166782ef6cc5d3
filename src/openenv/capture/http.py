"""Requests of agents and their answers: over HTTP/1.1 on httptools, or from an ASGI server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import httptools

from .._asyncio import start_task

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024
# A client that reads a stream this much too slowly is disconnected; its turn is recorded all the same.
_MOST_UNREAD_BYTES = 16 * 1024 * 1024
JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream; charset=utf-8"


class Exchange:
    """One request of an agent, and its answer: written at once (`reply`), or in parts (`begin`, `write`, `finish`).

    Attributes:
        method, path, query: Of the request, the path without escapes.
        headers: Of the request, with names in lower case.
        body: Of the request.
        gone: The client has disconnected, so that it has not read the whole answer. Writing is harmless then.
        on_gone: Called then, if it is set.
        begun: `begin` was called, so that the answer cannot become another one.
    """

    on_gone: Callable[[], object] | None = None

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: bytes):
        parts = urlsplit(target)
        self.method, self.path, self.query = method, unquote(parts.path), parts.query
        self.headers = headers
        self.body = body
        self.gone = self.begun = False

    def leave(self) -> None:
        """Notes that the client has disconnected."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    def reply(self, status: int, body: bytes, kind: str = JSON_TYPE, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Writes a whole answer."""
        raise NotImplementedError

    def begin(self, kind: str = EVENTS_TYPE) -> None:
        """Writes the head of an answer that comes in parts."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Writes a part."""
        raise NotImplementedError

    def finish(self, whole: bool = True) -> None:
        """Ends an answer in parts; not `whole`: the client must notice that it is cut off."""
        raise NotImplementedError


Handler = Callable[[Exchange], Awaitable[None]]


class _SocketExchange(Exchange):
    def __init__(self, connection: HttpConnection, head: tuple[str, str, dict[str, str]], body: bytes, last: bool):
        super().__init__(*head, body)
        self._connection = connection
        self.last = last

    def reply(self, status: int, body: bytes, kind: str = JSON_TYPE, headers: Iterable[tuple[str, str]] = ()) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = _status_line(status) + f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}"
        self._connection.send((head + ("connection: close\r\n\r\n" if self.last else "\r\n")).encode() + body)
        self._connection.answered(self)

    def begin(self, kind: str = EVENTS_TYPE) -> None:
        self.begun = True
        head = (
            _status_line(200) + f"content-type: {kind}\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n"
        )
        self._connection.send((head + "\r\n").encode())

    def write(self, data: bytes) -> None:
        self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self, whole: bool = True) -> None:
        if whole:
            self._connection.send(b"0\r\n\r\n")
        else:
            self.last = True
        self._connection.answered(self)


def _status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"


class HttpConnection(asyncio.Protocol):
    """A connection of an agent. Requests are answered in their order.

    Args:
        handler: Answers a request; it runs on even if the client disconnects.
        connections: Has all open connections, so that a server can close them.
    """

    def __init__(self, handler: Handler, connections: set[HttpConnection]):
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._current: _SocketExchange | None = None
        self._waiting: deque[_SocketExchange] = deque()
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.leave()
        self._waiting.clear()
        del self._parser  # it refers to this connection: garbage that only a full collection would find

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "this is no WebSocket server: send requests of a model API")
        except httptools.HttpParserError as error:
            if not self._transport.is_closing():
                self._refuse(400, f"the request is not HTTP: {error}")

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url), MOST_HEAD_BYTES, 431, "the head of the request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._count(len(name) + len(value), MOST_HEAD_BYTES, 431, "the head of the request")

    def on_headers_complete(self) -> None:
        self._size = 0
        if self._headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._count(len(body), MOST_BODY_BYTES, 413, "the body of the request")

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        head = self._parser.get_method().decode(), self._url.decode("latin-1"), self._headers
        exchange = _SocketExchange(self, head, body, not self._parser.should_keep_alive())
        self._body = []
        self._waiting.append(exchange)
        self._next()

    # Called by exchanges.

    def send(self, data: bytes) -> None:
        """Writes bytes, unless the client has disconnected."""
        if not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
                self._transport.abort()

    def answered(self, exchange: _SocketExchange) -> None:
        """The answer of the current request is complete."""
        self._current = None
        if exchange.last:
            self.close()
        self._next()

    def close(self) -> None:
        """Closes the connection, after what is written."""
        self._transport.close()

    def _next(self) -> None:
        if self._current is None and self._waiting and not self._transport.is_closing():
            self._current = self._waiting.popleft()
            _running.add(task := start_task(self._handler(self._current)))
            task.add_done_callback(_running.discard)

    def _count(self, size: int, most: int, status: int, what: str) -> None:
        self._size += size
        if self._size > most:
            self._refuse(status, f"{what} is larger than {most} bytes")
            raise ValueError(what)  # ends the parser

    def _refuse(self, status: int, message: str) -> None:
        body = b'{"error": {"message": "%b", "type": "invalid_request_error"}}' % message.encode().replace(b'"', b"'")
        head = f"{_status_line(status)}content-type: {JSON_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.send((head + "connection: close\r\n\r\n").encode() + body)
        self.close()


_running: set[asyncio.Future[None]] = set()


class AsgiExchange(Exchange):
    """A request of an ASGI server. `run` sends what `reply` and the others write."""

    def __init__(self, scope: Any, body: bytes):
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        super().__init__(scope["method"], "", headers, body)
        self.path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        self.query = scope.get("query_string", b"").decode("latin-1")
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def reply(self, status: int, body: bytes, kind: str = JSON_TYPE, headers: Iterable[tuple[str, str]] = ()) -> None:
        length = ("content-length", str(len(body)))
        fields = [(name.encode(), value.encode()) for name, value in (("content-type", kind), length, *headers)]
        self._events.put_nowait({"type": "http.response.start", "status": status, "headers": fields})
        self._events.put_nowait({"type": "http.response.body", "body": body})
        self._events.put_nowait(None)

    def begin(self, kind: str = EVENTS_TYPE) -> None:
        self.begun = True
        fields = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        self._events.put_nowait({"type": "http.response.start", "status": 200, "headers": fields})

    def write(self, data: bytes) -> None:
        self._events.put_nowait({"type": "http.response.body", "body": data, "more_body": True})

    def finish(self, whole: bool = True) -> None:
        if whole:
            self._events.put_nowait({"type": "http.response.body", "body": b""})
        self._events.put_nowait(None)

    async def run(self, handler: Handler, receive: Any, send: Any) -> None:
        """Has the request handled, and sends the answer until the client disconnects."""
        _running.add(task := start_task(handler(self)))
        task.add_done_callback(_running.discard)

        async def notice() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.leave()
            self._events.put_nowait(None)

        noticing = start_task(notice())
        try:
            while not self.gone and (event := await self._events.get()) is not None:
                await send(event)
        except OSError:
            self.leave()
        finally:
            noticing.cancel()


def asgi_app(handler: Handler) -> Any:
    """An ASGI app that has its requests handled, to mount in another app."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        if scope["type"] != "http":
            return
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body") or size > MOST_BODY_BYTES:
                break
        exchange = AsgiExchange(scope, b"".join(parts))
        await exchange.run(_too_large if size > MOST_BODY_BYTES else handler, receive, send)

    return app


async def _too_large(exchange: Exchange) -> None:
    exchange.reply(413, b'{"error": {"message": "the body of the request is larger than 64 MiB"}}')
