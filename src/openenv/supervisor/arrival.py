"""Connections that a worker was handed, until it is known what they are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import uvicorn

from ..server.fastpath import FastPath
from ..server.forward import ARRIVAL, PROXY, Arrived
from ..server.reception import Reception
from .grace import UNDECIDED_S
from .load import Load

__all__ = ["Arrival", "WorkerConfig"]


class WorkerConfig(uvicorn.Config):
    """A worker's configuration: its protocols count what becomes of connections.

    Args:
        app: The app.
        load: Hears of it.
        more: What `uvicorn.Config` takes.
    """

    def __init__(self, app: Any, load: Load, **more: Any):
        super().__init__(app, http=Arrival, ws=_Upgrade, **more)
        self.worker_load = load


class Arrival(Reception):
    """A connection before its upgrade, or one that only speaks HTTP.

    Args:
        first: Bytes that another worker has read from it.
        uvicorns: What uvicorn gives its protocols.
    """

    def __init__(self, *, first: bytes = b"", **uvicorns: Any):
        super().__init__(**uvicorns)
        self._first = first
        self._handed_on = first.startswith(PROXY)
        self._decided = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._handed_on:
            self._introduce()
        elif self._first:
            self.data_received(self._first)

    def on_headers_complete(self) -> None:
        cast(dict[str, Any], self.scope)[ARRIVAL] = Arrived(self.url, self._handed_on)
        if not self.parser.should_upgrade():  # of one that is upgraded, `_Upgrade` says it
            self._decide()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        # Not called after an upgrade: then the connection has another protocol.
        cast(WorkerConfig, self.config).worker_load.closed()
        self._decide()
        super().connection_lost(exc)

    def _decide(self) -> None:
        """It speaks HTTP alone, or is gone."""
        if not self._decided:
            self._decided = True
            cast(WorkerConfig, self.config).worker_load.note_decision()

    def _introduce(self) -> None:
        """Takes the client for who it is, and not for the worker that asks in its place (`forward.introduction`)."""
        with contextlib.suppress(ValueError):  # of whom nothing is known
            _, _, client, local, client_port, local_port = self._first.decode("latin-1").split()
            self.client, self.server = (client, int(client_port)), (local, int(local_port))


class _Upgrade(FastPath):
    """A connection that asks to speak WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Around what the fast path does in the next turn, where a v1 session is opened.
        loop = asyncio.get_running_loop()
        load = cast(WorkerConfig, self._config).worker_load

        def end() -> None:
            number = load.end(self._transport.is_closing())
            if number is not None:
                loop.call_later(UNDECIDED_S, load.give_up, number)

        loop.call_soon(load.begin)
        super().connection_made(transport)
        loop.call_soon(end)
