"""Pass a request or a connection on to the worker process that has its session."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import h11
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .._asyncio import start_task
from ..errors import InvalidMessage, SessionLost, StepTimeout, UnknownSession
from .shared_sessions import worker_of

if TYPE_CHECKING:
    from .server import EnvironmentServer

PIECE_BYTES = 64 * 1024


class UpstreamRequest:
    """The client's side of one request.

    Args:
        reader, writer: The connection; it belongs to this object.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], body: bytes) -> h11.Response:
        """Sends the request and waits for the head of the answer.

        Raises:
            ConnectionError: The other side closes first, or its answer is not HTTP.
            InvalidMessage: The request cannot be sent as HTTP.
        """
        try:
            request = h11.Request(method=method, target=target, headers=fields)
        except h11.LocalProtocolError as error:
            raise InvalidMessage(
                f"the request cannot be forwarded to the worker process of its session: {error}"
            ) from error
        sent = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        self._writer.write(b"".join(part for part in sent if part))
        await self._writer.drain()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError("the connection closed before an answer")

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the answer in chunks, as they arrive.

        Raises:
            ConnectionError: The body is incomplete.
        """
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    def close(self) -> None:
        """Closes the connection, even if the answer is incomplete."""
        self._writer.transport.abort()

    async def _next(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(PIECE_BYTES))
        except h11.RemoteProtocolError as error:
            raise ConnectionResetError(str(error)) from error
        return event


logger = logging.getLogger("openenv.server")

_running: set[asyncio.Task[None]] = set()


def relay(transport: asyncio.Transport, far: socket.socket) -> None:
    """Copies bytes between a connection and a socket until either of them ends, then closes both.

    Args:
        transport: The connection, from which nothing has been read.
        far: The socket at the other side; the relay owns it from now on.
    """
    transport.pause_reading()
    far.setblocking(False)
    task = asyncio.get_running_loop().create_task(_join(transport, far))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _join(near: asyncio.Transport, connection: socket.socket) -> None:
    try:
        far, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: _RelayProtocol(near), connection)
    except OSError as error:
        logger.warning("a connection cannot be relayed to another worker process: %s", error.strerror or error)
        connection.close()
        near.abort()
        return
    if near.is_closing():
        far.close()
        return
    near.set_protocol(_RelayProtocol(far))
    near.resume_reading()


class _RelayProtocol(asyncio.Protocol):
    """Copies the bytes of one connection to the other."""

    def __init__(self, other: asyncio.Transport):
        self._other = other

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        # Backpressure: stop reading the other connection while this one does not take its bytes.
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()


_T = TypeVar("_T")
# Seconds beyond the time limit of the request in which the owner can report that the limit has passed.
SPARE_S = 2.0
PROXY = b"PROXY "
"""The first bytes of a connection that forwards one request; no request of a client begins with them."""
# No client sees this status: the client has disconnected.
GONE = 499
ARRIVAL = "openenv.arrival"
"""Key of an ASGI scope: how the request came (`ForwardingInfo`)."""
# Headers of one connection and not of the request (RFC 9110, 7.6.1), and headers that every server sets itself.
_OF_THE_SERVER = frozenset((b"date", b"server"))
_OF_THE_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect content-length".split()
)


class ForwardingInfo(NamedTuple):
    """How a request came to this process.

    Attributes:
        target: Its URL as it was sent.
        handed_on: Whether another worker forwarded it. The connection that it arrives on decides this, not its
            content, so a client cannot forge it.
    """

    target: bytes
    handed_on: bool


async def forward_to_owner(
    request: Request, server: EnvironmentServer, session_id: str, timeout_s: float | None = None
) -> Response | None:
    """Forwards a request to the worker process that has its session.

    Args:
        request: The request. Its body is read here unless it was read before.
        server: The server that received it.
        session_id: The session of the request.
        timeout_s: The time limit that the request sets for its call.

    Returns:
        The answer; None if the session belongs to this process, or is unknown.

    Raises:
        UnknownSession: Its worker process has ended.
        SessionLost: Its worker ended before it answered, and the session with it.
        StepTimeout: Its worker did not answer in time.
    """
    worker, arrived = worker_of(session_id), request.scope.get(ARRIVAL)
    if worker is None or worker == server.worker_key or server.redirect is None:
        return None
    if not isinstance(arrived, ForwardingInfo) or arrived.handed_on:
        return None
    body = await request.body()
    near, far = socket.socketpair()
    if not server.redirect(worker, far, proxy_line(request.scope)):
        far.close()
        near.close()
        raise UnknownSession.of_ended_worker(session_id)
    near.setblocking(False)
    exchange = UpstreamRequest(*await asyncio.open_connection(sock=near, limit=PIECE_BYTES))
    try:
        answer = await until_disconnect(
            request.receive, _ask(exchange, request, arrived.target, body, session_id, timeout_s)
        )
    except BaseException:
        exchange.close()
        raise
    if not isinstance(answer, _RelayedResponse):
        exchange.close()
    return Response(status_code=GONE) if answer is None else answer


def proxy_line(scope: Any) -> bytes:
    """The client of a forwarded request, in a line before the request (the PROXY protocol of HAProxy)."""
    client, local = scope.get("client"), scope.get("server")
    if not client or not local or local[1] is None or len(f"{client[0]} {local[0]}".split()) != 2:
        return PROXY + b"UNKNOWN\r\n"
    family = "TCP6" if ":" in client[0] else "TCP4"
    return PROXY + f"{family} {client[0]} {local[0]} {client[1]} {local[1]}\r\n".encode("latin-1", "replace")


def read_proxy_line(line: bytes) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """The addresses of client and server in a line of `proxy_line`; None if the line has no addresses."""
    try:
        _, _, client, server, client_port, server_port = line.decode("latin-1").split()
        return (client, int(client_port)), (server, int(server_port))
    except ValueError:
        return None


async def _ask(
    exchange: UpstreamRequest, request: Request, target: bytes, body: bytes, session_id: str, timeout_s: float | None
) -> Response:
    """Raises as `forward_to_owner` does. Reads the whole body if its length is known: a part is not an answer."""
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _OF_THE_CONNECTION]
    headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if "host" not in request.headers:  # HTTP/1.0
        headers.append((b"host", b"openenv"))
    try:
        async with asyncio.timeout(None if timeout_s is None else timeout_s + SPARE_S):
            reply = await exchange.ask(request.method.encode(), target, headers, body)
            length = dict(reply.headers).get(b"content-length")
            if length is None:
                return _RelayedResponse(exchange, reply)
            response = Response(b"".join([piece async for piece in exchange.body()]), reply.status_code)
            response.raw_headers = [*_end_to_end_headers(reply), (b"content-length", length)]
            return response
    except TimeoutError:
        late = f"gave no answer within {timeout_s:g} s, the timeout_s of the request"
        raise StepTimeout(f"the worker process of session {session_id} {late}") from None
    except ConnectionError as error:
        logger.warning("session %.64s: its worker process did not answer: %s", session_id, error)
        lost = f"the worker process of session {session_id} has ended, and the session with it"
        raise SessionLost(f"{lost}: open another one (POST /sessions)") from None


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Awaits a coroutine while the client of an ASGI connection stays connected; None if it disconnects."""

    async def leave() -> None:
        while (await receive())["type"] not in {"http.disconnect", "websocket.disconnect"}:
            pass

    working, leaving = start_task(work), start_task(leave())
    both: set[asyncio.Future[Any]] = {working, leaving}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:  # without another wait: a server that cancels this does not let it wait
        for task in both:
            task.cancel()


def _end_to_end_headers(reply: h11.Response) -> list[tuple[bytes, bytes]]:
    return [field for field in reply.headers if field[0] not in _OF_THE_CONNECTION and field[0] not in _OF_THE_SERVER]


class _RelayedResponse(StreamingResponse):
    """A response that is forwarded in chunks. If it is cut off, the connection to the client closes too."""

    def __init__(self, exchange: UpstreamRequest, reply: h11.Response):
        super().__init__(exchange.body(), reply.status_code)
        self.raw_headers = _end_to_end_headers(reply)
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.close()
