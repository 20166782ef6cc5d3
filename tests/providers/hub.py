"""A stand-in of the Hub's Jobs API: real HTTP on loopback, and jobs that are real processes. Misbehaves on request.

It speaks what huggingface_hub 2.4 sends and reads (`HfApi.run_job`, `inspect_job`, `cancel_job`, `list_jobs`,
`fetch_job_logs`, `whoami`), and checks it: unknown fields, labels the Hub would not take, and missing tokens are
refused. The gate in front of a job's port asks for the token, as that of the Hub does.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..ports import held_port

TOKEN = "hf_stand_in_token_of_a_user"
USER = "tester"
_LABEL = re.compile(r"^[A-Za-z0-9_-]{1,100}$")
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,100}$")
_FIELDS = {
    "command", "arguments", "environment", "flavor", "secrets", "timeoutSeconds", "labels", "expose", "dockerImage",
    "spaceId", "attempts",
}  # fmt: skip


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
    """

    path: str
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    after: bool = False


@dataclass
class Run:
    """A job.

    Attributes:
        body: What it was asked for with.
        secrets: Which nobody is told.
        port: What its process listens on; everywhere else, that is a port of its own container.
        held: What keeps that port for it.
    """

    id: str
    body: dict[str, Any]
    secrets: dict[str, str]
    stage: str = "SCHEDULING"
    message: str | None = None
    process: subprocess.Popen[str] | None = None
    port: int = 0
    gate: Gate | None = None
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    created: str = field(default_factory=lambda: _now())


class Hub:
    """The stand-in.

    Attributes:
        faults: What goes wrong next.
        jobs: Every job there ever was, by its id.
        requests: Method and path of every request.
        schedules: Whether jobs get a machine.
        stage: What jobs get instead of a machine, with its message; None: a machine.
        lost: Jobs that every request is told not to exist.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.jobs: dict[str, Run] = {}
        self.requests: list[str] = []
        self.schedules = True
        self.stage: tuple[str, str] | None = None
        self.lost: set[str] = set()
        self.lock = threading.RLock()
        self._count = 0
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hub", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def alive(self) -> list[Run]:
        """Jobs whose stage is none of the last ones."""
        return [run for run in self.jobs.values() if run.stage in {"SCHEDULING", "RUNNING"}]

    def close(self) -> None:
        """Ends all jobs, and itself."""
        for run in self.jobs.values():
            self.end(run, "DELETED")
            run.held.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kill(self, run: Run) -> None:
        """The machine of a job fails."""
        assert run.process is not None
        self.end(run, "ERROR", "the machine failed")  # which is said before its reader says how the process ended

    def end(self, run: Run, stage: str, message: str | None = None) -> None:
        """A job ends."""
        with self.lock:
            if run.stage in {"SCHEDULING", "RUNNING"}:
                run.stage, run.message = stage, message
        if run.process is not None:
            run.process.kill()
            run.process.wait()
        if run.reader is not None and run.reader is not threading.current_thread():
            run.reader.join()
        if run.gate is not None:
            run.gate.close()

    def count(self, request: str) -> int:
        """How many requests there were that begin so."""
        return sum(each.startswith(request) for each in self.requests)

    # What requests do.

    def run(self, body: dict[str, Any]) -> Run:
        unknown = body.keys() - _FIELDS
        labels = body.get("labels", {})
        bad = [pair for pair in labels.items() if not _fits(*pair)]
        wrong = [key for key in body.get("environment", {}) if not isinstance(body["environment"][key], str)]
        if unknown or bad or wrong or not body.get("command") or not (body.get("dockerImage") or body.get("spaceId")):
            raise Refused(400, f"invalid job: {sorted(unknown)} {bad} {wrong}")
        with self.lock:
            self._count += 1
            secrets = body.pop("secrets", {})
            run = Run(f"6870{self._count:020x}", body, secrets)
            self.jobs[run.id] = run
        if self.stage is not None:
            run.stage, run.message = self.stage
        elif self.schedules:
            self._place(run)
        return run

    def _place(self, run: Run) -> None:
        run.port = run.held.enter_context(held_port())
        ports = run.body.get("expose", {}).get("ports", [])
        variables = {**run.body["environment"], **run.secrets}
        image = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": os.environ["HOME"]}
        if ports:
            assert variables.get("PORT") == str(ports[0]), "the server does not listen on what is exposed"
            variables |= {"PORT": str(run.port), "HOST": "127.0.0.1"}
        try:
            run.process = subprocess.Popen(
                [*run.body["command"], *run.body["arguments"]],
                env={**image, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            run.stage, run.message = "ERROR", str(error)
            return
        if ports:
            run.gate = Gate(run.port)
        with self.lock:
            cancelled, run.stage = run.stage != "SCHEDULING", run.stage if run.stage != "SCHEDULING" else "RUNNING"
        run.reader = threading.Thread(target=self._read, args=(run,), name=f"job-{run.id}", daemon=True)
        run.reader.start()
        if cancelled:
            self.end(run, run.stage)

    def _read(self, run: Run) -> None:
        assert run.process is not None
        assert run.process.stdout is not None
        with run.process.stdout as log:
            for line in log:
                run.lines.append(line.rstrip("\n"))
        code = run.process.wait()
        with self.lock:
            if run.stage == "RUNNING":
                run.stage, run.message = (
                    ("COMPLETED", None) if code == 0 else ("ERROR", f"Job failed with exit code: {code}")
                )
        if run.gate is not None:
            run.gate.close()

    def told(self, run: Run) -> dict[str, Any]:
        """A job, as the Hub tells it."""
        urls = [f"http://127.0.0.1:{run.gate.port}"] if run.gate is not None and run.stage == "RUNNING" else None
        return {
            "id": run.id,
            "createdAt": run.created,
            "dockerImage": run.body.get("dockerImage"),
            "spaceId": run.body.get("spaceId"),
            "command": run.body["command"],
            "arguments": run.body["arguments"],
            "environment": run.body["environment"],
            "secrets": dict.fromkeys(run.secrets, ""),
            "flavor": run.body["flavor"],
            "labels": run.body.get("labels", {}),
            "status": {"stage": run.stage, "message": run.message, "exposeUrls": urls},
            "owner": {"id": "1", "name": USER, "type": "user"},
            "expose": run.body.get("expose"),
        }


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A stand-in, until the block is left."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def process_request(self, request: Any, client_address: Any) -> None:
        given = (request, client_address)
        threading.Thread(target=self.process_request_thread, args=given, name="hub-request", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error."""


def _handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        place = hub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    place: Hub
    protocol_version = "HTTP/1.1"
    timeout = 5

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        place = urllib.parse.urlsplit(self.path)
        self.place.requests.append(f"{self.command} {place.path}")
        fault = self._fault()
        if fault is not None:
            time.sleep(fault.delay_s)
            if not fault.after and fault.status:
                self._answer(fault.status, {"error": "as it was asked to"}, fault.headers)
                return
        try:
            status, told = self._do(place, body)
        except Refused as refusal:
            status, told = refusal.status, {"error": str(refusal)}
        if fault is not None and not fault.status:
            self.close_connection = True
            return
        if fault is not None and fault.after:
            status, told = fault.status, {"error": "as it was asked to"}
        self._answer(status, told, {})

    def _fault(self) -> Fault | None:
        with self.place.lock:
            for fault in self.place.faults:
                asked = f"{self.command} {urllib.parse.urlsplit(self.path).path}"
                if fnmatch.fnmatchcase(asked, fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _do(self, place: urllib.parse.SplitResult, body: bytes) -> tuple[int, Any]:
        hub = self.place
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Invalid credentials")
        match place.path.strip("/").split("/"), self.command:
            case ["api", "whoami-v2"], "GET":
                return 200, {"name": USER, "type": "user"}
            case ["api", "jobs", whose], "POST" if whose == USER:
                return 200, hub.told(hub.run(json.loads(body)))
            case ["api", "jobs", whose], "GET" if whose == USER:
                labels = dict(label.split("=", 1) for label in urllib.parse.parse_qs(place.query).get("label", []))
                found = [run for run in hub.jobs.values() if labels.items() <= run.body.get("labels", {}).items()]
                return 200, [hub.told(run) for run in found]
            case ["api", "jobs", whose, job, *rest], method if whose == USER:
                run = hub.jobs.get(job)
                if run is None or job in hub.lost:
                    raise Refused(404, "Job not found")
                return self._do_with(run, rest, method, place.query)
        raise Refused(403, f"not for {USER}: {self.command} {place.path}")

    def _do_with(self, run: Run, rest: list[str], method: str, query: str) -> tuple[int, Any]:
        if not rest and method == "GET":
            return 200, self.place.told(run)
        if rest == ["cancel"] and method == "POST":
            if run.stage not in {"SCHEDULING", "RUNNING"}:
                raise Refused(400, "Job is not running")
            self.place.end(run, "CANCELED")
            return 200, {}
        if rest == ["logs"] and method == "GET":
            tail = urllib.parse.parse_qs(query).get("tail", [None])[0]
            lines = run.lines[-int(tail) :] if tail is not None else run.lines
            return 200, "".join(f"data: {json.dumps({'data': line, 'timestamp': run.created})}\n\n" for line in lines)
        raise Refused(404, "no such route")

    def _answer(self, status: int, told: Any, headers: dict[str, str]) -> None:
        text = isinstance(told, str)
        body = (told if text else json.dumps(told)).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/event-stream" if text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Gate:
    """What stands before a job's port: asks for the token in the head of the connection's first request.

    Attributes:
        heads: What it was shown.
    """

    def __init__(self, port: int):
        self._port = port
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
            if f"authorization: Bearer {TOKEN}\r\n".lower().encode() not in head.lower():
                here.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                here.close()
                return
            there = self._reach()
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

    def _reach(self) -> socket.socket | None:
        try:
            there = socket.create_connection(("127.0.0.1", self._port))
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


def _fits(name: str, value: str) -> bool:
    return bool(_LABEL.match(name)) and bool((_NAME if name == "name" else _LABEL).match(value))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
