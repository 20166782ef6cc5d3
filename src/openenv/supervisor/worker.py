"""Inside a worker process: serves the connections that its parent hands over."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from functools import partial
from types import FrameType
from typing import Any

from ..file_limit import raise_file_limit
from ..server.report import sessions_here
from .arrival import Arrival, WorkerConfig
from .child import GROUP_SIGNALS
from .grace import EXHAUSTED_S, ORPHAN_RUNNING_S, RUNNING_S, SETTLE_S
from .inquiry import Inquiry, answer
from .ledger import Ledger
from .load import Load
from .orphan import end_with_parent
from .pipe import KEY_BYTES, MOST_BYTES, MOST_SOCKETS, Kind, Message, Pipe
from .serving import DrainingServer
from .slots import SharedSlots
from .table import BEAT, KEY, Table

__all__ = ["Membership", "Worker"]

logger = logging.getLogger("openenv.supervisor")


class Membership:
    """What a worker process has in common with its parent and the other workers.

    Args:
        pipe: Descriptor of its end of the road to the parent.
        table: Descriptor of the shared table.
        ledger: Descriptor of the shared ledger.
        row: Its row in both.
    """

    def __init__(self, pipe: int, table: int, ledger: int, row: int):
        for number in GROUP_SIGNALS:
            signal.signal(number, _leave_it_to_the_parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        for descriptor in (pipe, table, ledger):
            os.set_inheritable(descriptor, False)
        self.pipe = Pipe.of(pipe)
        end_with_parent(pipe)
        self.table = Table(descriptor=table)
        self.row = self.table.row(row)
        self.ledger = Ledger(descriptor=ledger)
        self.ledger.join(row, self.row.get(KEY))
        self.load = Load(self.row)

    @property
    def key(self) -> str:
        """What the process is called in a URL."""
        return format(self.row.get(KEY), "x")

    def fail(self, reason: str) -> None:
        """Tells the parent why this process cannot start."""
        self.pipe.send(Kind.FAILED, reason.encode()[: MOST_BYTES - 1])


class Worker(DrainingServer):
    """Serves an app on connections that come over a pipe.

    Args:
        config: Of the app, which is loaded.
        membership: The process's place among the workers.
        name: What it serves, for the parent to say; by default the environment's name.
        beat_s: Seconds between signs of life.
        handshake_s: Seconds that a client has for the handshake of TLS.
    """

    def __init__(self, config: WorkerConfig, membership: Membership, name: str, beat_s: float, handshake_s: float):
        super().__init__(config, grace_s=0.0)
        self._config = config
        self._member = membership
        self._pipe = membership.pipe
        self._name = name
        self._beat_s = beat_s
        self._most_files = raise_file_limit()
        self._handshake_s = handshake_s
        self._opening: set[asyncio.Task[None]] = set()
        self._slots: SharedSlots | None = None
        self._inquiry = Inquiry(partial(self._post, Kind.ASK, b""), self._sessions_here)
        if self.environment is not None:
            limits, row = self.environment.manager.limits, membership.row.index
            self._slots = SharedSlots(
                membership.table,
                row,
                limits.max_sessions,
                membership.load,
                self._freed,
                limits.max_sessions_per_key,
            )
            self.environment.manager.share(self._slots)
            self.environment.worker_key = membership.key
            self.environment.redirect = self._redirect
            self.environment.serving = lambda: membership.table.serving
            self.environment.report = self._inquiry.everybody

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to the whole group: the parent has got it too, and says what to do."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        self._beat()
        ready: dict[str, Any] = {"name": self._name}
        if self.environment is not None:
            ready = {"name": self.environment.env_name, "limit": self.environment.max_concurrent_envs}
        self._post(Kind.READY, json.dumps(ready).encode())
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        """One message a turn of the loop, so that those who are served go on."""
        if not self._has_room():
            logger.warning("connections have to wait: this process may not open more files (ulimit -n)")
            self._loop.remove_reader(self._pipe.fileno())
            self._loop.call_later(EXHAUSTED_S, self._loop.add_reader, self._pipe.fileno(), self._read)
            return
        message = self._pipe.receive()
        if message is None:
            return
        if message.kind is Kind.CONNECTIONS:
            self._take_in(message.sockets, message.payload[0], b"")
        elif message.kind is Kind.ROUTED:
            self._take_in(message.sockets, 1, message.payload[KEY_BYTES:])
        elif message.kind is Kind.END:
            self._loop.remove_reader(self._pipe.fileno())
            self._loop.remove_writer(self._pipe.fileno())
            logger.warning("the parent process is gone: this worker ends as well")
            self.drain(0.0, ORPHAN_RUNNING_S)
        else:
            self._heed(message)

    def _heed(self, message: Message) -> None:
        """What comes seldom."""
        if message.kind is Kind.FREE:
            if self._slots is not None and self._slots.on_free is not None:
                self._slots.on_free()
        elif message.kind is Kind.TELL:
            for descriptor in message.sockets:
                self._keep(answer(socket.socket(fileno=descriptor), self._sessions_here()))
        elif message.kind is Kind.TOLD:
            self._inquiry.told(message.payload, message.sockets)
        elif message.kind is Kind.RETIRE:
            # Clients can come back to their sessions here for as long as the parent accepts connections.
            self._loop.call_later(SETTLE_S, self.drain, float(message.payload), RUNNING_S, True)
        elif message.kind is Kind.DRAIN:
            self.drain(float(message.payload))

    def _has_room(self) -> bool:
        """Whether a message full of sockets can be received: the kernel drops those for which there is no room."""
        try:
            free = os.dup(self._pipe.fileno())  # the lowest number that is free
        except OSError:
            return False
        os.close(free)
        return free + MOST_SOCKETS < self._most_files

    def _take_in(self, sockets: list[int], count: int, first: bytes) -> None:
        for descriptor in sockets:
            self._keep(self._connect(socket.socket(fileno=descriptor), first))
        missing = count - len(sockets)
        if missing:
            logger.error("%d connections were lost: this process may not open more files (ulimit -n)", missing)
            for _ in range(missing):
                self._member.load.closed()
                self._member.load.note_decision()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Has something done by a task, to which the event loop itself refers only weakly."""
        task = self._loop.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket, first: bytes) -> None:
        try:
            connection.setblocking(False)
            # What another worker has read was no TLS, or no longer.
            secured = None if first else self._config.ssl
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(first),
                connection,
                ssl=secured,
                ssl_handshake_timeout=self._handshake_s if secured else None,
            )
        except OSError:  # it went away on its way here, or speaks no TLS
            connection.close()
            self._member.load.closed()
            self._member.load.note_decision()

    def _protocol(self, first: bytes) -> Arrival:
        return Arrival(
            config=self._config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=self._loop,
            first=first,
        )

    def _redirect(self, key: str, connection: socket.socket, read: bytes) -> bool:
        """Hands a connection to the worker of a key. False: there is none, or it is this one."""
        try:
            number = int(key, 16)
            wanted = number.to_bytes(KEY_BYTES, "big")
        except (ValueError, OverflowError):
            return False
        # A key may be written in more ways than one (00ff, FF): its own one must not send a connection in circles.
        if number in (0, self._member.row.get(KEY)) or not self._member.table.has(number):
            return False
        if len(read) > MOST_BYTES - KEY_BYTES - 1:
            return False
        self._post(Kind.ROUTED, wanted + read, [connection.detach()])
        return True

    def _sessions_here(self) -> list[dict[str, Any]]:
        return [] if self.environment is None else sessions_here(self.environment.manager, self._member.key)

    def _freed(self, rows: list[int]) -> None:
        """A slot is free for workers in which newcomers wait."""
        self._post(Kind.FREE, b"".join(row.to_bytes(2, "big") for row in rows))

    def _post(self, kind: Kind, payload: bytes, sockets: tuple[int, ...] | list[int] = ()) -> None:
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


def _leave_it_to_the_parent(number: int, frame: FrameType | None) -> None:
    pass
