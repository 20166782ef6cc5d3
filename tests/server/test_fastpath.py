"""Who takes the fast path, and what is particular to it. What all transports share: `test_behaviour.py`."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.middleware.cors import CORSMiddleware
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from openenv.runtime.session import Session
from openenv.server import create_app
from openenv.server.transports.uvicorn import FastPath
from openenv.settings import ServerSettings

from ..cli.certificates import certificate
from .beats import ByHand, beats_by_hand
from .probe import InlineProbe, ProbeAction, ProbeEnvironment, ProbeObservation
from .raw import (
    BINARY,
    CLOSE,
    CONTINUATION,
    HANDSHAKE,
    PING,
    TEXT,
    close_frame,
    frame,
    read_frame,
    read_until,
    shake_hands,
    slow_reader,
)
from .talk import Talk
from .wires import PATIENCE_S, SocketWire, eventually, served


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


@pytest.fixture
def pings(monkeypatch) -> Callable[[], ByHand]:
    return beats_by_hand(monkeypatch)


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


def test_a_peer_that_answers_pings_stays(pings):
    with fast(app_of()) as address:
        wire = SocketWire(f"ws://{address}/ws")
        for _ in range(4):
            pings().beats()
            pings().wait_for_a_sign()
        assert wire.step(number=2)["data"]["observation"]["value"] == 2
        wire.close()


def test_a_stopping_server_tells_its_sessions_to_a_client_of_v2():
    app = app_of()
    with fast(app) as address:
        wire = SocketWire(f"ws://{address}/ws", subprotocols=["openenv.v2.json"])
        assert wire.receive()["event"] == "hello"
        assert wire.ask({"id": 1, "op": "open", "session": "one"})["ok"] is True
    told = wire.receive()
    assert (told["event"], told["session"], told["error"]["error"]) == ("session_lost", "one", "SessionLost")
    with pytest.raises(ConnectionClosed):
        wire.socket.recv(PATIENCE_S)
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


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request):
    return request.param


class Elsewhere:
    """Stands for another worker process: takes connections that are handed on, and answers each in one line."""

    def __init__(self, server, exists=True):
        self.exists = exists
        self.asked: list[tuple[str, bytes]] = []
        server.worker_key, server.redirect = "here", self.take

    def take(self, worker: str, connection: socket.socket, data: bytes) -> bool:
        self.asked.append((worker, data))
        if self.exists:
            connection.setblocking(True)
            threading.Thread(target=self._answer, args=(connection,)).start()
        return self.exists

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"elsewhere\r\n\r\n")
            connection.sendall(b"heard " + connection.recv(100))


def test_a_connection_for_another_worker_is_handed_on_with_what_was_read(loop):
    app = app_of()
    elsewhere = Elsewhere(app.state.openenv)
    with fast(app, loop=loop) as address:
        with shake_hands(address, path="/ws?worker=there") as raw:
            assert read_until(raw, b"\r\n\r\n") == b"elsewhere\r\n\r\n"
            raw.sendall(b"you")
            assert read_until(raw, b"never") == b"heard you"
        assert [worker for worker, _ in elsewhere.asked] == ["there"]
        assert elsewhere.asked[0][1].startswith(b"GET /ws?worker=there HTTP/1.1\r\n")
        assert elsewhere.asked[0][1].endswith(b"\r\n\r\n")
        assert app.state.openenv.active_sessions == 0
        assert takes_the_fast_path(address)


def test_a_connection_that_cannot_be_handed_on_is_closed(loop, monkeypatch, caplog):
    def no_room(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    app = app_of()
    elsewhere = Elsewhere(app.state.openenv)
    with fast(app, loop=loop) as address:
        with monkeypatch.context() as patch:
            patch.setattr("openenv.server.transports.uvicorn.os.dup", no_room)
            with shake_hands(address, path="/ws?worker=there") as raw:
                assert read_until(raw, b"never") == b""
        assert takes_the_fast_path(address)
    assert elsewhere.asked == []
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("path", ["/ws?worker=here", "/ws?worker=gone"])
def test_a_connection_for_this_worker_or_for_none_is_served(loop, path):
    app = app_of()
    elsewhere = Elsewhere(app.state.openenv, exists=False)
    with fast(app, loop=loop) as address:
        assert takes_the_fast_path(address, path)
        talk = Talk(SocketWire(f"ws://{address}{path}", subprotocols=["openenv.v2.json"]))
        assert talk.hello["worker"] == "here"
        talk.wire.close()
    assert {worker for worker, _ in elsewhere.asked} == ({"gone"} if "gone" in path else set())


def secured(address: str, chain: Path) -> ssl.SSLSocket:
    host, port = address.split(":")
    trusting = ssl.create_default_context(cafile=chain)
    return trusting.wrap_socket(socket.create_connection((host, int(port)), timeout=PATIENCE_S), server_hostname=host)


REQUEST = HANDSHAKE.format(path="/ws?worker=there", connection="Upgrade", key="A" * 22 + "==", version="13", more="")


def test_a_tls_connection_for_another_worker_is_passed_on_as_plain_bytes(loop, tmp_path):
    paths = certificate(tmp_path)
    app = app_of()
    elsewhere = Elsewhere(app.state.openenv)
    with fast(app, loop=loop, ssl_certfile=paths.chain, ssl_keyfile=paths.key) as address:
        with secured(address, paths.chain) as raw:
            raw.sendall(REQUEST.encode())
            assert read_until(raw, b"\r\n\r\n") == b"elsewhere\r\n\r\n"
            raw.sendall(b"you")
            assert read_until(raw, b"never") == b"heard you"
        ((worker, request),) = elsewhere.asked
        assert (worker, request.split(b"\r\n")[0]) == ("there", b"GET /ws?worker=there HTTP/1.1")
        assert app.state.openenv.active_sessions == 0


def test_much_is_passed_on_no_faster_than_it_is_taken(loop, tmp_path):
    paths = certificate(tmp_path)
    app = app_of()
    elsewhere = Elsewhere(app.state.openenv)
    much = bytes(8_000_000)
    echoed = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"go on")
            received = 0
            while received < len(much):
                received += len(connection.recv(1_000_000))
            connection.sendall(much)
            echoed.set()

    elsewhere._answer = answer
    with fast(app, loop=loop, ssl_certfile=paths.chain, ssl_keyfile=paths.key) as address:
        with secured(address, paths.chain) as raw:
            raw.sendall(REQUEST.encode())
            assert read_until(raw, b"go on") == b"go on"
            raw.sendall(much)
            assert not echoed.wait(0.2)  # most of it waits for us to read
            received = 0
            while received < len(much):
                received += len(raw.recv(1_000_000))
            assert echoed.wait(PATIENCE_S)


def test_a_tls_connection_ends_with_the_worker_it_was_passed_on_to(loop, tmp_path):
    paths = certificate(tmp_path)
    app = app_of()
    elsewhere = Elsewhere(app.state.openenv)
    elsewhere._answer = socket.socket.close
    with fast(app, loop=loop, ssl_certfile=paths.chain, ssl_keyfile=paths.key) as address:
        with secured(address, paths.chain) as raw:
            raw.sendall(REQUEST.encode())
            assert raw.recv(1) == b""


def test_a_tls_connection_for_a_worker_that_is_gone_is_served(loop, tmp_path):
    paths = certificate(tmp_path)
    app = app_of()
    Elsewhere(app.state.openenv, exists=False)
    with fast(app, loop=loop, ssl_certfile=paths.chain, ssl_keyfile=paths.key) as address:
        for worker in ("here", "gone"):
            # By hand, on one thread: OpenSSL's objects bear no second one, and the client of websockets has it.
            with secured(address, paths.chain) as raw:
                raw.sendall(REQUEST.replace("there", worker).encode())
                assert b" 101 " in read_until(raw, b"\r\n\r\n")
                raw.sendall(frame(TEXT, b'{"type":"step","data":{"number":2}}'))
                assert json.loads(read_frame(raw)[1])["data"]["observation"]["value"] == 2


def test_what_a_client_offers_first_is_spoken():
    with fast(app_of()) as address:
        for offers, chosen in [
            (["openenv.v2.json", "openenv.v2.msgpack"], "openenv.v2.json"),
            (["chat", "openenv.v2.msgpack"], "openenv.v2.msgpack"),
        ]:
            wire = SocketWire(f"ws://{address}/ws", subprotocols=offers)
            assert wire.subprotocol == chosen
            assert Talk(wire).hello["protocol"] == 2
            wire.close()


def test_a_client_that_offers_what_nobody_knows_speaks_v1():
    more = "Sec-WebSocket-Protocol: chat, soap\r\n"
    with fast(app_of()) as address, shake_hands(address, more=more) as raw:
        assert b"sec-websocket-protocol" not in read_until(raw, b"\r\n\r\n").lower()
        raw.sendall(frame(TEXT, b'{"type":"state"}'))
        assert read_frame(raw)[1].startswith(b'{"type":"state"')


def test_binary_messages_in_fragments():
    more = "Sec-WebSocket-Protocol: openenv.v2.msgpack\r\n"
    with fast(app_of()) as address, shake_hands(address, more=more) as raw:
        read_until(raw, b"\r\n\r\n")
        assert read_frame(raw)[0] == BINARY
        raw.sendall(frame(BINARY, b"\x82\xa2id\x01", fin=False) + frame(CONTINUATION, b"\xa2op\xa9heartbeat"))
        opcode, payload = read_frame(raw)
        assert (opcode, msgspec.msgpack.decode(payload)) == (BINARY, {"id": 1, "ok": True})


def test_a_client_that_never_reads_is_left_when_too_much_waits_for_it(caplog, monkeypatch):
    monkeypatch.setattr("openenv.server.transports.picows.LINGER_S", PATIENCE_S)  # to read 64 MiB takes its time
    released = threading.Event()
    monkeypatch.setattr("openenv.server.timers.release_free_memory", released.set)
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of(InlineProbe, max_message_mb=1, max_unsent_mb=64, resume_window_s=0)
    with fast(app) as address:
        with slow_reader(address, kind="large", number=1_000_000) as raw:
            eventually(lambda: "SlowReader" in caplog.text)
            eventually(lambda: app.state.openenv.active_sessions == 0)
            code = close_frame(raw)
            assert code[:2] == struct.pack("!H", 1008)
            assert b"SlowReader" in code
            assert takes_the_fast_path(address)
        assert released.wait(PATIENCE_S)
    assert "max_unsent_mb" in caplog.text


def test_a_client_that_stops_reading_is_left_after_a_while(pings, caplog, monkeypatch):
    monkeypatch.setattr("openenv.server.transports.picows.LINGER_S", PATIENCE_S)
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of(InlineProbe)

    def left() -> bool:
        pings().beats()
        return "SlowReader" in caplog.text

    with fast(app) as address, slow_reader(address, kind="large", number=300_000) as raw:
        (session,) = all_steps_begun(app)
        eventually(left)
        eventually(lambda: session.detached)
        assert close_frame(raw)[:2] == struct.pack("!H", 1008)
    assert "ping_interval_s" in caplog.text


def all_steps_begun(app) -> list[Session]:
    """The session of a slow reader, when only its reading is waited for."""
    eventually(lambda: [session.steps for session in app.state.openenv.manager.sessions] == [100])
    return app.state.openenv.manager.sessions


def test_a_client_that_reads_slowly_but_reads_is_waited_for(pings):
    app = app_of(InlineProbe)
    with fast(app) as address, slow_reader(address, kind="large", number=300_000) as raw:
        (session,) = all_steps_begun(app)
        channel = pings().pulse
        pings().beats(2)  # from now on it is looked at what it takes
        unsent = [channel._lingering.get_write_buffer_size()]

        def look() -> None:
            """Some time has passed, in which it took something."""
            now = channel._lingering.get_write_buffer_size()
            if channel._holds and now < unsent[-1]:
                unsent.append(now)
                pings().beat()

        results = 0
        while results < 101:
            opcode, payload = read_frame(raw)
            if opcode == TEXT:
                results += len(json.loads(payload)["results"])
                pings().on_the_loop(look)
        assert results == 101
        assert len(unsent) > 2
        assert not session.detached


def test_a_client_that_was_not_listened_to_is_asked_before_it_is_cut(pings):
    """While it was held no ping was sent to it, so the silence after that says nothing yet."""
    ProbeEnvironment.forget()
    with (
        fast(app_of(max_in_flight=2)) as address,
        connect(f"ws://{address}/ws", proxy=None) as client,
    ):
        client.send('{"type":"step","data":{"kind":"wait"}}')
        assert ProbeEnvironment.waiting.wait(PATIENCE_S)
        for _ in range(2):  # all that it may send ahead, and nothing more to be read afterwards
            client.send('{"type":"state"}')
        eventually(lambda: pings().pulse._holds)
        pings().beats(3)
        ProbeEnvironment.gate.set()
        for _ in range(3):
            client.recv(PATIENCE_S)
        for _ in range(3):
            pings().beats()
            pings().wait_for_a_sign()
        client.send('{"type":"step","data":{"number":5}}')
        assert json.loads(client.recv(PATIENCE_S))["data"]["observation"]["value"] == 5


def test_a_client_that_has_sent_ahead_is_not_taken_for_dead(pings):
    """While its requests wait for their turn nothing of it is read, its pongs included."""
    ProbeEnvironment.forget()
    with fast(app_of(max_in_flight=2)) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.sendall(frame(TEXT, b'{"type":"step","data":{"kind":"wait"}}'))
        assert ProbeEnvironment.waiting.wait(PATIENCE_S)
        raw.sendall(frame(TEXT, b'{"type":"state"}') * 8)
        eventually(lambda: pings().pulse._holds)
        pings().beats(5)
        ProbeEnvironment.gate.set()
        kinds = [read_frame(raw)[0] for _ in range(9)]
        while kinds.count(TEXT) < 9:
            kinds.append(read_frame(raw)[0])
