"""The environment endpoint at the speed of picows, inside uvicorn.

uvicorn reads the HTTP request and lets a deployment name the class that takes over WebSocket connections:
`uvicorn app:app --ws openenv.server.fastpath:FastPath`, or `openenv serve`, which does so by itself. Where a
request is for the environment endpoint of an app of ours, and nothing that the app's owner added stands
before it, frames go between picows and the session with nothing in between. Every other WebSocket path
goes to uvicorn's own implementation.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import socket
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol
from uvicorn.server import ServerState

from ..errors import OpenEnvError
from .answer import raw_answer
from .environment_server import HTTPEnvServer
from .guard import PEER, log_refusal
from .picows_channel import serve
from .porter import HANDSHAKE, Head
from .relay import relay
from .site import Site, server_inside
from .stays import is_worker_key
from .upgrade import Upgrade
from .visitor import Visitor

__all__ = ["FastPath"]

logger = logging.getLogger("openenv.server")


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
        upgrade = Upgrade.parse(self._request)
        if site is None or upgrade is None or not site.serves(upgrade.path):
            # Who may come in is asked where it comes in: here, or by the worker that it is for.
            server = None if upgrade is None else server_inside(self._config.loaded_app)
            if server is None or upgrade is None or not self._hand_on(server, upgrade.worker):
                self._use_stock()
        else:
            visitor = self._admit(site.server, upgrade)
            if visitor is not None and not self._hand_on(site.server, upgrade.worker):
                visitor = visitor._replace(worker_ended=_is_of_ended_worker(site.server, upgrade.worker))
                if upgrade.session is not None:
                    visitor = visitor._replace(session=upgrade.session, token=upgrade.token)
                    upgrade = upgrade._replace(subprotocol=None)  # only v1 connections are attached
                serve(site, self._transport, upgrade, visitor)

    def _admit(self, server: HTTPEnvServer, upgrade: Upgrade) -> Visitor | None:
        """Who the client is; None: it was told why it is not let in."""
        peer, local = get_remote_addr(self._transport), get_local_addr(self._transport)
        head = Head(HANDSHAKE, upgrade.path, upgrade.fields, peer, local[0] if local else None)
        try:
            return server.porter.admit(head)
        except OpenEnvError as error:
            log_refusal(error, head)
            self._transport.write(raw_answer(error))
            self._transport.close()
            return None

    def _hand_on(self, server: HTTPEnvServer, worker: str | None) -> bool:
        """Gives the connection to the worker process that its URL names; False: it is to be served here."""
        if worker is None or worker == server.worker_key or server.redirect is None:
            return False
        try:
            twin, near = self._twin()
        except OSError as error:
            logger.warning("a connection for another worker process is given up: %s", error.strerror or error)
            self._transport.abort()
            return True
        # What arrives from here on is for whoever has the connection then.
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

    def _twin(self) -> tuple[socket.socket, socket.socket | None]:
        """What can be handed on; and, if the connection itself cannot since its TLS ends here, the way to that."""
        if self._transport.get_extra_info("ssl_object") is not None:
            return socket.socketpair()
        return socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())), None

    def _use_stock(self) -> None:
        assert AutoWebSocketsProtocol is not None
        # A frame of 16 KiB may hold 16 MiB when it is compressed, and it is expanded before any limit applies.
        config = copy.copy(self._config)
        config.ws_per_message_deflate = False
        config.loaded_app = _with_peer(self._config.loaded_app, get_remote_addr(self._transport))
        stock: Any = AutoWebSocketsProtocol(config=config, server_state=self._server_state, app_state=self._app_state)
        self._transport.set_protocol(stock)
        stock.connection_made(self._transport)
        stock.data_received(self._request)


def _is_of_ended_worker(server: HTTPEnvServer, worker: str | None) -> bool:
    """Whether a connection that is served here was meant for another worker process, which must have ended."""
    return worker not in {None, server.worker_key} and server.redirect is not None and is_worker_key(worker or "")


def _with_peer(app: Any, peer: tuple[str, int] | None) -> Any:
    """An ASGI app that knows the other end of its connection, whatever headers say."""

    async def app_with_peer(scope: Any, receive: Any, send: Any) -> None:
        scope[PEER] = peer
        await app(scope, receive, send)

    return app_with_peer
