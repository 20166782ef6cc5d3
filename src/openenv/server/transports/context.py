"""State that all connections of one uvicorn server share: the endpoint, and frames of one event loop iteration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match, Router
from uvicorn.config import Config
from uvicorn.middleware.message_logger import MessageLoggerMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from ..._exceptions import from_signal
from ...telemetry.metrics import METER, Phase
from ..middleware import AuthMiddleware
from ..server import EnvironmentServer
from ..timers import Keepalive
from .asgi import environment_socket

logger = logging.getLogger("openenv.server")

# Most requests that are read before they are executed: the sessions of this many stay in the processor's caches. With
# 8,192 sessions that all step, a step costs the server 22.5 us of CPU, and 27.5 us if all input is read first.
MOST_REQUESTS = 32
# Most replies that are held back, and their bytes: the first one waits for the steps of the others, and the replies
# do not count yet as unsent bytes of their connections.
MOST_REPLIES = 64
MOST_BYTES = 1024 * 1024


class FrameHandler(Protocol):
    """Handles the requests of one connection."""

    def receive(self, frame: bytes, /) -> None:
        """Handles a request. An immediate reply goes to the batcher."""

    def failed(self) -> None:
        """Ends the connection after an unexpected error of `receive`."""


class TickBatcher:
    """Requests and replies of all connections of a server, kept until the event loop has read all input.

    Reading, executing and sending use different code. If they alternate for each connection, their code drops out of
    the processor's caches, and each reply must wake a reader that fell asleep again.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[FrameHandler, bytes]] = []
        self._replies: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._bytes = 0
        self._handling = False
        self._sends = 0
        self._after: list[Callable[[], None]] = []

    def request(self, handler: FrameHandler, frame: bytes) -> None:
        """Has a frame handled after all available input was read."""
        self._requests.append((handler, frame))
        if len(self._requests) == 1:
            asyncio.get_running_loop().call_soon(self.finish)
        elif len(self._requests) == MOST_REQUESTS and not self._handling:
            self.finish()

    def reply(self, transmit: Callable[[bytes], None], frame: bytes) -> None:
        """Has a frame sent, by `transmit(frame)`, with the others of this iteration."""
        self._replies.append((transmit, frame))
        self._bytes += len(frame)
        if len(self._replies) >= MOST_REPLIES or self._bytes >= MOST_BYTES:
            self._send()
        elif len(self._replies) == 1 and not self._handling:
            asyncio.get_running_loop().call_soon(self._send)

    def afterwards(self, callback: Callable[[], None]) -> None:
        """Has a function called after the replies of this iteration have been sent."""
        if self._handling:
            self._after.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def finish(self) -> None:
        """Handles all requests and sends all replies now; call it before an action that must come after them.

        Called while requests are being handled, it only sends.
        """
        requests, self._requests = self._requests, []
        outer, self._handling = self._handling, True
        for handler, frame in requests:
            try:
                handler.receive(frame)
            except BaseException as error:  # a failure of one connection must not drop the requests of the others
                if from_signal(error):
                    raise
                logger.exception("a request could not be handled; its connection is closed")
                handler.failed()
        self._handling = outer
        try:
            self._send()
        finally:
            if self._after and not outer:
                callbacks, self._after = self._after, []
                for callback in callbacks:
                    callback()

    def _send(self) -> None:
        replies = self._replies
        self._bytes = 0
        began, count = 0.0, len(replies)
        if METER.on and count:
            self._sends += 1
            if not self._sends & METER.SAMPLE:
                began = time.monotonic()
        try:
            # Re-entrancy: a reply may close its connection, which calls this again with the same queue, in order.
            while replies:
                transmit, frame = replies.popleft()
                transmit(frame)
            if began:
                METER.observe_many(Phase.SEND, (time.monotonic() - began) / count, count)
        finally:
            if replies:  # one has raised: send the others nevertheless
                asyncio.get_running_loop().call_soon(self._send)


# Middleware that lets WebSocket connections pass untouched, and our own, which the fast path replaces.
# With any other middleware the fast path is off, unless its class says `passes_websockets = True`.
_HARMLESS = (BaseHTTPMiddleware, CORSMiddleware, GZipMiddleware, AuthMiddleware)


class ServerContext:
    """The endpoint of an environment server inside uvicorn, and the state that its connections share.

    Attributes:
        server: The environment server.
        connections: The connections that uvicorn shuts down when it stops.
        max_bytes: Bytes of the largest message accepted from a client.
        max_unsent: Most bytes that may wait for a client to read.
        keepalive: Watches all connections.
        batcher: Collects requests and replies of all connections.
    """

    _known: ClassVar[WeakKeyDictionary[Config, ServerContext | None]] = WeakKeyDictionary()

    def __init__(self, app: Starlette, config: Config, server_state: ServerState):
        self.server: EnvironmentServer = app.state.openenv
        self.connections: set[Any] = server_state.connections
        self.max_bytes = min(config.ws_max_size, self.server.settings.max_message_bytes)
        self.max_unsent = self.server.settings.max_unsent_bytes
        self.keepalive = Keepalive(config.ws_ping_interval)
        self.batcher = TickBatcher()
        self.server.manager.deferred_records.later = self.batcher.afterwards
        self._router = app.router
        self._root_path = config.root_path
        self._served: set[str] = set()

    @classmethod
    def of(cls, config: Config, server_state: ServerState) -> ServerContext | None:
        """The context of a server; None where an ordinary ASGI connection must be used."""
        if config not in cls._known:
            app = _inner_app(config.loaded_app)
            cls._known[config] = None if app is None else cls(app, config, server_state)
        return cls._known[config]

    def serves(self, path: str) -> bool:
        """Whether the first route that matches a path is the environment endpoint, with nothing before it."""
        if path not in self._served and _leads_to_environment(self._router, self._root_path, path):
            self._served.add(path)
        return path in self._served


def server_inside(app: Any) -> EnvironmentServer | None:
    """The environment server inside the app that uvicorn serves, behind any middleware."""
    while app is not None:
        server = getattr(getattr(app, "state", None), "openenv", None)
        if isinstance(server, EnvironmentServer):
            return server
        app = getattr(app, "app", None)
    return None


def _inner_app(app: Any) -> Starlette | None:
    """Our app inside uvicorn's wrappers; None if its owner added middleware that handles WebSockets."""
    while isinstance(app, (ProxyHeadersMiddleware, MessageLoggerMiddleware)):
        app = app.app
    if not isinstance(app, Starlette) or not isinstance(getattr(app.state, "openenv", None), EnvironmentServer):
        return None
    classes: list[Any] = [middleware.cls for middleware in app.user_middleware]
    harmless = [
        isinstance(cls, type) and (issubclass(cls, _HARMLESS) or getattr(cls, "passes_websockets", False))
        for cls in classes
    ]
    if not all(harmless):
        return None
    return app


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
