"""Registries of images for tests: a real one, and one that has too much to do."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openenv.providers.process import free_port

__all__ = ["PASSWORD", "USER", "refusing", "registry"]

START_S = 10.0
USER, PASSWORD = "tester", "hush-hush-hush"
_HASHED = "$2b$04$vl9fxMZajcmGojfmSQaxeusnzxhpF78SlYIgwLSwTdgYX9wkb9Nru"
"""The password, as the registry is told it."""


@contextlib.contextmanager
def registry(folder: Path, *, locked: bool = False, readonly: bool = False) -> Iterator[str]:
    """Debian's `docker-registry` on loopback; yields `host:port`.

    Args:
        folder: Where it writes.
        locked: Whether it asks who is there: `USER` with `PASSWORD`.
        readonly: Whether it takes no images.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no registry of images: apt-get install docker-registry")
    port = free_port()
    takes = f"maintenance: {{readonly: {{enabled: {str(readonly).lower()}}}}}"
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{folder}/data'}}, {takes}}}\n"
        + (f"auth: {{htpasswd: {{realm: test, path: '{folder}/users'}}}}\n" if locked else "")
    )
    (folder / "users").write_text(f"{USER}:{_HASHED}\n")
    with (folder / "log").open("w") as log:
        child = subprocess.Popen([program, "serve", f"{folder}/config.yml"], stdout=log, stderr=log)
    try:
        limit = time.monotonic() + START_S
        while not _answers(port):
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < limit, "the registry does not answer"
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


@contextlib.contextmanager
def refusing(status: int, code: str) -> Iterator[str]:
    """A registry that answers every question for an image with a refusal; yields `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            welcome = self.path.rstrip("/") == "/v2"
            body = b"{}" if welcome else f'{{"errors":[{{"code":"{code}","message":"not now"}}]}}'.encode()
            self.send_response(200 if welcome else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status in {200, 401}
    except OSError:
        return False
    finally:
        connection.close()
