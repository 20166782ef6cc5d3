"""The proxy itself: what it breaks, and what it must not break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from .proxy import Proxy

LIMIT_S = 20.0


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets, until the test ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(LIMIT_S)
    ended = threading.Event()
    threads = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    yield listener.getsockname()[1]
    ended.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    acceptor.join()
    for thread in threads:
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo, seed=3) as proxy:
        yield proxy


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT_S)


def rest(connection: socket.socket) -> bytes:
    """All that still comes; the connection ends, by whichever way."""
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data


def echoed(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    found = b""
    while len(found) < len(data):
        found += connection.recv(65536)
    return found


def test_it_changes_nothing_until_it_is_told_to(proxy):
    with connected(proxy) as connection:
        data = bytes(range(256)) * 4000
        assert echoed(connection, data) == data
        assert (proxy.connections, proxy.accepted) == (1, 1)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""


def test_a_doomed_connection_ends_within_its_bytes(proxy):
    with connected(proxy) as connection:
        echoed(connection, b"hello")
        assert proxy.doom(within_bytes=100) == 1
        connection.sendall(b"x" * 1000)
        assert len(rest(connection)) < 100


def test_all_are_cut_also_those_that_are_silent(proxy):
    with connected(proxy) as silent, connected(proxy) as other:
        for connection in (silent, other):
            echoed(connection, b"hello")
        assert proxy.cut_all(patience_s=0.05) == 2
        assert rest(silent) == rest(other) == b""
        assert proxy.connections == 0
    with connected(proxy) as later:
        assert echoed(later, b"again") == b"again"


def test_replies_are_late(proxy):
    with connected(proxy) as connection:
        proxy.delay(0.1)
        began = time.monotonic()
        assert echoed(connection, b"late") == b"late"
        assert time.monotonic() - began >= 0.1


def test_the_end_comes_after_replies_that_are_late(proxy):
    with connected(proxy) as connection:
        echoed(connection, b"hello")
        proxy.delay(0.1)
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b"last words"


def test_some_replies_are_late_and_none_overtakes_another(proxy):
    with connected(proxy) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.delay(0.02, share=0.5)
        sent = bytes(range(200))
        for number in sent[:-1]:
            connection.sendall(bytes([number]))
        found = b""
        connection.sendall(sent[-1:])
        while len(found) < len(sent):
            found += connection.recv(65536)
        assert found == sent


def test_frozen_connections_are_told_nothing(proxy):
    with connected(proxy) as connection:
        echoed(connection, b"hello")
        proxy.freeze()
        connection.sendall(b"held")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.thaw()
        connection.settimeout(LIMIT_S)
        assert connection.recv(16) == b"held"


def test_refused_connections_end_at_once(proxy):
    proxy.refuse()
    with suppress(ConnectionResetError):  # which may come before or after `connect` has returned
        with connected(proxy) as connection:
            assert rest(connection) == b""
    proxy.refuse(False)
    with connected(proxy) as connection:
        assert echoed(connection, b"hello") == b"hello"
