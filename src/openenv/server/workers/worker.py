"""A worker process: takes connections from its parent, serves them, and ends with it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any, cast

import uvicorn

from ..._tuning import raise_file_limit
from ..proxy import ARRIVAL, PROXY, ForwardingInfo, read_proxy_line
from ..transports.uvicorn import FastPath, HTTPProtocol
from . import pipe
from .pipe import KEY_BYTES, MessageKind, Pipe
from .process import GROUP_SIGNALS, ignore_signal
from .serving import DrainingServer
from .table import BEAT, KEY, SharedMetrics, SharedSlots, WorkerLoad, WorkerTable

logger = logging.getLogger("openenv.supervisor")


def exit_with_parent(descriptor: int) -> None:
    """Ends this process a moment after its parent, even if its event loop hangs.

    Only code that never releases the interpreter lock can prevent this.

    Args:
        descriptor: The pipe to the parent, which stays open for the process's life.
    """

    def exit_after() -> None:
        end = select.poll()
        end.register(descriptor, 0)  # no events except the hang-up, which is always reported
        end.poll()
        time.sleep(pipe.ORPHAN_S)
        os._exit(1)

    # A thread, because the kernel's parent-death signal would leave no time to close sessions.
    threading.Thread(target=exit_after, name="openenv-orphan", daemon=True).start()


class WorkerConfig(uvicorn.Config):
    """A worker's uvicorn configuration, with protocols that count connections.

    Args:
        app: The app.
        load: Counts the connections.
        more: Further arguments of `uvicorn.Config`.
    """

    def __init__(self, app: Any, load: WorkerLoad, **more: Any):
        super().__init__(app, http=WorkerHTTPProtocol, ws=_WorkerFastPath, **more)
        self.worker_load = load


class WorkerHTTPProtocol(HTTPProtocol):
    """A connection before its upgrade, or one that only uses HTTP.

    Args:
        first: Bytes that another worker has already read from it.
        uvicorns: The arguments that uvicorn passes to its protocols.
    """

    def __init__(self, *, first: bytes = b"", **uvicorns: Any):
        super().__init__(**uvicorns)
        self._first = first
        self._handed_on = first.startswith(PROXY)
        self._decided = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._handed_on:
            # The client is the one in the proxy line, not the worker that forwards (`proxy.proxy_line`).
            named = read_proxy_line(self._first)
            if named is not None:
                self.client, self.server = named
        elif self._first:
            self.data_received(self._first)

    def on_headers_complete(self) -> None:
        cast(dict[str, Any], self.scope)[ARRIVAL] = ForwardingInfo(self.url, self._handed_on)
        if not self.parser.should_upgrade():  # `_WorkerFastPath` reports upgraded connections
            self._decide()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        # Not called after an upgrade: then the connection has another protocol.
        cast(WorkerConfig, self.config).worker_load.closed()
        self._decide()
        super().connection_lost(exc)

    def _decide(self) -> None:
        """The connection only uses HTTP, or has closed."""
        if not self._decided:
            self._decided = True
            cast(WorkerConfig, self.config).worker_load.note_decision()


class _WorkerFastPath(FastPath):
    """A connection that requests an upgrade to WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Encloses the next loop iteration of the fast path, which opens a v1 session.
        loop = asyncio.get_running_loop()
        load = cast(WorkerConfig, self.config).worker_load

        def end() -> None:
            number = load.end(self._transport.is_closing())
            if number is not None:
                loop.call_later(pipe.UNDECIDED_S, load.give_up, number)

        loop.call_soon(load.begin)
        super().connection_made(transport)
        loop.call_soon(end)


class Membership:
    """The pipe, table and metrics that a worker process shares with its parent and the other workers.

    Args:
        pipe: Descriptor of its end of the pipe to the parent.
        table: Descriptor of the shared table.
        metrics: Descriptor of the shared metrics.
        row: Its row in both.
    """

    def __init__(self, pipe: int, table: int, metrics: int, row: int):
        for number in GROUP_SIGNALS:
            signal.signal(number, ignore_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        for descriptor in (pipe, table, metrics):
            os.set_inheritable(descriptor, False)
        self.pipe = Pipe(socket.socket(fileno=pipe))
        exit_with_parent(pipe)
        self.table = WorkerTable(descriptor=table)
        self.row = self.table.row(row)
        self.metrics = SharedMetrics(descriptor=metrics)
        self.metrics.join(row, self.row.get(KEY))
        self.load = WorkerLoad(self.row)

    @property
    def key(self) -> str:
        """The name of the process in a URL."""
        return format(self.row.get(KEY), "x")

    @property
    def others(self) -> list[str]:
        """The names of the other workers that have started."""
        return [format(key, "x") for key in self.table.started if key != self.row.get(KEY)]

    def fail(self, reason: str) -> None:
        """Reports to the parent why this process cannot start."""
        self.pipe.send(MessageKind.FAILED, reason.encode()[: pipe.MOST_BYTES - 1])


class Worker(DrainingServer):
    """Serves an app on connections that come over a pipe.

    Args:
        config: The configuration of the app, which is loaded.
        membership: The resources that it shares with its parent and the other workers.
        name: The served environment, for the parent's messages; by default the environment's name.
        beat_s: Seconds between updates of its beat, by which the parent detects a hang.
        handshake_s: Seconds that a client has for the TLS handshake.
    """

    def __init__(self, config: WorkerConfig, membership: Membership, name: str, beat_s: float, handshake_s: float):
        super().__init__(config, grace_s=0.0)
        self._member = membership
        self._pipe = membership.pipe
        self._name = name
        self._beat_s = beat_s
        self._most_files = raise_file_limit()
        self._handshake_s = handshake_s
        self._opening: set[asyncio.Task[None]] = set()
        self._slots: SharedSlots | None = None
        if self.environment is not None:
            limits, row = self.environment.manager.limits, membership.row
            self._slots = SharedSlots(
                membership.table,
                row,
                limits.max_sessions,
                membership.load,
                lambda rows: self._post(MessageKind.FREE, b"".join(row.to_bytes(2, "big") for row in rows)),
                limits.max_sessions_per_key,
            )
            self.environment.manager.share(self._slots)
            self.environment.worker_key = membership.key
            self.environment.warns_about_keys = row.index == 0
            self.environment.redirect = self._redirect
            self.environment.serving = lambda: membership.table.serving
            self.environment.other_workers = lambda: membership.others

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignores a signal to the whole process group: the parent got it too, and sends messages."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        self._beat()
        ready: dict[str, Any] = {"name": self._name}
        if self.environment is not None:
            ready = {"name": self.environment.env_name, "limit": self.environment.max_sessions}
        self._post(MessageKind.READY, json.dumps(ready).encode())
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        """Handles one message in each iteration of the loop, so that served connections continue."""
        if not self._has_room():
            logger.warning("new connections wait: this process can open no more files (ulimit -n)")
            self._loop.remove_reader(self._pipe.fileno())
            self._loop.call_later(pipe.EXHAUSTED_S, self._loop.add_reader, self._pipe.fileno(), self._read)
            return
        message = self._pipe.receive()
        if message is None:
            return
        if message.kind is MessageKind.CONNECTIONS:
            self._take_in(message.sockets, message.payload[0], b"")
        elif message.kind is MessageKind.ROUTED:
            self._take_in(message.sockets, 1, message.payload[KEY_BYTES:])
        elif message.kind is MessageKind.END:
            self._loop.remove_reader(self._pipe.fileno())
            self._loop.remove_writer(self._pipe.fileno())
            logger.warning("the parent process has ended: this worker ends too")
            self.drain(0.0, pipe.ORPHAN_RUNNING_S)
        elif message.kind is MessageKind.FREE:
            if self._slots is not None and self._slots.on_free is not None:
                self._slots.on_free()
        elif message.kind is MessageKind.RETIRE:
            # Clients can come back to their sessions here for as long as the parent accepts connections.
            self._loop.call_later(pipe.SETTLE_S, self.drain, float(message.payload), pipe.RUNNING_S, True)
        elif message.kind is MessageKind.DRAIN:
            self.drain(float(message.payload))

    def _has_room(self) -> bool:
        """Whether a message full of sockets can be received: without room, the kernel drops sockets."""
        try:
            free = os.dup(self._pipe.fileno())  # the lowest number that is free
        except OSError:
            return False
        os.close(free)
        return free + pipe.MOST_SOCKETS < self._most_files

    def _take_in(self, sockets: list[int], count: int, first: bytes) -> None:
        for descriptor in sockets:
            task = self._loop.create_task(self._connect(socket.socket(fileno=descriptor), first))
            self._opening.add(task)  # the event loop has only a weak reference to it
            task.add_done_callback(self._opening.discard)
        missing = count - len(sockets)
        if missing:
            logger.error("%d connections were lost: this process can open no more files (ulimit -n)", missing)
            for _ in range(missing):
                self._member.load.closed()
                self._member.load.note_decision()

    async def _connect(self, connection: socket.socket, first: bytes) -> None:
        try:
            connection.setblocking(False)
            # The bytes that another worker has read are not TLS, or already decrypted.
            secured = None if first else self.config.ssl
            await self._loop.connect_accepted_socket(
                lambda: WorkerHTTPProtocol(
                    config=self.config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                    _loop=self._loop,
                    first=first,
                ),
                connection,
                ssl=secured,
                ssl_handshake_timeout=self._handshake_s if secured else None,
            )
        except OSError:  # the client disconnected, or does not speak TLS
            connection.close()
            self._member.load.closed()
            self._member.load.note_decision()

    def _redirect(self, key: str, connection: socket.socket, read: bytes) -> bool:
        """Hands a connection to the worker with a key. False: no such worker, or it is this one."""
        try:
            number = int(key, 16)
            wanted = number.to_bytes(KEY_BYTES, "big")
        except (ValueError, OverflowError):
            return False
        # A key has several spellings (00ff, FF): this worker's own key must not send a connection in circles.
        if number in (0, self._member.row.get(KEY)) or not self._member.table.has(number):
            return False
        if len(read) > pipe.MOST_BYTES - KEY_BYTES - 1:
            return False
        self._post(MessageKind.ROUTED, wanted + read, [connection.detach()])
        return True

    def _post(self, kind: MessageKind, payload: bytes, sockets: tuple[int, ...] | list[int] = ()) -> None:
        self._pipe.post(kind, payload, sockets)
        if self._pipe.full:
            self._loop.add_writer(self._pipe.fileno(), self._flush)

    def _flush(self) -> None:
        self._pipe.flush()
        if not self._pipe.full:
            self._loop.remove_writer(self._pipe.fileno())

    def _beat(self) -> None:
        self._member.row.add(BEAT, 1)
        self._loop.call_later(self._beat_s, self._beat)
