"""Who takes the fast path, and what is particular to it. What all transports share: `test_behaviour.py`."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import struct
import threading

import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.middleware.cors import CORSMiddleware
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from openenv.server import create_app
from openenv.server.fastpath import FastPath, Upgrade
from openenv.settings import ServerSettings

from .probe import InlineProbe, ProbeAction, ProbeEnvironment, ProbeObservation
from .wires import PATIENCE_S, SocketWire, served


def app_of(environment=ProbeEnvironment, **settings):
    return create_app(
        environment,
        ProbeAction,
        ProbeObservation,
        max_concurrent_envs=8,
        settings=ServerSettings.read({}, **settings),
    )


def fast(app, **options):
    return served(app, **{"loop": "uvloop", "http": "httptools", "ws": FastPath, **options})


def takes_the_fast_path(address: str, path: str = "/ws") -> bool:
    """Plays a step, and tells by the handshake who answered: uvicorn's own dates its answers."""
    with connect(f"ws://{address}{path}", proxy=None) as client:
        client.send('{"type":"step","data":{"number":5}}')
        assert json.loads(client.recv(PATIENCE_S))["data"]["observation"]["value"] == 5
        assert client.response is not None
        return "date" not in client.response.headers


class PureMiddleware:
    seen: list[str] = []

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        self.seen.append(scope["type"])
        await self.app(scope, receive, send)


def test_an_app_as_it_is_made_takes_it():
    with fast(app_of()) as address:
        assert takes_the_fast_path(address)
        assert takes_the_fast_path(address, "/ws?session=1")


def test_middleware_for_http_alone_does_not_matter():
    app = app_of()
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    with fast(app) as address:
        assert takes_the_fast_path(address)


def test_middleware_that_may_look_at_websockets_is_not_passed_by():
    app = app_of()
    app.add_middleware(PureMiddleware)
    PureMiddleware.seen.clear()
    with fast(app) as address:
        assert not takes_the_fast_path(address)
    assert "websocket" in PureMiddleware.seen


def test_an_app_inside_another_is_served_by_the_outer_one():
    outer = FastAPI()
    outer.mount("/inner", app_of())
    with fast(outer) as address:
        assert not takes_the_fast_path(address, "/inner/ws")


def test_a_wrapped_app_is_served_as_wrapped():
    with fast(PureMiddleware(app_of())) as address:
        assert not takes_the_fast_path(address)


def test_dependencies_of_the_app_are_heard():
    called = threading.Event()
    app = app_of()
    app.router.dependencies.append(Depends(called.set))
    with fast(app) as address:
        assert not takes_the_fast_path(address)


def test_a_prefix_of_the_server_is_part_of_the_path():
    with fast(app_of(), root_path="/prefix") as address:
        assert takes_the_fast_path(address)


def test_a_deleted_endpoint_is_gone():
    app = app_of()
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/ws"]
    with fast(app) as address, pytest.raises(InvalidStatus), connect(f"ws://{address}/ws", proxy=None):
        pass


def test_another_endpoint_is_uvicorns_own():
    app = app_of()

    @app.websocket("/chat")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello " + await websocket.receive_text())
        await websocket.close()

    with fast(app) as address, connect(f"ws://{address}/chat", proxy=None) as client:
        client.send("there")
        assert client.recv(PATIENCE_S) == "hello there"


def test_an_endpoint_put_before_ours_wins():
    app = app_of()

    @app.websocket("/ws")
    async def mine(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("mine")
        await websocket.close()

    app.router.routes.insert(0, app.router.routes.pop())
    with fast(app) as address, connect(f"ws://{address}/ws", proxy=None) as client:
        assert client.recv(PATIENCE_S) == "mine"


HANDSHAKE = (
    "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: {connection}\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n{more}\r\n"
)


def shake_hands(address, connection="Upgrade", version="13", more="", key=None):
    key = key or base64.b64encode(os.urandom(16)).decode()
    host, port = address.split(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    raw.sendall(HANDSHAKE.format(connection=connection, version=version, more=more, key=key).encode())
    return raw


def read_until(raw: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = raw.recv(65536)
        if not more:
            break
        data += more
    return data


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A masked client frame (the mask is zero)."""
    first = (0x80 if fin else 0) | opcode
    if len(payload) < 126:
        head = struct.pack("!BB", first, 0x80 | len(payload))
    else:
        head = struct.pack("!BBH", first, 0x80 | 126, len(payload))
    return head + b"\0\0\0\0" + payload


TEXT, BINARY, CLOSE, PING, CONTINUATION = 1, 2, 8, 9, 0


def read_frame(raw: socket.socket) -> tuple[int, bytes]:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = raw.recv(count - len(data))
            assert more, "closed"
            data += more
        return data

    first, second = exactly(2)
    size = second & 0x7F
    if size == 126:
        size = struct.unpack("!H", exactly(2))[0]
    return first & 0x0F, exactly(size)


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade", "upgrade"])
def test_handshakes_as_browsers_send_them(connection):
    more = "Origin: http://localhost\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
    with fast(app_of()) as address, shake_hands(address, connection, more=more) as raw:
        assert read_until(raw, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
        raw.sendall(frame(TEXT, b'{"type":"state"}'))
        assert read_frame(raw)[1].startswith(b'{"type":"state"')


@pytest.mark.parametrize("fault", [{"version": "7"}, {"key": "short"}])
def test_a_bad_handshake_is_refused_and_takes_no_slot(fault):
    app = app_of()
    with fast(app) as address:
        with shake_hands(address, **fault) as raw:
            status = read_until(raw, b"\r\n\r\n").split()[1]
            assert status in {b"400", b"426"}
        assert app.state.openenv.active_sessions == 0
        assert takes_the_fast_path(address)


def test_half_a_handshake_takes_no_slot():
    app = app_of()
    with fast(app) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET /ws HTTP/1.1\r\nUpgrade: webso")
            assert takes_the_fast_path(address)
            assert app.state.openenv.active_sessions <= 1
        assert takes_the_fast_path(address)


def test_messages_in_fragments_with_a_ping_between():
    with fast(app_of()) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.sendall(frame(TEXT, b'{"type":"step",', fin=False))
        raw.sendall(frame(PING, b"are you there"))
        assert read_frame(raw) == (0xA, b"are you there")
        raw.sendall(frame(CONTINUATION, b'"data":{"num', fin=False) + frame(CONTINUATION, b'ber":8}}'))
        assert json.loads(read_frame(raw)[1])["data"]["observation"]["value"] == 8
        raw.sendall(frame(BINARY, b"ab", fin=False) + frame(CONTINUATION, b"cd"))
        assert json.loads(read_frame(raw)[1])["data"]["code"] == "INVALID_JSON"


def test_fragments_that_grow_over_the_limit():
    with fast(app_of(max_message_mb=0.01)) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.sendall(frame(TEXT, b"x" * 9000, fin=False) + frame(CONTINUATION, b"y" * 9000))
        error = json.loads(read_frame(raw)[1])["data"]
        assert (error["error"], "10485" in error["message"]) == ("MessageTooLarge", True)
        assert read_frame(raw) == (CLOSE, struct.pack("!H", 1009))


def test_a_frame_that_breaks_the_protocol_closes_with_1002(caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of()
    with fast(app) as address:
        with shake_hands(address) as raw:
            read_until(raw, b"\r\n\r\n")
            raw.sendall(frame(0xB, b"no such opcode"))
            opcode, payload = read_frame(raw)
            assert (opcode, payload[:2]) == (CLOSE, struct.pack("!H", 1002))
        assert takes_the_fast_path(address)
    assert "opcode" in caplog.text
    assert "session " in caplog.text


def test_the_closing_handshake_is_answered():
    with fast(app_of(InlineProbe)) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.sendall(frame(TEXT, b'{"type":"state"}') + frame(CLOSE, struct.pack("!H", 1000)))
        assert read_frame(raw)[0] == TEXT
        assert read_frame(raw) == (CLOSE, struct.pack("!H", 1000))
        assert raw.recv(1) == b""


def test_a_peer_without_a_sign_of_life_is_cut(caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of()
    with fast(app, ws_ping_interval=0.05) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        assert read_frame(raw)[0] == PING
        with pytest.raises((AssertionError, ConnectionResetError)):
            read_frame(raw)
    assert "ping_interval_s" in caplog.text
    assert app.state.openenv.active_sessions == 0


def test_a_peer_that_answers_pings_stays():
    with fast(app_of(), ws_ping_interval=0.05) as address:
        wire = SocketWire(f"ws://{address}/ws")
        pinged = threading.Event()
        latency = wire.socket.ping()
        assert latency.wait(PATIENCE_S)
        assert not pinged.wait(0.2)  # four periods
        assert wire.step(number=2)["data"]["observation"]["value"] == 2
        wire.close()


def test_a_stopping_server_says_so():
    app = app_of()
    with fast(app) as address:
        wire = SocketWire(f"ws://{address}/ws")
        wire.step()
    with pytest.raises(ConnectionClosed) as closed:
        wire.socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert app.state.openenv.active_sessions == 0
    wire.close()


def test_a_reader_that_reads_nothing_is_not_asked_for_more():
    """Requests of a client that does not take its replies wait in the network and not in our memory."""
    app = app_of(max_in_flight=4)
    step = frame(TEXT, b'{"type":"step","data":{"kind":"large","number":60000}}')
    with fast(app) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.settimeout(0.2)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 2_000_000_000:
                sent += raw.send(step * 2000)
        raw.settimeout(PATIENCE_S)
        assert takes_the_fast_path(address)
        for _ in range(100):
            assert len(read_frame(raw)[1]) > 60_000


def test_an_upgrade_is_read_as_a_client_may_write_it():
    request = HANDSHAKE.format(connection="x", version="13", more="", key="dGhlIHNhbXBsZSBub25jZQ==")
    assert Upgrade.parse(request.encode()) == Upgrade("/ws", b"dGhlIHNhbXBsZSBub25jZQ==")
    assert Upgrade.parse(request.replace("/ws", "/a%20b?c=1").encode()).path == "/a b"
    assert Upgrade.parse(request.replace("13", "12").encode()) is None
