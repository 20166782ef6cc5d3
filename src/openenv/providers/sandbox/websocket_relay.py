"""One WebSocket connection, passed on in both directions."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProtocolError, WebSocketException

from ...errors import ConnectionFailed, ConnectTimeout, OpenEnvError
from .http_relay import refuse
from .hub import is_loopback
from .route import Headers, Route

__all__ = ["BAD_GATEWAY", "MOST_BYTES", "WebSocketRelay"]

MOST_BYTES = 256 * 1024 * 1024
"""The largest message that is passed on; the ends have smaller limits of their own."""
GOING_AWAY, TOO_BIG, BAD_GATEWAY = 1001, 1009, 1014
"""Codes of connections that end because the route was closed, a message was too large, or the sandbox is gone."""
# Of a close frame (RFC 6455, 5.5), less the code.
_LONGEST_REASON = 123
# No code that can be sent: whoever it comes from has not said why.
_UNSAID = frozenset({1005, 1006, 1015})


class _Connect(connect):
    """Follows nobody elsewhere with the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketRelay:
    """One connection; arguments as for `HttpRelay`."""

    def __init__(self, route: Route, key: bytes, place: str, scope: Any, receive: Any, send: Any):
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
            return await _Connect(
                f"{'wss' if scheme == 'https' else 'ws'}://{place}{self._place}",
                subprotocols=self._scope["subprotocols"] or None,
                additional_headers=[(_text(n), _text(v)) for n, v in told if not n.startswith(b"sec-websocket-")],
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
            return BAD_GATEWAY, _short(f"what the sandbox sent cannot be passed on: {error}")
        return await self._verdict()

    async def _verdict(self) -> tuple[int, str]:
        try:
            await self._route.job.look()
            self._route.job.check()
        except OpenEnvError as error:
            return BAD_GATEWAY, _short(error.message)
        return BAD_GATEWAY, "the connection to the sandbox was lost"

    async def _leave(self, there: ClientConnection, end: tuple[int, str]) -> None:
        code, reason = end
        if code in _UNSAID:
            # The client was lost, or did not say why. The server is to see the same, and keep its sessions for it.
            there.transport.abort()
        await there.close(code if code not in _UNSAID else GOING_AWAY, _short(reason))


_NOTHING = (1006, "")


def _answer_headers(there: ClientConnection) -> Headers:
    assert there.response is not None
    own = {"connection", "upgrade", "date", "server"}
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in there.response.headers.raw_items()
        if name.lower() not in own and not name.lower().startswith("sec-websocket-")
    ]


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _short(reason: str) -> str:
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
