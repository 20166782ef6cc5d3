"""What is asked of servers that were launched. `tests/real/test_bench_launched.py` has real ones."""

from __future__ import annotations

import socket
import threading

import pytest

from openenv.bench.scale import _is_busy

# What a server shows of its sessions.
METRICS = b"openenv_slots_held %.1f\nopenenv_slots_limit 4.0\nopenenv_queue_length 0.0\n"


@pytest.mark.parametrize(
    ("answer", "busy"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + METRICS % 2, True),
        (b"HTTP/1.1 200 OK\r\n\r\n" + METRICS % 0, False),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nopenenv_slots_held 2.0\n", False),
        (b"nonsense\r\n\r\n", False),
        (b"", False),
    ],
    ids=["busy", "idle", "says nothing", "has no metrics", "dies in the middle", "speaks no HTTP", "dies at once"],
)
def test_a_server_is_busy_if_it_says_so(answer: bytes, busy: bool) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        assert _is_busy(f"http://127.0.0.1:{listener.getsockname()[1]}", None) is busy
        server.join()
