"""A TCP proxy on loopback that does to connections what bad networks do.

    with Proxy(server_port, seed=7) as proxy:
        client = EnvClient(proxy.url)
        ...
        proxy.cut_all()         # each connection ends at a random byte, in the middle of whatever is sent
        proxy.delay(1.5, 0.3)   # from now on 30 % of what the server sends comes 1.5 s late
        proxy.freeze()          # nothing comes through, and nobody is told

It runs on a thread of its own, so it may be used from coroutines too; `cut_all` blocks (`asyncio.to_thread`).
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

__all__ = ["Proxy"]

T = TypeVar("T")
HOST = "127.0.0.1"
# How long what happens on the proxy's own thread may take.
PATIENCE_S = 10.0
# A close with this makes the kernel send a reset, and not an orderly end.
RESET = struct.pack("ii", 1, 0)
# Unsent bytes for one end, above which the other end is not read.
HIGH_WATER = 256 * 1024


class _End(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, connection: _Connection):
        self.connection = connection
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self._held: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        self.connection.met(self)

    def data_received(self, data: bytes) -> None:
        self.connection.carry(self, data)

    def eof_received(self) -> bool:
        self.connection.half_closed(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lost(self)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Sends, or keeps it until there is a connection."""
        if self.transport is None:
            self._held.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def flush_held(self) -> None:
        held, self._held = self._held, []
        for data in held:
            self.write(data)


class _Connection:
    """A connection through the proxy: two ends, and what shall become of it."""

    def __init__(self, proxy: Proxy):
        self.proxy = proxy
        self.front, self.back = _End(self), _End(self)
        self.front.other, self.back.other = self.back, self.front
        # Bytes that may still pass, in either direction; None: any number.
        self.budget: int | None = None
        self._due = 0.0
        self._late: deque[tuple[float, bytes]] = deque()
        self._frozen: list[tuple[_End, bytes]] = []
        self.gone = self._ends = False
        self.ended = asyncio.get_running_loop().create_future()

    def met(self, end: _End) -> None:
        if end is self.front:
            self.proxy._dial(self)
        else:
            end.flush_held()

    def carry(self, source: _End, data: bytes) -> None:
        target = source.other
        assert target is not None
        if self.proxy._is_frozen:
            self._frozen.append((target, data))
            return
        wait_s = self.proxy._wait_s() if source is self.back else 0.0
        loop = asyncio.get_running_loop()
        if source is self.back and (wait_s or self._late):
            # What was sent later does not arrive earlier.
            self._due = max(self._due, loop.time() + wait_s)
            self._late.append((self._due, data))
            if len(self._late) == 1:
                loop.call_at(self._due, self._deliver)
        else:
            self.pass_on(target, data)

    def _deliver(self) -> None:
        """Passes on what is due of what is late; the loop may call a little early."""
        loop = asyncio.get_running_loop()
        due = self._late[0][0]
        while self._late and self._late[0][0] <= due:
            self.pass_on(self.front, self._late.popleft()[1])
        if self._late:
            loop.call_at(self._late[0][0], self._deliver)
        elif self._ends:
            self.half_closed(self.back)

    def pass_on(self, target: _End, data: bytes) -> None:
        if self.gone:
            return
        if self.budget is not None:
            if self.budget <= len(data):
                target.write(data[: self.budget])
                self.cut()
                return
            self.budget -= len(data)
        target.write(data)

    def thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for target, data in frozen:
            self.pass_on(target, data)

    def half_closed(self, source: _End) -> None:
        target = source.other
        assert target is not None
        if source is self.back and self._late:  # the end comes after what was said before it
            self._ends = True
            return
        if self.gone:
            return
        if target.transport is not None and target.transport.can_write_eof() and not self.proxy._is_frozen:
            target.transport.write_eof()

    def lost(self, _: _End) -> None:
        # Half-open: one side has gone and the other is not told.
        if not self.proxy._is_frozen:
            self.cut(reset=False)

    def cut(self, reset: bool | None = None) -> None:
        """Ends both sides, by a reset or by an orderly end."""
        if self.gone:
            return
        self.gone = True
        reset = self.proxy._random.random() < 0.5 if reset is None else reset
        for end in (self.front, self.back):
            if end.transport is None:
                continue
            if reset:
                self._reset(end.transport)
            else:
                end.transport.close()
        self.ended.set_result(None)
        self.proxy._open.discard(self)

    @staticmethod
    def _reset(transport: asyncio.Transport) -> None:
        found = transport.get_extra_info("socket")
        if found is not None and found.fileno() != -1:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport.abort()


class Proxy:
    """Stands before a server on loopback while it is entered.

    Args:
        port: Of the server.
        seed: Of what it does by chance.
    """

    def __init__(self, port: int, seed: int = 0):
        self.target = port
        self.accepted = 0
        self._random = random.Random(seed)
        self._open: set[_Connection] = set()
        self._dialling: set[asyncio.Task[object]] = set()
        self._delay = (0.0, 0.0)
        self._is_frozen = self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toxic proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(self._listen)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """For clients."""
        return f"http://{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._open)

    def doom(self, within_bytes: int = 400) -> int:
        """Each connection will be cut when some more bytes, at most so many, have passed. Returns their number."""
        return len(self._run(self._doom, within_bytes))

    def cut_all(self, within_bytes: int = 400, patience_s: float = 1.0) -> int:
        """Cuts each connection at a random byte, and returns when all are cut.

        Args:
            within_bytes: The cut comes after 1 to so many bytes from now, in either direction.
            patience_s: What has not sent so many by then is cut where it is.
        """
        return self._run(self._cut_all, within_bytes, patience_s)

    def delay(self, seconds: float, share: float = 1.0) -> None:
        """What the server sends from now on comes so late, or a share of it, chosen by chance; 0 ends that."""
        self._delay = (seconds, share)

    def freeze(self) -> None:
        """Nothing passes and no end is told of the other's: connections are half-open."""
        self._is_frozen = True

    def thaw(self) -> None:
        """What was held up passes."""
        self._is_frozen = False
        self._run(self._thaw)

    def refuse(self, refusing: bool = True) -> None:
        """New connections are reset at once, or no longer."""
        self._refusing = refusing

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result(PATIENCE_S)

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(self._accept, HOST, 0, backlog=4096)

    def _accept(self) -> _End:
        connection = _Connection(self)
        self.accepted += 1
        return connection.front

    def _dial(self, connection: _Connection) -> None:
        self._open.add(connection)
        if self._refusing:
            connection.cut(reset=True)
            return
        task = self._loop.create_task(self._connect(connection))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _connect(self, connection: _Connection) -> None:
        try:
            await self._loop.create_connection(lambda: connection.back, HOST, self.target)
        except OSError:
            connection.cut(reset=True)
            return
        if connection.gone and connection.back.transport is not None:
            connection.back.transport.abort()

    def _wait_s(self) -> float:
        seconds, share = self._delay
        return seconds if seconds and self._random.random() < share else 0.0

    async def _doom(self, within_bytes: int) -> list[_Connection]:
        doomed = list(self._open)
        for connection in doomed:
            connection.budget = self._random.randint(1, within_bytes)
        return doomed

    async def _cut_all(self, within_bytes: int, patience_s: float) -> int:
        doomed = await self._doom(within_bytes)
        if doomed:
            await asyncio.wait([connection.ended for connection in doomed], timeout=patience_s)
        for connection in doomed:
            connection.cut()
        return len(doomed)

    async def _thaw(self) -> None:
        for connection in list(self._open):
            connection.thaw()
            ends = (connection.front.transport, connection.back.transport)
            if any(end is not None and end.is_closing() for end in ends):
                connection.cut(reset=False)

    async def _end(self) -> None:
        self._server.close()
        for task in self._dialling:
            task.cancel()
        self._is_frozen = False
        for connection in list(self._open):
            connection.cut(reset=True)
        await asyncio.sleep(0.01)
