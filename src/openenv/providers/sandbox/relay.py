"""Relay one HTTP request or WebSocket connection from the local proxy to a sandbox."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProtocolError, WebSocketException

from ...errors import ConnectionFailed, ConnectTimeout, NotReady, OpenEnvError, Unauthorized, UsageError
from ...settings import is_loopback
from .jobs import HubJob

if TYPE_CHECKING:
    import httpx

Headers = list[tuple[bytes, bytes]]
SERVER_KEY = b"x-openenv-key"
"""The header that shows the server's own key, where Authorization is for the Hub."""
# For one connection alone (RFC 9110, 7.6.1), or replaced.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTimeouts:
    """How long the proxy waits for a sandbox.

    Attributes:
        connect_s: Seconds for a connection to it.
        read_s: Seconds without anything from it while an answer to an HTTP request is due.
        ping_s: Seconds between pings on a WebSocket, and until each one's answer.
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
    """The way to one sandbox.

    Attributes:
        name: The first part of its path.
        keys: Any of them lets a client take it.
        job: Where it leads.
        patience: How long it is waited for.
        shows_key: Whether the server asks for the key as well.
        closed: Set when it leads nowhere any more.
    """

    name: str
    keys: Sequence[str] = field(repr=False)
    job: HubJob
    patience: ProxyTimeouts
    shows_key: bool
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The key that a request shows.

        Raises:
            Unauthorized: None, or another one.
        """
        for name, value in headers:
            scheme, _, key = value.partition(b" ")
            if name.lower() == b"authorization" and scheme.lower() == b"bearer" and self._knows(key.strip()):
                return key.strip()
        raise Unauthorized(
            "the way to this sandbox asks for the key of its deployment (api_key): 'Authorization: Bearer KEY'"
        )

    def _knows(self, shown: bytes) -> bool:
        return sum(hmac.compare_digest(key.encode(), shown) for key in self.keys) > 0  # all of them, in the same time

    def outward(self, headers: Iterable[tuple[bytes, bytes]], key: bytes) -> Headers:
        """What the sandbox is told of a request: its headers without the local key, and with the Hub's token."""
        told = _without_hops(headers)
        told.append((b"Authorization", self.job.authorization.encode()))
        if self.shows_key:
            told.append((SERVER_KEY, key))
        return told

    def inward(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Headers:
        """What the client is told of an answer: places at the sandbox become places behind this path."""
        told = _without_hops(headers)
        return [(name, self._moved(value, address) if name.lower() == b"location" else value) for name, value in told]

    def _moved(self, location: bytes, address: str) -> bytes:
        there, text = urlsplit(address), location.decode("latin-1")
        goal = urlsplit(text)
        if goal.netloc not in {"", there.netloc} or not goal.path.startswith("/"):
            return location
        return goal._replace(scheme="", netloc="", path=f"/{self.name}{goal.path}").geturl().encode("latin-1")


def _without_hops(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    told = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in told if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in told if name not in _HOP | _OURS | named]


def answer_of(error: OpenEnvError) -> tuple[int, Headers, bytes]:
    """What a request is answered that reaches no sandbox: status, headers and body."""
    status, headers = _status_of(error), [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    facts: dict[str, Any] = {**error.data, **error.facts(), "detail": error.message}
    body = json.dumps(facts).encode()
    return status, [*headers, (b"content-length", str(len(body)).encode())], body


def _status_of(error: OpenEnvError) -> int:
    if isinstance(error, Unauthorized):
        return 401
    if isinstance(error, UsageError):
        return 404
    if isinstance(error, NotReady):
        return 503
    return 504 if isinstance(error, ConnectTimeout) else 502


ABORT = "openenv.abort"
"""Extension of a scope: cuts the connection, which is how a client learns that an answer is not whole."""
# Statuses that the road gives as well as an application: only the Hub knows which of the two it was.
_DOUBTFUL = frozenset({404, 410, 502, 503, 504})


class _Cut(Exception):
    """The sandbox went away in the middle of its answer."""


class HttpRelay:
    """One request.

    Args:
        client: Whose connections are used.
        route: Where it goes.
        key: The key that it showed.
        place: Path and query there.
        scope, receive, send: Of the request, as ASGI has them.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        route: SandboxRoute,
        key: bytes,
        place: str,
        scope: Any,
        receive: Any,
        send: Any,
    ):
        self._client = client
        self._route = route
        self._key = key
        self._place = place
        self._scope = scope
        self._receive = receive
        self._send = send
        self._read = asyncio.Event()
        self._begun = False
        self._reason: OpenEnvError = ConnectionFailed("the sandbox was stopped")

    async def run(self) -> None:
        """Passes it on, until it is answered, its client has left, the job has ended, or the route is closed."""
        relay = asyncio.ensure_future(self._relay())
        ends = (self._route.closed.wait(), self._client_leaves(), self._job_ends())
        waits = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait([relay, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = relay.done()
            for task in (relay, *waits):
                task.cancel()
            await asyncio.wait([relay, *waits])
        if over:
            await self._conclude(relay)
        elif self._begun:
            await self._cut()
        else:
            await refuse(self._send, self._reason)

    async def _conclude(self, relay: asyncio.Future[None]) -> None:
        try:
            relay.result()
        except OpenEnvError as error:
            await refuse(self._send, error)
        except _Cut:
            await self._cut()

    async def _cut(self) -> None:
        self._scope["extensions"][ABORT]()
        await asyncio.sleep(0)  # for uvicorn to hear of it before this returns

    async def _client_leaves(self) -> None:
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _job_ends(self) -> None:
        """Looks at the job now and then: a machine that is no more does not say so."""
        while True:
            await asyncio.sleep(self._route.patience.ping_s)
            try:
                await self._route.job.look()
                self._route.job.check()
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

        route, patience = self._route, self._route.patience
        address = await route.job.address()
        headers = route.outward(self._scope["headers"], self._key)
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._scope["headers"])
        if not has_body:
            self._read.set()
        limits = httpx.Timeout(patience.connect_s, read=patience.read_s, write=patience.read_s)
        request = self._client.build_request(
            self._scope["method"],
            address + self._place,
            headers=headers,
            content=self._body() if has_body else None,
            timeout=limits,
        )
        answer = await self._answer_to(request)
        try:
            await self._pass_on(answer, address)
        except httpx.TransportError as error:
            raise _Cut from error
        finally:
            await answer.aclose()

    async def _answer_to(self, request: httpx.Request) -> httpx.Response:
        import httpx

        job = self._route.job
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            await job.look()
            job.check()
            kind: Callable[[str], OpenEnvError]
            kind = ConnectTimeout if isinstance(error, httpx.TimeoutException) else ConnectionFailed
            raise kind(f"the sandbox does not answer: {str(error) or type(error).__name__}") from None
        if answer.status_code in _DOUBTFUL:
            try:
                await job.look()
                job.check()
            except BaseException:  # also when its client has left meanwhile
                await answer.aclose()
                raise
        return answer

    async def _pass_on(self, answer: httpx.Response, address: str) -> None:
        headers: Headers = self._route.inward(answer.headers.raw, address)
        self._begun = True
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for part in answer.aiter_raw():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(send: Any, error: OpenEnvError, kind: str = "http") -> None:
    """Answers a request (`kind` "http") or a handshake ("websocket.http") that reaches no sandbox."""
    status, headers, body = answer_of(error)
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body, "more_body": False})


MOST_BYTES = 256 * 1024 * 1024
"""The largest message that is passed on; the ends have smaller limits of their own."""
GOING_AWAY, TOO_BIG, BAD_GATEWAY = 1001, 1009, 1014
"""Codes of connections that end because the route was closed, a message was too large, or the sandbox is gone."""
# Of a close frame (RFC 6455, 5.5), less the code.
_LONGEST_REASON = 123
# No code that can be sent: whoever it comes from has not said why.
_UNSAID = frozenset({1005, 1006, 1015})


class _SandboxConnect(connect):
    """Follows nobody elsewhere with the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketRelay:
    """One connection; arguments as for `HttpRelay`."""

    def __init__(self, route: SandboxRoute, key: bytes, place: str, scope: Any, receive: Any, send: Any):
        self._route = route
        self._key = key
        self._place = place
        self._scope = scope
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        """Passes it on until one of its ends, or the route, is closed."""
        await self._receive()  # that somebody wants to connect
        dialling, leaving = asyncio.ensure_future(self._dial()), asyncio.ensure_future(self._receive())
        await self._first_of(dialling, leaving)
        if not leaving.cancelled():
            if not dialling.cancelled() and not dialling.exception():
                dialling.result().transport.abort()
            return
        try:
            there = dialling.result()
        except asyncio.CancelledError:
            await refuse(self._send, ConnectionFailed("the sandbox was stopped"), "websocket.http")
        except InvalidStatus as refusal:
            await self._pass_refusal(refusal)
        except OpenEnvError as error:
            await refuse(self._send, error, "websocket.http")
        else:
            try:
                await self._converse(there)
            finally:
                there.transport.abort()

    async def _first_of(self, *work: asyncio.Future[Any]) -> None:
        """Waits for one of these, or for the end of the route; what is not done then is cancelled."""
        tasks = [*work, asyncio.ensure_future(self._route.closed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _dial(self) -> ClientConnection:
        route, patience = self._route, self._route.patience
        address = await route.job.address()
        scheme, _, place = address.partition("://")
        told = route.outward(self._scope["headers"], self._key)
        try:
            return await _SandboxConnect(
                f"{'wss' if scheme == 'https' else 'ws'}://{place}{self._place}",
                subprotocols=self._scope["subprotocols"] or None,
                additional_headers=[(_latin1(n), _latin1(v)) for n, v in told if not n.startswith(b"sec-websocket-")],
                user_agent_header=None,
                compression=None,
                proxy=None if is_loopback(urlsplit(address).hostname) else True,
                open_timeout=patience.connect_s,
                ping_interval=patience.ping_s,
                ping_timeout=patience.ping_s,
                close_timeout=1.0,
                max_size=MOST_BYTES,
            )
        except InvalidStatus as refusal:
            if refusal.response.status_code >= 400:
                await route.job.look()
                route.job.check()
            raise
        except (OSError, EOFError, InvalidHandshake, ProtocolError) as error:
            await route.job.look()
            route.job.check()
            kind = ConnectTimeout if isinstance(error, TimeoutError) else ConnectionFailed
            raise kind(f"the sandbox does not answer: {str(error) or type(error).__name__}") from None

    async def _pass_refusal(self, refusal: InvalidStatus) -> None:
        """Says what the application said, which will not speak WebSocket."""
        answer, body = refusal.response, refusal.response.body or b""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
        address = await self._route.job.address()
        headers = [field for field in self._route.inward(raw, address) if field[0] != b"content-length"]
        kind = "websocket.http.response"
        await self._send({"type": f"{kind}.start", "status": answer.status_code, "headers": headers})
        await self._send({"type": f"{kind}.body", "body": bytes(body), "more_body": False})

    async def _converse(self, there: ClientConnection) -> None:
        await self._send(
            {"type": "websocket.accept", "subprotocol": there.subprotocol, "headers": _answer_headers(there)}
        )
        pumps = [asyncio.ensure_future(self._inward(there)), asyncio.ensure_future(self._outward(there))]
        await self._first_of(*pumps)
        inward, outward = pumps
        ended = [pump for pump in pumps if not pump.cancelled()]
        if outward in ended:  # the client has left
            await self._leave(there, outward.result() if not outward.exception() else _NOTHING)
            return
        code, reason = inward.result() if inward in ended else (GOING_AWAY, "the sandbox was stopped")
        await self._send({"type": "websocket.close", "code": code, "reason": reason})
        await self._leave(there, (GOING_AWAY, ""))

    async def _outward(self, there: ClientConnection) -> tuple[int, str]:
        """From the client to the sandbox; gives how the client has ended it."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return message.get("code") or 1005, message.get("reason") or ""
            data, text = message.get("bytes"), message.get("text")
            try:
                await there.send(text if data is None else data)
            except ConnectionClosed:
                await asyncio.Event().wait()  # the other direction knows why

    async def _inward(self, there: ClientConnection) -> tuple[int, str]:
        """From the sandbox to the client; gives how the sandbox has ended it."""
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
            return BAD_GATEWAY, _close_reason(f"what the sandbox sent cannot be passed on: {error}")
        return await self._verdict()

    async def _verdict(self) -> tuple[int, str]:
        try:
            await self._route.job.look()
            self._route.job.check()
        except OpenEnvError as error:
            return BAD_GATEWAY, _close_reason(error.message)
        return BAD_GATEWAY, "the connection to the sandbox was lost"

    async def _leave(self, there: ClientConnection, end: tuple[int, str]) -> None:
        code, reason = end
        if code in _UNSAID:
            # The client was lost, or did not say why. The server is to see the same, and keep its sessions for it.
            there.transport.abort()
        await there.close(code if code not in _UNSAID else GOING_AWAY, _close_reason(reason))


_NOTHING = (1006, "")


def _answer_headers(there: ClientConnection) -> Headers:
    assert there.response is not None
    own = {"connection", "upgrade", "date", "server"}
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in there.response.headers.raw_items()
        if name.lower() not in own and not name.lower().startswith("sec-websocket-")
    ]


def _latin1(raw: bytes) -> str:
    return raw.decode("latin-1")


def _close_reason(reason: str) -> str:
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
