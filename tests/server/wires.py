"""One conversation over each transport, for tests that must hold on all of them."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from openenv.server.transports.uvicorn import FastPath

PATIENCE_S = 20


def eventually(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Waits for what happens on another thread."""
    limit = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.005)


class Closed(Exception):
    """The server closed the conversation."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Wire:
    """A client's end. `receive` gives a v1 reply as an object, or raises `Closed`."""

    subprotocol: str | None = None

    def send(self, frame: str | bytes) -> None:
        raise NotImplementedError

    def receive_frame(self) -> str | bytes:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def receive(self) -> Any:
        text = self.receive_frame()
        assert isinstance(text, str)
        return json.loads(text)

    def ask(self, message: Any) -> Any:
        self.send(message if isinstance(message, str | bytes) else json.dumps(message))
        return self.receive()

    def step(self, kind: str = "ok", number: int = 0) -> Any:
        return self.ask({"type": "step", "data": {"kind": kind, "number": number}})


class _Memory(Wire):
    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop, subprotocol: str | None):
        self._loop = loop
        self.subprotocol = subprotocol
        self._inbox: queue.SimpleQueue[str | bytes | int] = queue.SimpleQueue()
        self._connection = self._call(self._connect, app)

    async def _connect(self, app: FastAPI) -> Any:
        channel = self._Channel(self._inbox, binary=self.subprotocol == "openenv.v2.msgpack")
        return app.state.openenv.connect(channel, self.subprotocol)

    class _Channel:
        def __init__(self, inbox: queue.SimpleQueue[str | bytes | int], binary: bool):
            self._inbox = inbox
            self._binary = binary

        def send(self, frame: bytes) -> None:
            self._inbox.put(frame if self._binary else frame.decode())

        def close(self, code: int) -> None:
            self._inbox.put(code)

        def pause(self) -> None: ...

        def resume(self) -> None: ...

    def _call(self, function: Any, *arguments: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result(PATIENCE_S)

    async def _receive(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self._connection.receive_binary(frame)
        else:
            self._connection.receive(frame)

    def send(self, frame: str | bytes) -> None:
        self._call(self._receive, frame)

    def receive_frame(self) -> str | bytes:
        item = self._inbox.get(timeout=PATIENCE_S)
        if isinstance(item, int):
            raise Closed(item)
        return item

    def close(self) -> None:
        self._call(self._connection.aclose)


class _Asgi(Wire):
    def __init__(self, session: Any):
        self._session = session
        self.subprotocol = session.accepted_subprotocol

    def send(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self._session.send_bytes(frame)
        else:
            self._session.send_text(frame)

    def receive_frame(self) -> str | bytes:
        message = self._session.receive()
        if message["type"] == "websocket.close":
            raise Closed(message["code"])
        frame: str | bytes | None = message.get("text")
        return message["bytes"] if frame is None else frame

    def close(self) -> None:
        self._session.close()


class SocketWire(Wire):
    """Over a real socket, by a client library that nobody here wrote."""

    def __init__(self, url: str, **options: Any):
        self._stack = ExitStack()
        self.socket = self._stack.enter_context(connect(url, max_size=None, proxy=None, **options))
        self.subprotocol = self.socket.subprotocol

    def send(self, frame: str | bytes) -> None:
        self.socket.send(frame)

    def receive_frame(self) -> str | bytes:
        try:
            return self.socket.recv(PATIENCE_S)
        except ConnectionClosed as closed:
            raise Closed(closed.rcvd.code if closed.rcvd else 1006) from None

    def close(self) -> None:
        self._stack.close()


@contextmanager
def memory(app: FastAPI) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda subprotocol=None: _Memory(app, loop, subprotocol)
        asyncio.run_coroutine_threadsafe(app.state.openenv.aclose(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def asgi(app: FastAPI) -> Iterator[Any]:
    with TestClient(app) as client:
        sessions: list[Any] = []

        def open_wire(subprotocol: str | None = None) -> Wire:
            session = client.websocket_connect("/ws", subprotocols=_offer(subprotocol))
            session.__enter__()
            sessions.append(session)
            return _Asgi(session)

        try:
            yield open_wire
        finally:  # a failed test too must not leave the client waiting for its sessions
            for session in sessions:
                session.__exit__(None, None, None)


@contextmanager
def served(
    app: Any, first: Callable[[str], None] | None = None, receive_buffer: int | None = None, **options: Any
) -> Iterator[str]:
    """The app under a real uvicorn, on a port of its own; yields `host:port`.

    What `first` does with that address is done before the server begins: what it sends is there as soon as its
    connection is accepted, so a client that is slow to speak makes no difference. With a `receive_buffer`, the kernel
    keeps so many bytes of a connection, and no more; else it may keep 32 MiB of a server that is slow to read.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    if receive_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if first is not None:
        first(f"127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextmanager
def stock(app: FastAPI) -> Iterator[Any]:
    with served(app, loop="asyncio", http="h11", ws="websockets-sansio") as address:
        yield lambda subprotocol=None: SocketWire(f"ws://{address}/ws", subprotocols=_offer(subprotocol))


@contextmanager
def fast(app: FastAPI) -> Iterator[Any]:
    with served(app, loop="uvloop", http="httptools", ws=FastPath) as address:
        yield lambda subprotocol=None: SocketWire(f"ws://{address}/ws", subprotocols=_offer(subprotocol))


def _offer(subprotocol: str | None) -> Any:
    return None if subprotocol is None else [subprotocol]


WIRES = {"memory": memory, "asgi": asgi, "stock": stock, "fast": fast}
