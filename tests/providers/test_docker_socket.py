"""An engine that goes away, seen by those who ask it."""

from __future__ import annotations

import gc
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from openenv.errors import ProviderBusy, ProviderFailed
from openenv.providers.docker_engine import docker_client, docker_errors

pytestmark = pytest.mark.slow

pytest.importorskip("docker")


class Handler(BaseHTTPRequestHandler):
    """As much of an engine as one connects to."""

    def do_GET(self) -> None:
        body = b'{"ApiVersion": "1.41"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def open_sockets() -> int:
    # By their type: to ask a dead weak reference for its class is an error.
    found = [each for each in gc.get_objects() if issubclass(type(each), socket.socket)]
    return sum(each.fileno() >= 0 for each in found)


def test_an_engine_that_went_away_leaves_no_socket_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with ThreadingUnixStreamServer(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        engine = docker_client()
        server.shutdown()
        thread.join()
    failures = []
    before = open_sockets()
    for _ in range(3):
        with pytest.raises(ProviderBusy, match="asking failed: the engine does not answer") as failure:
            with docker_errors("asking", {}):
                engine.info()
        failures.append(failure.value)  # with its traceback, and all that this refers to
        assert open_sockets() <= before
    engine.close()


def test_no_engine_leaves_no_socket_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    before = open_sockets()
    with pytest.raises(ProviderFailed, match="no Docker engine answers"):
        docker_client()
    assert open_sockets() <= before  # one of other tests may have gone meanwhile
