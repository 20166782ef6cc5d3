"""What stand-ins of services share: the HTTP server, the machines of sandboxes, and the gates of their ports."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..ports import held_port
from ..warm import WarmPython


@dataclass
class Fault:
    """Something that goes wrong with the next requests.

    Attributes:
        path: Pattern of their method and path, as "POST /api/jobs/*".
        times: How many of them.
        status: What they are answered; 0 drops the connection instead.
        headers: Of the answer.
        delay_s: Seconds before anything happens.
        after: It is done, and goes wrong then: the request has had its effect.
        message: Of the answer.
    """

    path: str
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    after: bool = False
    message: str = "as it was asked to"


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass
class Request:
    """A request to a stand-in."""

    method: str
    path: str
    queries: dict[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def parts(self) -> list[str]:
        return self.path.strip("/").split("/")

    @property
    def query(self) -> dict[str, str]:
        return {name: values[-1] for name, values in self.queries.items()}

    @property
    def data(self) -> Any:
        return json.loads(self.body or b"null")


class StandIn:
    """A service's HTTP API on loopback. Misbehaves on request.

    Attributes:
        faults: What goes wrong next.
        requests: Method and path of every request.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"place": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hub", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, request: str) -> int:
        """How many requests there were that begin so."""
        return sum(each.startswith(request) for each in self.requests)

    def respond(self, request: Request) -> tuple[int, Any]:
        """Status and body of an answer: bytes with their type, or data. Raises `Refused`."""
        raise NotImplementedError

    def refusal(self, status: int, message: str) -> Any:
        """The body of an answer that is no success."""
        return {"error": message}

    def next_fault(self, asked: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fnmatch.fnmatchcase(asked, fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def process_request(self, request: Any, client_address: Any) -> None:
        given = (request, client_address)
        threading.Thread(target=self.process_request_thread, args=given, name="hub-request", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error."""


class _Handler(BaseHTTPRequestHandler):
    place: StandIn
    protocol_version = "HTTP/1.1"
    timeout = 5
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def _serve(self) -> None:
        body = self._body()
        place = urllib.parse.urlsplit(self.path)
        asked = f"{self.command} {place.path}"
        self.place.requests.append(asked)
        fault = self.place.next_fault(asked)
        if fault is not None:
            time.sleep(fault.delay_s)
            if not fault.after and fault.status:
                self._answer(fault.status, self.place.refusal(fault.status, fault.message), fault.headers)
                return
        query = urllib.parse.parse_qs(place.query)
        try:
            status, told = self.place.respond(Request(self.command, place.path, query, self.headers, body))
        except Refused as refusal:
            status, told = refusal.status, self.place.refusal(refusal.status, str(refusal))
        if fault is not None and not fault.status:
            self.close_connection = True
            return
        if fault is not None and fault.after:
            status, told = fault.status, self.place.refusal(fault.status, fault.message)
        self._answer(status, told, {})

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, told: Any, headers: dict[str, str]) -> None:
        kind, body = told if isinstance(told, tuple) else ("application/json", json.dumps(told).encode())
        self.send_response(status)
        if status == 204:
            self.end_headers()
            return
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Gate:
    """What stands before the ports of sandboxes: asks for a token in the head of the connection's first request.

    Args:
        admit: The port behind it for a head in lower case; None: it is not admitted.

    Attributes:
        heads: What it was shown.
    """

    def __init__(self, admit: Callable[[str], int | None]):
        self._admits = admit
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.heads: list[bytes] = []
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def close(self) -> None:
        """Ends it, with all connections."""
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def cut(self) -> None:
        """Ends all connections, and takes new ones."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _begin(self, call: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=call, args=arguments, name="gate", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(here)
            self._begin(self._admit, here)

    def _admit(self, here: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head and (part := here.recv(65536)):
                head += part
            self.heads.append(head)
            port = self._admits(head.decode("latin-1").lower())
            if port is None:
                here.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                here.close()
                return
            there = self._reach(port)
        except OSError:
            here.close()
            return
        if there is None:
            here.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            here.close()
            return
        there.sendall(head)
        self._begin(_pump, there, here)
        _pump(here, there)

    def _reach(self, port: int) -> socket.socket | None:
        try:
            there = socket.create_connection(("127.0.0.1", port))
        except OSError:
            return None
        self._open.append(there)
        return there


def _pump(source: socket.socket, goal: socket.socket) -> None:
    try:
        while part := source.recv(262144):
            goal.sendall(part)
    except OSError:
        pass
    for each in (source, goal):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class Machine:
    """What runs in a sandbox: shell commands as processes of this machine, in a folder, with one port.

    Args:
        variables: Environment variables of the commands.
        warm: Python with a server's modules: `warm-python FUNCTION ARGUMENTS` in a sandbox is a fork of it.

    Attributes:
        port: What its server listens on; in a real sandbox, that is a port of its own.
    """

    def __init__(self, variables: Mapping[str, str], warm: WarmPython | None = None):
        self.folder = Path(tempfile.mkdtemp(prefix="sandbox-"))
        self._held = contextlib.ExitStack()
        self.port = self._held.enter_context(held_port())
        self._warm = warm
        (self.folder / "bin").mkdir()
        path = f"{self.folder}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.variables = {"PATH": path, "HOME": str(self.folder), "TMPDIR": str(self.folder), **variables}
        if "PORT" in variables:
            self.variables |= {"PORT": str(self.port), "HOST": "127.0.0.1"}
        if warm is not None:
            program = self.folder / "bin" / "warm-python"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -SEP {warm.client} {warm.orders} order "$@"\n')
            program.chmod(0o700)
        self._groups: list[int] = []
        self._over = False

    def run(self, command: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command line by a shell, until the shell ends. Its files below /app are in the folder."""
        process = subprocess.Popen(
            ["sh", "-c", command.replace("/app", f"{self.folder}/app")],
            env=self.variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[] if self._warm is None else [self._warm.orders],
        )
        self._groups.append(process.pid)
        if self._over:
            self._kill()
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def end(self) -> None:
        """Ends all of its processes."""
        self._over = True
        self._kill()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
