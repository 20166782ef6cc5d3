"""What a client may take to make a request, in time and in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from openenv.server.transports.uvicorn import FastPath, HTTPProtocol

from .probe import app_of
from .raw import HANDSHAKE, read_until, shake_hands
from .wires import PATIENCE_S, eventually, served

SHORT_S = 0.2


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request) -> str:
    return request.param


def receiving(app: Any, loop: str = "uvloop", **options: Any):
    return served(app, loop=loop, http=HTTPProtocol, ws=FastPath, **options)


def dial(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


@contextlib.contextmanager
def saying(words: bytes, app: Any, loop: str = "uvloop", **options: Any) -> Iterator[socket.socket]:
    """A connection on which that much has been said when the server gets it."""
    raws: list[socket.socket] = []

    def say(address: str) -> None:
        raws.append(dial(address))
        raws[0].sendall(words)

    with receiving(app, loop, first=say, **options), raws[0] as raw:
        yield raw


def read_all(raw: socket.socket) -> bytes:
    return read_until(raw, b"never")


def refusal(raw: socket.socket) -> tuple[int, Any]:
    """The status and the facts of the one answer on a connection, which ends with it."""
    head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)


HALVES = {
    "head": b"GET /health HTTP/1.1\r\nHost: loc",
    "line": b"GE",
    "upgrade": b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    "body": b"POST /step HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "chunk": b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",  # noqa: E501
    "empty lines": b"\r\n\r\n",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_half_a_request_is_answered_with_the_reason(loop, half):
    app = app_of(handshake_timeout_s=SHORT_S)
    with saying(half, app, loop) as raw:
        status, facts = refusal(raw)
        assert status == 408
        assert "0.2 s (handshake_timeout_s, OPENENV_HANDSHAKE_TIMEOUT_S)" in facts["message"]
    assert app.state.openenv.active_sessions == 0


def test_who_says_nothing_is_cut(loop):
    with receiving(app_of(handshake_timeout_s=SHORT_S), loop) as address, dial(address) as raw:
        with pytest.raises(ConnectionResetError):
            if read_all(raw) == b"":
                raise ConnectionResetError


def test_who_says_a_little_now_and_then_is_cut_all_the_same(loop, monkeypatch):
    monkeypatch.setattr("openenv.server.transports.picows.LINGER_S", PATIENCE_S)
    with saying(b"GET /", app_of(handshake_timeout_s=SHORT_S), loop) as raw:
        end = time.monotonic() + PATIENCE_S
        raw.settimeout(0.02)
        received = b""
        while b"\r\n\r\n" not in received:
            assert time.monotonic() < end
            raw.sendall(b"x")
            try:
                received += raw.recv(1000)
            except TimeoutError:
                continue
        assert b" 408 " in received


def test_a_second_request_has_the_same_time(loop):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for second in (b"GET /hea", b"\r\n"):
        app = app_of(handshake_timeout_s=SHORT_S)
        with saying(request, app, loop, timeout_keep_alive=PATIENCE_S) as raw:
            assert read_until(raw, b'"healthy"}').startswith(b"HTTP/1.1 200")
            raw.sendall(second)
            assert refusal(raw)[0] == 408


def test_time_begins_anew_with_each_piece_of_a_body(loop):
    body = b'{"action":{"kind":"ok"}}'
    head = (
        b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    receptions: list[HTTPProtocol] = []

    class Observed(HTTPProtocol):
        def __init__(self, **uvicorns: Any):
            super().__init__(**uvicorns)
            receptions.append(self)

    async def pass_some_time() -> None:
        receptions[0]._due -= PATIENCE_S / 3
        receptions[0]._look()

    app = app_of(handshake_timeout_s=PATIENCE_S)
    with served(app, loop=loop, http=Observed, ws=FastPath) as address, dial(address) as raw:
        raw.sendall(head)
        eventually(lambda: bool(receptions) and receptions[0]._in_body)
        for byte in body:
            # Longer than the time for a head, all together.
            asyncio.run_coroutine_threadsafe(pass_some_time(), receptions[0].loop).result(PATIENCE_S)
            before = receptions[0]._due
            raw.sendall(bytes([byte]))
            eventually(lambda: receptions[0]._due > before or not receptions[0]._in_body)  # noqa: B023
        assert read_until(raw, b"\r\n").startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_longer_than_the_request():
    app = app_of(handshake_timeout_s=SHORT_S)

    @app.get("/slow")
    async def slow() -> PlainTextResponse:
        await asyncio.sleep(3 * SHORT_S)
        return PlainTextResponse("there")

    with saying(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n", app) as raw:
        assert read_until(raw, b"there").startswith(b"HTTP/1.1 200")


def test_a_websocket_is_not_timed():
    key = "A" * 22 + "=="
    handshake = HANDSHAKE.format(path="/ws", connection="Upgrade", key=key, version="13", more="")
    with saying(handshake.encode(), app_of(handshake_timeout_s=SHORT_S)) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.settimeout(3 * SHORT_S)
        with pytest.raises(TimeoutError):
            raw.recv(1)


UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
FLOODS = {
    "many headers": b"".join(b"X-Header-%d: something\r\n" % number for number in range(2000)),
    "a header without end": b"X-Header: " + b"x" * 100_000,
    "a name without end": b"x" * 100_000,
    "a whole head": b"X-Header: " + b"x" * 20_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("upgrade", [b"", UPGRADE], ids=["http", "websocket"])
def test_a_head_over_the_limit_is_431_and_says_so(loop, flood, upgrade):
    with receiving(app_of(max_header_kb=10), loop) as address, dial(address) as raw:
        raw.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\n" + upgrade + flood)
        raw.shutdown(socket.SHUT_WR)
        status, facts = refusal(raw)
        assert (status, facts["error"]) == (431, "MessageTooLarge")
        assert "10240 bytes (max_header_kb, OPENENV_MAX_HEADER_KB)" in facts["message"]


def test_an_address_over_the_limit(loop):
    with receiving(app_of(max_header_kb=10), loop) as address, dial(address) as raw:
        raw.sendall(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refusal(raw)[0] == 431


TRAILS = {
    "many": b"".join(b"X-Trailer-%d: something\r\n" % number for number in range(2000)),
    "one without end": b"X-Trailer: " + b"x" * 100_000,
    "behind a chunk's length": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("trail", TRAILS)
def test_what_follows_a_body_is_limited_too(loop, trail):
    head = b"POST /mine HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    end = b"0\r\n" + TRAILS[trail] if TRAILS[trail] else b"5;" + b"x" * 100_000
    with receiving(app_of(max_header_kb=10), loop) as address, dial(address) as raw:
        raw.sendall(head + b"2\r\n{}\r\n" + end)
        # The app may have answered before it came to that.
        assert read_until(raw, b"\r\n").split()[1] in {b"404", b"431"}
        read_all(raw)


def test_a_head_within_the_limit_and_a_body_over_it(loop):
    body = json.dumps({"action": {"kind": "ok"}, "padding": "x" * 300_000}).encode()
    head = b"POST /step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += b"X-Padding: " + b"x" * 9_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    with receiving(app_of(max_header_kb=10), loop) as address, dial(address) as raw:
        raw.sendall(head + body)
        assert read_until(raw, b"\r\n").startswith(b"HTTP/1.1 200")


def test_requests_that_come_together_are_each_within_the_limit(loop):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 6_000 + b"\r\n\r\n"
    with receiving(app_of(max_header_kb=10), loop) as address, dial(address) as raw:
        raw.sendall(request * 4 + request.replace(b"Host", b"Connection: close\r\nHost"))
        assert read_all(raw).count(b"HTTP/1.1 200") == 5


def test_a_flood_takes_no_memory():
    with receiving(app_of()) as address, dial(address) as raw:
        tracemalloc.start()
        try:
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                for _ in range(1_000_000):
                    raw.sendall(b"x: " + b"y" * 100_000)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


def test_connections_that_are_turned_away_leave_nothing():
    app = app_of(handshake_timeout_s=SHORT_S)
    with receiving(app) as address:
        raws = [dial(address) for _ in range(20)]
        for raw in raws[:10]:
            with contextlib.suppress(ConnectionError):  # its time may be over already
                raw.sendall(b"GET /ws")
        for raw in raws:
            read_all_quietly(raw)
            raw.close()

        def comes_in() -> bool:
            with shake_hands(address) as raw, contextlib.suppress(ConnectionError):
                return b" 101 " in read_until(raw, b"\r\n\r\n")
            return False

        eventually(comes_in)
        eventually(lambda: app.state.openenv.active_sessions == 0)


def read_all_quietly(raw: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        read_all(raw)


def test_an_app_that_is_not_ours_has_the_settings_of_the_process(monkeypatch):
    monkeypatch.setenv("OPENENV_MAX_HEADER_KB", "1")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await receive()
                await send({"type": "lifespan.startup.complete"})
        else:
            await PlainTextResponse("other")(scope, receive, send)

    with served(app, http=HTTPProtocol, ws="none") as address:
        with dial(address) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_all(raw).endswith(b"other")
        with dial(address) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2000 + b"\r\n\r\n")
            assert refusal(raw)[0] == 431
