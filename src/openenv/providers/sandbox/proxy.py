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
from .relay import ABORT, MOST_BYTES, HttpRelay, SandboxRoute, WebSocketRelay, refuse

if TYPE_CHECKING:
    import httpx


logger = logging.getLogger("openenv.providers.sandbox")
HOST = "127.0.0.1"
# Seconds for connections to end after the last route was closed.
FAREWELL_S = 1.0
KEEP_ALIVE_S = 75
BACKLOG = 2048


async def open_route(route: SandboxRoute) -> str:
    """Adds a route to this event loop's proxy, which the first route starts. Returns the route's base URL."""
    shared = _of_this_loop()
    async with shared.turn:
        if shared.proxy is None:
            shared.proxy = await Proxy.begin()
        return shared.proxy.add(route)


async def close_route(route: SandboxRoute) -> None:
    """Removes a route and its connections. The last one ends the proxy. May be called repeatedly."""
    shared = _of_this_loop()
    async with shared.turn:
        if shared.proxy is not None and shared.proxy.remove(route):
            proxy, shared.proxy = shared.proxy, None
            await proxy.end()


class Proxy:
    """A reverse proxy: an ASGI app that forwards requests, and its uvicorn server. Made by `begin`."""

    def __init__(self, client: httpx.AsyncClient):
        self._client = client
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

    @classmethod
    async def begin(cls) -> Proxy:
        """Starts a proxy on a free port."""
        import httpx

        # The client adds no headers and stores no cookies. Callers decide on the number of connections.
        no_cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
        limits = httpx.Limits(max_keepalive_connections=64)
        client = httpx.AsyncClient(cookies=no_cookies, limits=limits, follow_redirects=False)
        client.headers.clear()
        proxy = cls(client)
        listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        proxy._port = listener.getsockname()[1]
        proxy._listener = await asyncio.get_running_loop().create_server(
            lambda: _Http(config=proxy._config, server_state=proxy._state, app_state={}),
            sock=listener,
            backlog=BACKLOG,
        )
        logger.debug("the proxy listens on port %d", proxy._port)
        return proxy

    def add(self, route: SandboxRoute) -> str:
        """Adds a route; returns its base URL."""
        self._routes[route.name] = route
        return f"http://{HOST}:{self._port}/{route.name}"

    def remove(self, route: SandboxRoute) -> bool:
        """Removes a route; True if it was the last."""
        route.closed.set()
        return self._routes.pop(route.name, None) is not None and not self._routes

    async def end(self) -> None:
        """Ends the server and all of its connections."""
        assert self._listener is not None
        self._listener.close()
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
            relay = WebSocketRelay(*request) if scope["type"] == "websocket" else HttpRelay(self._client, *request)
            await relay.run()
        except OpenEnvError as error:
            if websocket:
                await receive()
            await refuse(send, error, "websocket.http" if websocket else "http")
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


class _Shared:
    """The proxy of an event loop, if it has one."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.turn = asyncio.Lock()
        self.proxy: Proxy | None = None


_shared: _Shared | None = None


def _of_this_loop() -> _Shared:
    global _shared  # noqa: PLW0603 - one for each process; after a fork the loop is a new one
    loop = asyncio.get_running_loop()
    if _shared is None or _shared.loop is not loop:
        _shared = _Shared(loop)
    return _shared
