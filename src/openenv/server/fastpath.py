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
import os
import socket
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol
from uvicorn.server import ServerState

from .environment_server import HTTPEnvServer
from .picows_channel import serve
from .site import Site
from .upgrade import Upgrade

__all__ = ["FastPath"]

logger = logging.getLogger("openenv.server")

_MISDIRECTED = b"the URL names another worker process, and a TLS connection cannot be handed on to it: \
end TLS in a proxy before the server, or connect without worker= in the query\n"


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
        site = Site.of(self._config, self._server_state)
        upgrade = None if site is None else Upgrade.parse(self._request)
        if site is None or upgrade is None or not site.serves(upgrade.path):
            self._use_stock()
        elif not self._hand_on(site.server, upgrade.worker):
            serve(site, self._transport, upgrade)

    def _hand_on(self, server: HTTPEnvServer, worker: str | None) -> bool:
        """Gives the connection to the worker process that its URL names; False: it is to be served here."""
        if worker is None or worker == server.worker_key or server.redirect is None:
            return False
        if self._transport.get_extra_info("ssl_object") is not None:
            self._refuse()
            return True
        try:
            twin = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        except OSError as error:
            logger.warning("a connection for another worker process is given up: %s", error.strerror or error)
            self._transport.abort()
            return True
        # What arrives from here on is for whoever has the connection then.
        self._transport.pause_reading()
        if server.redirect(worker, twin, self._request):
            self._transport.abort()
            return True
        twin.close()
        self._transport.resume_reading()
        return False

    def _refuse(self) -> None:
        logger.warning("a TLS connection for another worker process was refused: it cannot be handed on")
        head = b"HTTP/1.1 421 Misdirected Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
        self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(_MISDIRECTED), _MISDIRECTED))
        self._transport.close()

    def _use_stock(self) -> None:
        assert AutoWebSocketsProtocol is not None
        stock: Any = AutoWebSocketsProtocol(
            config=self._config, server_state=self._server_state, app_state=self._app_state
        )
        self._transport.set_protocol(stock)
        stock.connection_made(self._transport)
        stock.data_received(self._request)
