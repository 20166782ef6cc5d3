"""A connection until its request is read: uvicorn's HTTP protocol, with a limit to what that may take.

uvicorn waits forever for a head, and reads one of any size.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import ConnectionFailed, MessageTooLarge, OpenEnvError
from ..settings import ServerSettings
from .answer import raw_answer
from .guard import PEER
from .linger import LingeringTransport
from .site import server_inside

__all__ = ["Reception"]

logger = logging.getLogger("openenv.server")

_TOO_LARGE, _TIMEOUT = 431, 408
# Around each header field in a request.
_AROUND = len(b": \r\n")


class Reception(HttpToolsProtocol):
    """Reads requests: what uvicorn's `http=` names (`--http openenv.server.reception:Reception`).

    One that is not complete in time is answered 408, and one whose head is too large 431; a client that says nothing
    at all is cut. Behind the head, time begins anew with whatever comes.
    """

    _settings: ClassVar[WeakKeyDictionary[Config, ServerSettings]] = WeakKeyDictionary()

    def __init__(self, **uvicorns: Any):
        super().__init__(**uvicorns)
        settings = self._settings.get(self.config)
        if settings is None:
            settings = self._settings[self.config] = _settings_of(self.app)
        self._limit = int(settings.max_header_kb * 1024)
        self._patience_s = settings.handshake_timeout_s
        self._in_head = self._in_body = self._begun = False
        # The connection is no longer read here: it speaks WebSocket, or was turned away.
        self._left = False
        # Bytes that came since there was progress: since the head began, or since the last piece of the body.
        self._unread = 0
        # Of the header fields that were read.
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
        del self.parser  # it knows this object: a circle would wait for the garbage collector, which seldom comes

    def data_received(self, data: bytes) -> None:
        self._begun = True
        self._unread += len(data)
        super().data_received(data)
        if self._left:
            return
        if self.transport.is_closing():
            self._stop_waiting()
        elif self._in_head or self._in_body:
            self._read_more()
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_more()  # no request has begun with what came, and uvicorn waits no more for one

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

    # What the parser calls.

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

    def _read_more(self) -> None:
        if self._unread > self._limit:
            self._turn_away(self._oversized(self._unread), _TOO_LARGE)
        elif self._in_body:
            self._await_more()

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
        if self.flow.read_paused:  # it is we who do not read on
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
        return MessageTooLarge(f"a request head of {size} bytes or more is over the limit of {limit}")

    def _turn_away(self, error: OpenEnvError, status: int) -> None:
        self._left = True
        self._stop_waiting()
        logger.warning("%s: %s: %s", self.client[0] if self.client else "-", type(error).__name__, error.message)
        if self._may_answer():
            self.transport.write(raw_answer(error, status))
        if self.cycle is not None:
            # Nothing that its app still says may follow.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        LingeringTransport(self.transport).close()

    def _may_answer(self) -> bool:
        """Whether an answer would be taken for that of the request that is being read."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return self._in_body and not self.cycle.response_started and not self.pipeline


def _settings_of(app: Any) -> ServerSettings:
    """Those of the environment server somewhere inside what uvicorn serves; else those of the process."""
    server = server_inside(app)
    return ServerSettings.read() if server is None else server.settings
