"""Requests that name a session of another worker process: handed on to it, and answered with what it says.

The worker that got a request may not give its connection away, since the next request on it may be for somebody
else, and since its TLS ends here. So it asks the owner over a road of its own: one end of a pair of sockets is handed
over like any connection, and HTTP/1.1 is spoken over the other one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import SessionLost, StepTimeout, UnknownSession
from .exchange import Exchange, Reply
from .stays import worker_of

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["ARRIVAL", "PROXY", "Arrived", "forwarded"]

logger = logging.getLogger("openenv.server")

_T = TypeVar("_T")
# What the owner has, beyond the time of the request itself, to say that this is over.
SPARE_S = 2.0
PROXY = b"PROXY "
"""What a connection begins with that is handed on for one request; no request of a client does."""
# Nobody sees it: whoever asked has left.
GONE = 499
ARRIVAL = "openenv.arrival"
"""Where the scope of a request says how it came (`Arrived`)."""
# What concerns one connection and not the request (RFC 9110, 7.6.1), and what every server says for itself.
_OF_THE_SERVER = frozenset((b"date", b"server"))
_OF_THE_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect content-length".split()
)


class Arrived(NamedTuple):
    """How a request came to this process.

    Attributes:
        target: Its URL as it was sent.
        handed_on: By another worker, which had got it. Said by the road that it came by, and by nothing in it: a
            client cannot claim it.
    """

    target: bytes
    handed_on: bool


async def forwarded(
    request: Request, server: HTTPEnvServer, session_id: str, timeout_s: float | None = None
) -> Response | None:
    """Has a request answered by the worker process that has its session.

    Args:
        request: Its body is read here, if it was not before.
        server: That got it.
        session_id: The session that it is about.
        timeout_s: The time that the request gives its own call.

    Returns:
        The answer; None if the session belongs here, or to nobody.

    Raises:
        UnknownSession: Its worker process has ended.
        SessionLost: Its worker went away before it answered, and the session with it.
        StepTimeout: Its worker gave no answer in time.
    """
    worker, arrived = worker_of(session_id), request.scope.get(ARRIVAL)
    if worker is None or worker == server.worker_key or server.redirect is None:
        return None
    if not isinstance(arrived, Arrived) or arrived.handed_on:
        return None
    body = await request.body()
    near, far = socket.socketpair()
    if not server.redirect(worker, far, introduction(request.scope)):
        far.close()
        near.close()
        raise UnknownSession.of_ended_worker(session_id)
    exchange = await Exchange.over(near)
    try:
        answer = await _while_there(request, _ask(exchange, request, arrived.target, body, session_id, timeout_s))
    except BaseException:
        exchange.close()
        raise
    if answer is None or not isinstance(answer, _Relayed):
        exchange.close()
    return Response(status_code=GONE) if answer is None else answer


def introduction(scope: Any) -> bytes:
    """Who is behind a request that is handed on, in a line that goes before it (the PROXY protocol of HAProxy)."""
    client, local = scope.get("client"), scope.get("server")
    if not client or not local or local[1] is None or len(f"{client[0]} {local[0]}".split()) != 2:
        return PROXY + b"UNKNOWN\r\n"
    family = "TCP6" if ":" in client[0] else "TCP4"
    return PROXY + f"{family} {client[0]} {local[0]} {client[1]} {local[1]}\r\n".encode("latin-1", "replace")


async def _ask(
    exchange: Exchange, request: Request, target: bytes, body: bytes, session_id: str, timeout_s: float | None
) -> Response:
    """Raises what `forwarded` does. One whose length is known is read whole: a part of it is no answer."""
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _OF_THE_CONNECTION]
    headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if "host" not in request.headers:  # HTTP/1.0
        headers.append((b"host", b"openenv"))
    try:
        async with asyncio.timeout(None if timeout_s is None else timeout_s + SPARE_S):
            reply = await exchange.ask(request.method.encode(), target, headers, body)
            if reply.length is None:
                return _Relayed(exchange, reply)
            response = Response(b"".join([piece async for piece in exchange.body()]), reply.status)
            response.raw_headers = _fields(reply)
            response.raw_headers.append((b"content-length", b"%d" % reply.length))
            return response
    except TimeoutError:
        late = f"gave no answer within {timeout_s:g} s, the timeout_s of the request"
        raise StepTimeout(f"the worker process of session {session_id} {late}") from None
    except ConnectionError as error:
        logger.warning("session %.64s: its worker process gave no answer: %s", session_id, error)
        lost = f"the worker process of session {session_id} has ended, and the session with it"
        raise SessionLost(f"{lost}: open another one (POST /sessions)") from None


async def _while_there(request: Request, asking: Coroutine[Any, Any, _T]) -> _T | None:
    """Waits for an answer for as long as the client does; None: it has gone."""
    answer = asyncio.ensure_future(asking)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, leaving):
            task.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _fields(reply: Reply) -> list[tuple[bytes, bytes]]:
    return [field for field in reply.headers if field[0] not in _OF_THE_CONNECTION and field[0] not in _OF_THE_SERVER]


class _Relayed(StreamingResponse):
    """An answer that is passed on as it comes. If it ends before its end, so does the connection to the client."""

    def __init__(self, exchange: Exchange, reply: Reply):
        super().__init__(exchange.body(), reply.status)
        self.raw_headers = _fields(reply)
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.close()
