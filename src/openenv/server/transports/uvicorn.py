"""The protocols for uvicorn: HTTP with limits on heads, and WebSocket on the fast path."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import socket
from dataclasses import dataclass
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol
from uvicorn.server import ServerState

from ...errors import ConnectionFailed, MessageTooLarge, OpenEnvError
from ...settings import ServerSettings
from ..auth import HANDSHAKE, Principal, RequestHead
from ..middleware import PEER, log_refusal, raw_error_response
from ..proxy import relay
from ..server import EnvironmentServer
from ..shared_sessions import is_worker_key
from .context import ServerContext, server_inside
from .picows import LingeringTransport, Upgrade, serve

logger = logging.getLogger("openenv.server")

_TOO_LARGE, _TIMEOUT = 431, 408
# Bytes around each header field of a request.
_AROUND = len(b": \r\n")


class HTTPProtocol(HttpToolsProtocol):
    """Reads requests: the class for uvicorn's `http=` (`--http openenv.server.transports.uvicorn:HTTPProtocol`).

    A request that is not complete in time gets status 408, and one with too large a head gets 431. A client that
    sends nothing is disconnected. After the head, the timeout restarts with each chunk.
    """

    _settings: ClassVar[WeakKeyDictionary[Config, ServerSettings]] = WeakKeyDictionary()

    def __init__(self, **uvicorns: Any):
        super().__init__(**uvicorns)
        settings = self._settings.get(self.config)
        if settings is None:
            server = server_inside(self.app)
            settings = self._settings[self.config] = server.settings if server else ServerSettings.read()
        self._limit = int(settings.max_header_kb * 1024)
        self._patience_s = settings.handshake_timeout_s
        self._in_head = self._in_body = self._begun = False
        # The connection is no longer read here: it was upgraded to WebSocket, or refused.
        self._left = False
        # Bytes since the last progress: since the head began, or since the last chunk of the body.
        self._unread = 0
        # Size of the header fields that were read.
        self._fields = 0
        self._fault: OpenEnvError | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        del self.parser  # breaks a reference cycle: the garbage collector seldom runs

    def data_received(self, data: bytes) -> None:
        self._begun = True
        self._unread += len(data)
        super().data_received(data)
        if self._left:
            return
        if self.transport.is_closing():
            self._stop_waiting()
        elif self._in_head or self._in_body:
            if self._unread > self._limit:
                self._turn_away(self._oversized(self._unread), _TOO_LARGE)
            elif self._in_body:
                self._await_more()
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_more()  # the data began no request, and uvicorn has stopped its timer

    def handle_websocket_upgrade(self) -> None:
        self._left = True
        self._stop_waiting()
        super().handle_websocket_upgrade()
        del self.parser  # as above

    def send_400_response(self, msg: str) -> None:
        self._stop_waiting()
        if self._fault is None:
            super().send_400_response(msg)
        else:
            self._turn_away(self._fault, _TOO_LARGE)

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[PEER] = self.client
        self._in_head = True
        self._fields = 0
        if self._timer is None:
            self._await_more()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _AROUND)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._unread = False, True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unread = False, 0
        self._stop_waiting()
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._fields += size
        if self._fields > self._limit:
            self._fault = self._oversized(self._fields)
            raise self._fault  # the parser stops, and `send_400_response` is called

    def _await_more(self) -> None:
        self._due = self.loop.time() + self._patience_s
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._look)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # this side has paused reading
            self._await_more()
        elif self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        elif self._begun:
            limit = f"{self._patience_s:g} s (handshake_timeout_s, OPENENV_HANDSHAKE_TIMEOUT_S)"
            self._turn_away(ConnectionFailed(f"the request was not complete within {limit}"), _TIMEOUT)
        else:
            self.transport.abort()

    def _oversized(self, size: int) -> MessageTooLarge:
        limit = f"{self._limit} bytes (max_header_kb, OPENENV_MAX_HEADER_KB)"
        return MessageTooLarge(f"a request head of at least {size} bytes is over the limit of {limit}")

    def _turn_away(self, error: OpenEnvError, status: int) -> None:
        self._left = True
        self._stop_waiting()
        logger.warning("%s: %s: %s", self.client[0] if self.client else "-", type(error).__name__, error.message)
        if self._may_answer():
            self.transport.write(raw_error_response(error, status))
        if self.cycle is not None:
            # The app must not send anything after this.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        LingeringTransport(self.transport).close()

    def _may_answer(self) -> bool:
        """Whether the client would take a response as the one to the request that is being read."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return self._in_body and not self.cycle.response_started and not self.pipeline


@dataclass(eq=False, repr=False)
class FastPath(asyncio.Protocol):
    """Chooses the protocol that serves a WebSocket request. uvicorn makes one for each request.

    The constructor has the signature of uvicorn's own WebSocket protocols.
    """

    config: Config
    server_state: ServerState
    app_state: dict[str, Any]
    _loop: asyncio.AbstractEventLoop | None = None
    _request: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Deferred: uvicorn makes this object the transport's protocol after it has handed the request over.
        asyncio.get_running_loop().call_soon(self._hand_over)

    def data_received(self, data: bytes) -> None:
        """Takes the whole request from uvicorn."""
        self._request += data

    def _hand_over(self) -> None:
        if self._transport.is_closing():
            return
        context = ServerContext.of(self.config, self.server_state)
        upgrade = Upgrade.parse(self._request)
        if context is None or upgrade is None or not context.serves(upgrade.path):
            # The worker that serves the connection authenticates it: this one, or the one that the URL names.
            server = None if upgrade is None else server_inside(self.config.loaded_app)
            if server is None or upgrade is None or not self._hand_on(server, upgrade.worker):
                self._use_stock()
        else:
            principal = self._admit(context.server, upgrade)
            if principal is not None and not self._hand_on(context.server, upgrade.worker):
                # A connection for another worker process is served here only if that process has ended.
                worker, server = upgrade.worker, context.server
                named = worker not in {None, server.worker_key} and server.redirect is not None
                principal = principal._replace(worker_ended=named and is_worker_key(worker or ""))
                session = upgrade.parameter("session_id")
                if session is not None:
                    principal = principal._replace(session=session, token=upgrade.parameter("token"))
                    upgrade = upgrade._replace(subprotocol=None)  # only v1 connections are attached
                serve(context, self._transport, upgrade, principal)

    def _admit(self, server: EnvironmentServer, upgrade: Upgrade) -> Principal | None:
        """The client; None if it may not use the server and got an error response."""
        peer, local = get_remote_addr(self._transport), get_local_addr(self._transport)
        head = RequestHead(HANDSHAKE, upgrade.path, upgrade.fields, peer, local[0] if local else None)
        try:
            return server.authenticator.admit(head)
        except OpenEnvError as error:
            log_refusal(error, head)
            self._transport.write(raw_error_response(error))
            self._transport.close()
            return None

    def _hand_on(self, server: EnvironmentServer, worker: str | None) -> bool:
        """Gives the connection to the worker process that its URL names. False: serve it here."""
        if worker is None or worker == server.worker_key or server.redirect is None:
            return False
        try:
            # With TLS: both ends of a socket pair, the second for the relay.
            near = None
            if self._transport.get_extra_info("ssl_object") is not None:
                twin, near = socket.socketpair()
            else:
                twin = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        except OSError as error:
            logger.warning("a connection cannot be handed to another worker process: %s", error.strerror or error)
            self._transport.abort()
            return True
        # Bytes that arrive from now on are for the next owner of the connection.
        self._transport.pause_reading()
        if not server.redirect(worker, twin, self._request):
            twin.close()
            if near is not None:
                near.close()
            self._transport.resume_reading()
            return False
        if near is None:
            self._transport.abort()
        else:
            relay(self._transport, near)
        return True

    def _use_stock(self) -> None:
        assert AutoWebSocketsProtocol is not None
        # A compressed frame of 16 KiB may hold 16 MiB, and it is expanded before any limit applies.
        config = copy.copy(self.config)
        config.ws_per_message_deflate = False
        app: Any = self.config.loaded_app
        peer = get_remote_addr(self._transport)

        async def app_with_peer(scope: Any, receive: Any, send: Any) -> None:
            scope[PEER] = peer  # no header can change it
            await app(scope, receive, send)

        config.loaded_app = app_with_peer
        stock: Any = AutoWebSocketsProtocol(config=config, server_state=self.server_state, app_state=self.app_state)
        self._transport.set_protocol(stock)
        stock.connection_made(self._transport)
        stock.data_received(self._request)
