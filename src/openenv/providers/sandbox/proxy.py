"""The local proxy of all sandboxes of a process. Imported late, as it needs uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from ...errors import OpenEnvError, UsageError
from .relay import ABORT, MOST_BYTES, HttpRelay, SandboxRoute, WebSocketRelay, answer_of

if TYPE_CHECKING:
    import httpx


logger = logging.getLogger("openenv.providers.sandbox")
HOST = "127.0.0.1"
# Seconds for connections to end after the last route was closed.
FAREWELL_S = 1.0
KEEP_ALIVE_S = 75
BACKLOG = 2048


class Proxy:
    """The reverse proxy of an event loop: an ASGI app that forwards requests, and its uvicorn server.

    The server runs while the proxy has routes.

    Attributes:
        loop: The event loop.
    """

    _client: httpx.AsyncClient

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._changing = asyncio.Lock()
        self._routes: dict[str, SandboxRoute] = {}
        self._state = ServerState()
        # Without uvicorn's logging configuration, which would apply to the whole process.
        self._config = Config(
            self._app,
            http=_Http,
            ws=_WebSocket,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=None,
            proxy_headers=False,
            ws_max_size=MOST_BYTES,
            ws_per_message_deflate=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._listener: asyncio.Server | None = None
        self._port = 0

    async def add(self, route: SandboxRoute) -> str:
        """Adds a route; the first one starts the server. Returns the base URL of the route."""
        async with self._changing:
            if self._listener is None:
                await self.begin()
            self._routes[route.name] = route
        return f"http://{HOST}:{self._port}/{route.name}"

    async def remove(self, route: SandboxRoute) -> None:
        """Removes a route and its connections; the last one ends the server. May be called repeatedly."""
        async with self._changing:
            route.closed.set()
            if self._routes.pop(route.name, None) is not None and not self._routes:
                await self.end()

    async def begin(self) -> None:
        """Starts the server on a free port."""
        import httpx

        # The client adds no headers and stores no cookies. Callers decide on the number of connections.
        no_cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
        limits = httpx.Limits(max_keepalive_connections=64)
        self._client = httpx.AsyncClient(cookies=no_cookies, limits=limits, follow_redirects=False)
        self._client.headers.clear()
        listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self._port = listener.getsockname()[1]
        self._listener = await self.loop.create_server(
            lambda: _Http(config=self._config, server_state=self._state, app_state={}),
            sock=listener,
            backlog=BACKLOG,
        )
        logger.debug("the proxy listens on port %d", self._port)

    async def end(self) -> None:
        """Ends the server and all of its connections."""
        listener, self._listener = self._listener, None
        assert listener is not None
        listener.close()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=FAREWELL_S)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await self._client.aclose()
        logger.debug("the proxy on port %d has ended", self._port)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        websocket = scope["type"] == "websocket"
        try:
            name, _, rest = scope["raw_path"].decode("latin-1").removeprefix("/").partition("/")
            route = self._routes.get(name)
            if route is None:
                raise UsageError(f"this proxy has no sandbox {name!r}: it may have been stopped")
            key = route.admit(scope["headers"])
            place = f"/{rest}" + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            request = route, key, place, scope, receive, send
            relay = WebSocketRelay(*request) if websocket else HttpRelay(self._client, *request)
            await relay.run()
        except OpenEnvError as error:
            if websocket:
                await receive()
            await answer_of(error)(scope, receive, send)
        except ClientDisconnected:
            pass  # the client has disconnected: no connection is left to answer on
        except Exception:
            if websocket:  # the logger of uvicorn's WebSockets drops it, see `_quiet`
                logger.exception("a connection could not be relayed")
            raise


class _Http(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with our logger, and with an extension that lets the app abort the connection."""

    def __init__(self, **uvicorns: Any):
        super().__init__(**uvicorns)
        self.logger = logger
        self.access_log = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[Any, Any] = {ABORT: self.transport.abort}
        self.scope["extensions"] = extensions


class _WebSocket(WebSocketsSansIOProtocol):
    def __init__(self, **uvicorns: Any):
        super().__init__(**uvicorns)
        self.logger = _quiet


# uvicorn logs each connection, and logs a handshake that the app refuses as an error.
_quiet = logging.getLogger("openenv.providers.sandbox.connections")
_quiet.setLevel(logging.CRITICAL)


_proxy: Proxy | None = None


def proxy_of_this_loop() -> Proxy:
    """The proxy of the running event loop."""
    global _proxy  # noqa: PLW0603 - one for each process; after a fork the loop is a new one
    loop = asyncio.get_running_loop()
    if _proxy is None or _proxy.loop is not loop:
        _proxy = Proxy(loop)
    return _proxy
