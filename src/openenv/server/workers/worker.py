"""A worker process: takes connections from its parent, serves them, and ends with it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import zip_longest
from types import FrameType
from typing import Any, cast

import msgspec
import uvicorn

from ..._asyncio import shielded
from ..._processes import raise_file_limit
from ..._sockets import open_streams
from ...settings import ServerSettings
from ..proxy import ARRIVAL, PROXY, ForwardingInfo, read_proxy_line
from ..transports.uvicorn import FastPath, HTTPProtocol
from . import pipe
from .pipe import KEY_BYTES, MessageKind, Pipe, PipeMessage
from .serving import DrainingServer
from .table import BEAT, KEY, SharedSlots, WorkerLoad, WorkerRow, WorkerTable

logger = logging.getLogger("openenv.supervisor")

# Seconds that a worker has to answer. The list omits the sessions of a worker that hangs or dies.
ANSWER_S = 2.0
# Sessions per line of an answer. An extra last line marks the answer as complete.
SESSIONS_A_LINE = 128
MOST_LINE_BYTES = 1024 * 1024
END = b"null\n"
_COUNT_BYTES = 2

Facts = dict[str, Any]


class Broadcast:
    """Queries all workers for this one. One query at a time: callers that arrive in the meantime share its answer.

    Args:
        ask: Sends the query to the parent.
        here: Returns the sessions of this worker.
    """

    def __init__(self, ask: Callable[[], None], here: Callable[[], list[Facts]]):
        self._ask = ask
        self._here = here
        self._running: asyncio.Task[list[Facts]] | None = None
        self._answers: list[tuple[str, asyncio.Task[list[Facts]]]] = []
        self._complete = asyncio.Event()
        self._complete.set()

    async def all_sessions(self) -> list[Facts]:
        """The sessions of all workers.

        A worker that does not answer in time has one entry, with the `id` None and the `state` "unanswered".
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await shielded(self._running)

    def take_sockets(self, payload: bytes, sockets: list[int]) -> None:
        """The parent handed over some of the sockets on which other workers answer."""
        places = range(_COUNT_BYTES, len(payload), KEY_BYTES)
        keys = [f"{int.from_bytes(payload[place : place + KEY_BYTES], 'big'):x}" for place in places]
        if self._complete.is_set():  # the message is too late
            pipe.close_all(sockets)
            return
        for key, end in zip_longest(keys, sockets):
            self._answers.append((key, asyncio.create_task(_read(end))))
        if len(self._answers) >= int.from_bytes(payload[:_COUNT_BYTES], "big"):
            self._complete.set()

    async def _run(self) -> list[Facts]:
        self._answers.clear()
        self._complete.clear()
        sessions = self._here()
        self._ask()
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        try:
            async with asyncio.timeout_at(deadline):
                await self._complete.wait()
        except TimeoutError:
            logger.warning("the parent process did not answer: the list has only the sessions of this worker")
        self._complete.set()
        for key, answer in self._answers:
            try:
                async with asyncio.timeout_at(deadline):
                    sessions += await answer
            except (OSError, ValueError, TimeoutError) as error:
                logger.warning("worker %s did not list its sessions: %s", key, str(error) or "it did not answer")
                unknown = dict.fromkeys(("age_s", "idle_s", "steps", "peer"))
                sessions.append({"id": None, "state": "unanswered", **unknown, "worker": key})
        return sessions


async def send_sessions(end: socket.socket, sessions: list[Facts]) -> None:
    """Writes the sessions as fast as the reader accepts them, and closes."""
    try:
        _, writer = await open_streams(end)
        try:
            async with asyncio.timeout(ANSWER_S):
                for first in range(0, len(sessions), SESSIONS_A_LINE):
                    writer.write(msgspec.json.encode(sessions[first : first + SESSIONS_A_LINE]) + b"\n")
                    await writer.drain()
                writer.write(END)
                await writer.drain()
        finally:
            writer.close()
    except (OSError, TimeoutError):  # the other worker has stopped reading
        end.close()


async def _read(end: int | None) -> list[Facts]:
    """Reads an answer from the socket with this descriptor.

    Raises:
        OSError: There is no socket, or the answer is not complete.
        ValueError: The data is not an answer.
    """
    if end is None:
        raise ConnectionRefusedError("it could not be queried")
    reader, writer = await open_streams(socket.socket(fileno=end), MOST_LINE_BYTES)
    sessions: list[Facts] = []
    try:
        while (line := await reader.readline()) != END:
            if not line:
                raise ConnectionResetError("it ended")
            sessions += msgspec.json.decode(line, type=list[Facts])
    finally:
        writer.close()
    return sessions


def exit_with_parent(descriptor: int) -> None:
    """Ends this process a moment after its parent, even if its event loop hangs.

    Only code that never releases the interpreter lock can prevent this.

    Args:
        descriptor: The pipe to the parent, which stays open for the process's life.
    """

    def exit_after() -> None:
        if sys.platform == "win32":
            return
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


class Worker(DrainingServer):
    """Serves an app on connections that come over a pipe.

    Args:
        config: The configuration of the app, which is loaded.
        parent: Its end of the pipe to its parent.
        table: The table that all workers share.
        row: Its row there.
        settings: Those of the server.
    """

    def __init__(
        self, config: WorkerConfig, parent: Pipe, table: WorkerTable, row: WorkerRow, settings: ServerSettings
    ):
        super().__init__(config, grace_s=0.0)
        self._pipe = parent
        self._table, self._row, self._load = table, row, config.worker_load
        self._settings = settings
        self._most_files = raise_file_limit()
        self._opening: set[asyncio.Task[None]] = set()
        self._slots: SharedSlots | None = None
        self._broadcast = Broadcast(partial(self._post, MessageKind.ASK, b""), self._sessions_here)
        if self.environment is not None:
            limits = self.environment.manager.limits
            self._slots = SharedSlots(
                table,
                row,
                limits.max_sessions,
                self._load,
                lambda rows: self._post(MessageKind.FREE, b"".join(row.to_bytes(2, "big") for row in rows)),
                limits.max_sessions_per_key,
            )
            self.environment.manager.share(self._slots)
            self.environment.worker_key = format(row.get(KEY), "x")
            self.environment.warns_about_keys = row.index == 0
            self.environment.redirect = self._redirect
            self.environment.serving = lambda: table.serving
            self.environment.report = self._broadcast.all_sessions

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignores a signal to the whole process group: the parent got it too, and sends messages."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        self._beat()
        ready: dict[str, Any] = {"name": self._settings.target}
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
        else:
            self._heed(message)

    def _heed(self, message: PipeMessage) -> None:
        """Handles the rare messages."""
        if message.kind is MessageKind.FREE:
            if self._slots is not None and self._slots.on_free is not None:
                self._slots.on_free()
        elif message.kind is MessageKind.TELL:
            for descriptor in message.sockets:
                self._keep(send_sessions(socket.socket(fileno=descriptor), self._sessions_here()))
        elif message.kind is MessageKind.ANSWER_SOCKETS:
            self._broadcast.take_sockets(message.payload, message.sockets)
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
            self._keep(self._connect(socket.socket(fileno=descriptor), first))
        missing = count - len(sockets)
        if missing:
            logger.error("%d connections were lost: this process can open no more files (ulimit -n)", missing)
            for _ in range(missing):
                self._load.closed()
                self._load.note_decision()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine as a task and keeps a reference to it, because the event loop has only a weak one."""
        task = self._loop.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

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
                ssl_handshake_timeout=self._settings.handshake_timeout_s if secured else None,
            )
        except OSError:  # the client disconnected, or does not speak TLS
            connection.close()
            self._load.closed()
            self._load.note_decision()

    def _redirect(self, key: str, connection: socket.socket, read: bytes) -> bool:
        """Hands a connection to the worker with a key. False: no such worker, or it is this one."""
        try:
            number = int(key, 16)
            wanted = number.to_bytes(KEY_BYTES, "big")
        except (ValueError, OverflowError):
            return False
        # A key has several spellings (00ff, FF): this worker's own key must not send a connection in circles.
        if number in (0, self._row.get(KEY)) or not self._table.has(number):
            return False
        if len(read) > pipe.MOST_BYTES - KEY_BYTES - 1:
            return False
        self._post(MessageKind.ROUTED, wanted + read, [connection.detach()])
        return True

    def _sessions_here(self) -> list[dict[str, Any]]:
        return [] if self.environment is None else self.environment.sessions_here()

    def _post(self, kind: MessageKind, payload: bytes, sockets: tuple[int, ...] | list[int] = ()) -> None:
        self._pipe.post(kind, payload, sockets)
        if self._pipe.full:
            self._loop.add_writer(self._pipe.fileno(), self._flush)

    def _flush(self) -> None:
        self._pipe.flush()
        if not self._pipe.full:
            self._loop.remove_writer(self._pipe.fileno())

    def _beat(self) -> None:
        self._row.add(BEAT, 1)
        self._loop.call_later(self._settings.worker_silence_s / 4, self._beat)
