"""Relay one HTTP request or WebSocket connection from the local proxy to a sandbox."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.responses import Response
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProtocolError, WebSocketException

from ..._asyncio import first_of
from ...errors import ConnectionFailed, ConnectTimeout, NotReady, OpenEnvError, Unauthorized, UsageError
from ...settings import is_loopback
from .service import RemoteSandbox

if TYPE_CHECKING:
    import httpx

Headers = list[tuple[bytes, bytes]]
SERVER_KEY = b"x-openenv-key"
"""The header with the server's key, since Authorization may have the token of the service."""
# Hop-by-hop headers (RFC 9110, 7.6.1), and headers that the proxy replaces.
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = frozenset({b"host", b"authorization", SERVER_KEY})
_STATUSES = {Unauthorized: 401, UsageError: 404, NotReady: 503, ConnectTimeout: 504}
_RESPONSE_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTimeouts:
    """Timeouts of the proxy.

    Attributes:
        connect_s: Seconds for a connection to it.
        read_s: Seconds without data from it during an HTTP request.
        ping_s: Seconds between pings on a WebSocket, and for the answer to each.
    """

    connect_s: float = 20.0
    read_s: float = 600.0
    ping_s: float = 20.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "read_s", "ping_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} of a ProxyTimeouts must be more than 0, got {getattr(self, name)!r}")


@dataclass(eq=False, slots=True)
class SandboxRoute:
    """A route of the proxy to one sandbox.

    Attributes:
        name: The first segment of its path.
        keys: The keys that clients may use.
        sandbox: The sandbox.
        timeouts: Timeouts of the sandbox.
        shows_key: Whether the server checks the key, too.
        closed: Set when the route is closed.
    """

    name: str
    keys: Sequence[str] = field(repr=False)
    sandbox: RemoteSandbox
    timeouts: ProxyTimeouts
    shows_key: bool
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The valid key of a request.

        Raises:
            Unauthorized: It has no key, or a wrong one.
        """
        for name, value in headers:
            scheme, _, key = value.partition(b" ")
            if name.lower() == b"authorization" and scheme.lower() == b"bearer":
                shown = key.strip()
                # Compare all keys, in constant time.
                if sum(hmac.compare_digest(known.encode(), shown) for known in self.keys):
                    return shown
        raise Unauthorized("this sandbox needs the key of its deployment (api_key): 'Authorization: Bearer KEY'")

    def outward(self, headers: Iterable[tuple[bytes, bytes]], key: bytes) -> Headers:
        """Headers of a request to the sandbox: the client's, and those of the service instead of the local key."""
        sent = _without_hops(headers)
        sent += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.sandbox.headers.items()]
        if self.shows_key:
            sent.append((SERVER_KEY, key))
        return sent

    def inward(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Headers:
        """Headers of a response to the client: a `Location` at the sandbox becomes one below this route's path."""
        sent, own = _without_hops(headers), {"", urlsplit(address).netloc}
        for number, (name, value) in enumerate(sent):
            goal = urlsplit(value.decode("latin-1")) if name == b"location" else None
            if goal is not None and goal.netloc in own and goal.path.startswith("/"):
                moved = goal._replace(scheme="", netloc="", path=f"/{self.name}{goal.path}")
                sent[number] = (name, moved.geturl().encode("latin-1"))
        return sent


def _without_hops(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    lower = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in lower if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in lower if name not in _HOP | _OURS | named]


def answer_of(error: OpenEnvError) -> Response:
    """The response to a request or a handshake that reaches no sandbox."""
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 502)
    facts = {**error.data, **error.facts(), "detail": error.message}
    # `JSONResponse` would refuse a lone surrogate or a NaN among the facts.
    return Response(json.dumps(facts), status, _RESPONSE_HEADERS.get(status), "application/json")


ABORT = "openenv.abort"
"""Extension of a scope: aborts the connection, so that a client notices an incomplete response."""
# Status codes that both the service's proxy and an application return: the job's state shows the origin.
_DOUBTFUL = frozenset({404, 410, 502, 503, 504})


class _Cut(Exception):
    """The connection was lost within a request or its response."""


class Relay:
    """Base of the relays of HTTP requests and WebSocket connections to a sandbox.

    Args:
        route: The route of the request.
        key: The key of the request.
        place: Path and query at the sandbox.
        scope, receive, send: ASGI arguments of the request.
    """

    def __init__(self, route: SandboxRoute, key: bytes, place: str, scope: Any, receive: Any, send: Any):
        self._route = route
        self._key = key
        self._place = place
        self._scope = scope
        self._receive = receive
        self._send = send

    async def _first_of(self, *calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any] | None]:
        """Runs calls until one ends or the route is closed, and cancels the others: their entries are None."""
        tasks = [asyncio.ensure_future(call) for call in (*calls, self._route.closed.wait())]
        ended = await first_of(*tasks)
        return [task if task in ended else None for task in tasks[:-1]]

    async def _failure(self, error: Exception, *, late: bool) -> OpenEnvError:
        """The error of a failed connection to the sandbox. Raises the job's error instead, if the job has ended."""
        await self._route.sandbox.verify()
        kind: type[ConnectTimeout | ConnectionFailed] = ConnectTimeout if late else ConnectionFailed
        return kind(f"the sandbox does not answer: {str(error) or type(error).__name__}")


class HttpRelay(Relay):
    """Relays one HTTP request. `client` has the connections; the other arguments are those of `Relay`."""

    def __init__(self, client: httpx.AsyncClient, *request: Any):
        super().__init__(*request)
        self._client = client
        self._read = asyncio.Event()
        self._begun = False
        self._reason: OpenEnvError = ConnectionFailed("the sandbox was stopped")

    async def run(self) -> None:
        """Relays until the response is complete, the client disconnects, the job ends, or the route is closed."""
        relay, _, _ = await self._first_of(self._relay(), self._client_leaves(), self._job_ends())
        failure = relay.exception() if relay is not None else _Cut() if self._begun else self._reason
        if isinstance(failure, OpenEnvError):
            await answer_of(failure)(self._scope, self._receive, self._send)
        elif isinstance(failure, _Cut):
            self._scope["extensions"][ABORT]()
            await asyncio.sleep(0)  # lets uvicorn notice the abort before this returns
        elif failure is not None:
            raise failure

    async def _client_leaves(self) -> None:
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _job_ends(self) -> None:
        """Returns when the job has ended. Polls it, since a lost machine closes no connection."""
        while True:
            await asyncio.sleep(self._route.timeouts.ping_s)
            try:
                await self._route.sandbox.verify()
            except OpenEnvError as error:
                self._reason = error
                return

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Cut
            yield message.get("body", b"")
            more = message.get("more_body", False)
        self._read.set()

    async def _relay(self) -> None:
        import httpx

        route, timeouts = self._route, self._route.timeouts
        address = await route.sandbox.address()
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._scope["headers"])
        if not has_body:
            self._read.set()
        request = self._client.build_request(
            self._scope["method"],
            address + self._place,
            headers=route.outward(self._scope["headers"], self._key),
            content=self._body() if has_body else None,
            timeout=httpx.Timeout(timeouts.connect_s, read=timeouts.read_s, write=timeouts.read_s),
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise await self._failure(error, late=isinstance(error, httpx.TimeoutException)) from None
        try:
            if answer.status_code in _DOUBTFUL:
                await route.sandbox.verify()
            headers = route.inward(answer.headers.raw, address)
            self._begun = True
            await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for part in answer.aiter_raw():
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.TransportError as error:
            raise _Cut from error
        finally:
            await answer.aclose()


MOST_BYTES = 256 * 1024 * 1024
"""The largest message that is relayed; client and server have smaller limits."""
GOING_AWAY, TOO_BIG, BAD_GATEWAY = 1001, 1009, 1014
"""Codes of connections that end because the route was closed, a message was too large, or the sandbox is gone."""
# Bytes of the reason in a close frame (RFC 6455, 5.5), without the code.
_LONGEST_REASON = 123
# Codes that no close frame may carry: the peer gave no reason.
_UNSAID = frozenset({1005, 1006, 1015})


class _SandboxConnect(connect):
    """Follows no redirect: the token must not reach another host."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketRelay(Relay):
    """Relays one WebSocket connection."""

    async def run(self) -> None:
        """Relays until the client, the sandbox or the route closes."""
        await self._receive()  # `websocket.connect`, the first message
        dialling, leaving = await self._first_of(self._dial(), self._receive())
        if leaving is not None:
            if dialling is not None and not dialling.exception():
                dialling.result().transport.abort()
            return
        try:
            if dialling is None:
                stopped = ConnectionFailed("the sandbox was stopped")
                await answer_of(stopped)(self._scope, self._receive, self._send)
                return
            there: ClientConnection = dialling.result()
        except InvalidStatus as refusal:
            answer, body = refusal.response, refusal.response.body or b""
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
            address = await self._route.sandbox.address()
            headers = [field for field in self._route.inward(raw, address) if field[0] != b"content-length"]
            kind = "websocket.http.response"
            await self._send({"type": f"{kind}.start", "status": answer.status_code, "headers": headers})
            await self._send({"type": f"{kind}.body", "body": bytes(body), "more_body": False})
        except OpenEnvError as error:
            await answer_of(error)(self._scope, self._receive, self._send)
        else:
            try:
                await self._converse(there)
            finally:
                there.transport.abort()

    async def _dial(self) -> ClientConnection:
        route, timeouts = self._route, self._route.timeouts
        address = await route.sandbox.address()
        scheme, _, place = address.partition("://")
        headers = route.outward(self._scope["headers"], self._key)
        try:
            return await _SandboxConnect(
                f"{'wss' if scheme == 'https' else 'ws'}://{place}{self._place}",
                subprotocols=self._scope["subprotocols"] or None,
                additional_headers=[
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in headers
                    if not name.startswith(b"sec-websocket-")
                ],
                user_agent_header=None,
                compression=None,
                proxy=None if is_loopback(urlsplit(address).hostname) else True,
                open_timeout=timeouts.connect_s,
                ping_interval=timeouts.ping_s,
                ping_timeout=timeouts.ping_s,
                close_timeout=1.0,
                max_size=MOST_BYTES,
            )
        except InvalidStatus as refusal:
            if refusal.response.status_code >= 400:
                await route.sandbox.verify()
            raise
        except (OSError, EOFError, InvalidHandshake, ProtocolError) as error:
            raise await self._failure(error, late=isinstance(error, TimeoutError)) from None

    async def _converse(self, there: ClientConnection) -> None:
        assert there.response is not None
        own = {"connection", "upgrade", "date", "server"}
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in there.response.headers.raw_items()
            if name.lower() not in own and not name.lower().startswith("sec-websocket-")
        ]
        await self._send({"type": "websocket.accept", "subprotocol": there.subprotocol, "headers": headers})
        inward, outward = await self._first_of(self._inward(there), self._outward(there))
        if outward is not None:  # the client has disconnected
            await self._leave(there, outward.result() if not outward.exception() else (1006, ""))
            return
        code, reason = inward.result() if inward is not None else (GOING_AWAY, "the sandbox was stopped")
        await self._send({"type": "websocket.close", "code": code, "reason": reason})
        await self._leave(there, (GOING_AWAY, ""))

    async def _outward(self, there: ClientConnection) -> tuple[int, str]:
        """Relays from the client to the sandbox; returns the client's close code and reason."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return message.get("code") or 1005, message.get("reason") or ""
            data, text = message.get("bytes"), message.get("text")
            try:
                await there.send(text if data is None else data)
            except ConnectionClosed:
                await asyncio.Event().wait()  # `_inward` reports the reason

    async def _inward(self, there: ClientConnection) -> tuple[int, str]:
        """Relays from the sandbox to the client; returns the close code and reason for the client."""
        try:
            while True:
                message = await there.recv()
                await self._send(
                    {"type": "websocket.send", "text": message}
                    if isinstance(message, str)
                    else {"type": "websocket.send", "bytes": message}
                )
        except ConnectionClosed as end:
            if end.rcvd is not None and end.rcvd.code not in _UNSAID:
                return end.rcvd.code, end.rcvd.reason
            if end.sent is not None and end.sent.code == TOO_BIG:
                return TOO_BIG, end.sent.reason
        except (OSError, WebSocketException) as error:
            return BAD_GATEWAY, _close_reason(f"a message of the sandbox cannot be relayed: {error}")
        try:
            await self._route.sandbox.verify()
        except OpenEnvError as error:
            return BAD_GATEWAY, _close_reason(error.message)
        return BAD_GATEWAY, "the connection to the sandbox was lost"

    async def _leave(self, there: ClientConnection, end: tuple[int, str]) -> None:
        code, reason = end
        if code in _UNSAID:
            # The client's connection was lost, or it gave no code. Then the server must see a lost connection, to
            # keep the client's sessions.
            there.transport.abort()
        await there.close(code if code not in _UNSAID else GOING_AWAY, _close_reason(reason))


def _close_reason(reason: str) -> str:
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
