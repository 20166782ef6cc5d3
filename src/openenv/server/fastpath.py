"""The environment endpoint at the speed of picows, inside uvicorn.

uvicorn reads the HTTP request and lets a deployment name the class that takes over WebSocket connections:
`uvicorn app:app --ws openenv.server.fastpath:FastPath`, or `openenv serve`, which does so by itself. Where a
request is for the environment endpoint of an app of ours, and nothing that the app's owner added stands
before it, frames go between picows and the session with nothing in between. Every other WebSocket path
goes to uvicorn's own implementation.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from picows import WSAutoPingStrategy, WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, picows
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match, Router
from uvicorn.config import Config
from uvicorn.middleware.message_logger import MessageLoggerMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol
from uvicorn.server import ServerState

from ..errors import UsageError
from .connection import CLOSE_INTERNAL_ERROR, Connection
from .environment_server import HTTPEnvServer
from .heartbeat import Heartbeat
from .linger import LingeringTransport
from .turn import Turn
from .websocket import environment_socket

__all__ = ["FastPath"]

logger = logging.getLogger("openenv.server")

# The least that picows takes; it grows with the messages.
READ_BUFFER_BYTES = 2048
CLOSE_GOING_AWAY = 1012
# Looking a member up on its Enum class costs as much as sending a byte string.
_TEXT, _PONG, _CLOSE = WSMsgType.TEXT, WSMsgType.PONG, WSMsgType.CLOSE
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_SIZE = re.compile(r"(\d+) > \d+")
# Middleware that lets WebSocket connections pass untouched; behind any other the fast path is not taken.
_HTTP_ONLY = (BaseHTTPMiddleware, CORSMiddleware, GZipMiddleware)


class FastPath(asyncio.Protocol):
    """What uvicorn makes for each WebSocket request: decides who serves it, then steps aside.

    The constructor has the signature of uvicorn's own WebSocket protocols.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Not at once: uvicorn makes this object the transport's protocol when it has handed the request over.
        asyncio.get_running_loop().call_soon(self._hand_over)

    def data_received(self, data: bytes) -> None:
        """Takes the request; uvicorn hands it over whole."""
        self._request += data

    def _hand_over(self) -> None:
        if self._transport.is_closing():
            return
        site = _Site.of(self._config, self._server_state)
        upgrade = None if site is None else Upgrade.parse(self._request)
        if site is not None and upgrade is not None and site.serves(upgrade.path):
            site.take(self._transport, upgrade)
        else:
            self._use_stock()

    def _use_stock(self) -> None:
        assert AutoWebSocketsProtocol is not None
        stock: Any = AutoWebSocketsProtocol(
            config=self._config, server_state=self._server_state, app_state=self._app_state
        )
        self._transport.set_protocol(stock)
        stock.connection_made(self._transport)
        stock.data_received(self._request)


class Upgrade(NamedTuple):
    """A well-formed request to speak WebSocket (RFC 6455, section 4.2.1)."""

    path: str
    key: bytes

    @classmethod
    def parse(cls, request: bytes) -> Upgrade | None:
        """Reads a whole request; None for one that needs an answer other than yes."""
        head, *lines = request.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        key = headers.get(b"sec-websocket-key", b"")
        if headers.get(b"sec-websocket-version") != b"13" or not _KEY.fullmatch(key):
            return None
        target = head.split(b" ")[1].partition(b"?")[0]
        return cls(unquote(target.decode("latin-1")), key)

    def canonical(self) -> bytes:
        """The request in the only form that picows takes (one `Connection` token, no extensions)."""
        return (
            b"GET / HTTP/1.1\r\nHost: openenv\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % self.key
        )


class _Site:
    """What is the same for every connection to one uvicorn server."""

    _known: ClassVar[WeakKeyDictionary[Config, _Site | None]] = WeakKeyDictionary()

    def __init__(self, app: Starlette, config: Config, server_state: ServerState):
        self.server: HTTPEnvServer = app.state.openenv
        self.connections: set[Any] = server_state.connections
        self.max_bytes = min(config.ws_max_size, self.server.settings.max_message_bytes)
        self.heartbeat = Heartbeat(config.ws_ping_interval)
        self.turn = Turn()
        self._router = app.router
        self._root_path = config.root_path
        self._served: set[str] = set()

    @classmethod
    def of(cls, config: Config, server_state: ServerState) -> _Site | None:
        """The site of a server; None where an ordinary ASGI connection must be used."""
        if config not in cls._known:
            app = _bare_app(config.loaded_app)
            cls._known[config] = None if app is None else cls(app, config, server_state)
        return cls._known[config]

    def serves(self, path: str) -> bool:
        """Whether the first route that matches a path is the environment endpoint, with nothing before it."""
        if path not in self._served and _leads_to_environment(self._router, self._root_path, path):
            self._served.add(path)
        return path in self._served

    def take(self, transport: asyncio.Transport, upgrade: Upgrade) -> None:
        """Serves a connection from here on."""
        lingering = LingeringTransport(transport)
        connection = _Connection(self, lingering)
        protocol = picows.WSProtocol(  # type: ignore[attr-defined]  # not in picows' stubs
            None,  # host and port: client only
            None,  # path: client only
            False,  # is_client_side
            lambda request: connection,
            _PicowsLog(connection),
            True,  # disconnect_on_exception
            None,  # handshake timeout: the request is here
            False,  # auto ping, with its idle and reply times: the heartbeat does it for all connections
            20.0,
            20.0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            True,  # auto pong
            self.max_bytes,
            None,  # extra headers
            READ_BUFFER_BYTES,
        )
        transport.set_protocol(protocol)
        protocol.connection_made(lingering)
        request = upgrade.canonical()
        protocol.get_buffer(-1)[: len(request)] = request
        protocol.buffer_updated(len(request))


class _Connection(WSListener):
    """One connection on the fast path: the channel of a `Connection`, under the watch of a `Heartbeat`."""

    def __init__(self, site: _Site, lingering: LingeringTransport):
        self._site = site
        self._lingering = lingering
        self._connection: Connection | None = None
        self._parts = bytearray()
        self._part_type = WSMsgType.TEXT
        self._holds: set[str] = set()
        self.heard = True

    @property
    def session_id(self) -> str:
        return self._connection.session_id if self._connection is not None else "-"

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        # Not methods: a frame more on the path of every step.
        self.send = partial(self._site.turn.reply, partial(transport.send, _TEXT))
        self._site.connections.add(self)
        self._site.heartbeat.watch(self)
        try:
            self._connection = self._site.server.connect(self)
        except UsageError as error:
            logger.error("%s", error.message)
            self.close(CLOSE_INTERNAL_ERROR)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard = True
        kind = frame.msg_type
        if self._connection is None or kind is _PONG:
            return
        if kind is _TEXT and frame.fin:
            self._site.turn.request(self._connection, frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            self._site.turn.finish()
            self._connection.disconnected()
            transport.send_close(WSCloseCode.OK)
            self._lingering.finish()
        else:
            self._assemble(kind, frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._site.connections.discard(self)
        self._site.heartbeat.forget(self)
        if self._connection is not None:
            self._connection.disconnected()

    def pause_writing(self) -> None:
        # A client that does not read its replies is not asked for more requests.
        self._hold("client")

    def resume_writing(self) -> None:
        self._release("client")

    # What the connection asks of its channel.

    def close(self, code: int) -> None:
        self._site.turn.finish()
        self._ws.send_close(WSCloseCode(code))
        self._ws.disconnect()

    def pause(self) -> None:
        self._hold("session")

    def resume(self) -> None:
        self._release("session")

    # What the heartbeat asks for.

    def ping(self) -> None:
        self._ws.send_ping()

    def cut(self) -> None:
        logger.warning("session %s: no sign of life from its client (ping_interval_s): cut", self.session_id)
        self._ws.disconnect(graceful=False)

    def shutdown(self) -> None:
        """What uvicorn calls on every connection when it stops."""
        if self._connection is not None:
            self._connection.disconnected()
        self.close(CLOSE_GOING_AWAY)

    def broken(self, code: WSCloseCode, explanation: str) -> None:
        """picows found a frame that it will not read, and closes; before that, the client is told why."""
        if self._connection is None:
            return
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            size = _SIZE.search(explanation)
            self._connection.oversized(int(size[1]) if size else None)
        else:
            logger.warning("session %s: %s", self.session_id, explanation)

    def _assemble(self, kind: WSMsgType, frame: WSFrame) -> None:
        """Collects the fragments of a message."""
        assert self._connection is not None
        if kind != WSMsgType.CONTINUATION:
            self._part_type = kind
            self._parts.clear()
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._site.max_bytes:
            self._connection.oversized(len(self._parts))
        elif frame.fin:
            message, self._parts = bytes(self._parts), bytearray()
            self._site.turn.finish()
            if self._part_type == WSMsgType.BINARY:
                self._connection.receive_binary(message)
            else:
                self._connection.receive(message)

    def _hold(self, reason: str) -> None:
        self._holds.add(reason)
        if not self._ws.underlying_transport.is_closing():
            self._ws.underlying_transport.pause_reading()

    def _release(self, reason: str) -> None:
        self._holds.discard(reason)
        if not self._holds and not self._ws.underlying_transport.is_closing():
            self._ws.underlying_transport.resume_reading()


class _PicowsLog:
    """What picows logs of one connection: its faults, with the session's id.

    Given a `logging.Logger`, picows makes a child of it for every connection; given this, it does not.
    """

    def __init__(self, connection: _Connection):
        self._connection = connection

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of logging.Logger's method
        return level >= logging.WARNING

    def log(self, *args: Any) -> None:
        """Notes on single frames: not wanted."""

    debug = info = log

    def error(self, message: str, *args: Any) -> None:
        if args and isinstance(args[0], tuple) and len(args[0]) == 2:
            self._connection.broken(*args[0])
        else:
            self._note(message, *args)

    def exception(self, message: str, *args: Any) -> None:
        logger.exception("session %s: " + message, self._connection.session_id, *args)

    def _note(self, message: str, *args: Any) -> None:
        logger.warning("session %s: " + message, self._connection.session_id, *args)

    warning = _note


def _bare_app(app: Any) -> Starlette | None:
    """The app of ours inside what uvicorn wrapped around it; None if its owner put something before WebSockets."""
    while isinstance(app, (ProxyHeadersMiddleware, MessageLoggerMiddleware)):
        app = app.app
    if not isinstance(app, Starlette) or not isinstance(getattr(app.state, "openenv", None), HTTPEnvServer):
        return None
    if any(not _http_only(middleware.cls) for middleware in app.user_middleware):
        return None
    return app


def _http_only(middleware: Any) -> bool:
    return isinstance(middleware, type) and issubclass(middleware, _HTTP_ONLY)


def _leads_to_environment(router: Router, root_path: str, path: str) -> bool:
    scope = {
        "type": "websocket",
        "path": root_path + path,
        "root_path": root_path,
        "headers": [],
        "query_string": b"",
    }
    for route in router.routes:
        if route.matches(scope)[0] is not Match.NONE:
            guarded = getattr(route, "dependencies", None) or getattr(router, "dependencies", None)
            return getattr(route, "endpoint", None) is environment_socket and not guarded
    return False
