"""The HTTP server: one asyncio protocol for each connection, faults on demand, and a log of samples."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from .apis import PATHS, BadRequest, answer_bytes, sample
from .policies import POLICIES, ModelReply, Policy, policy_of

FAULTS = ("429", "500", "503", "garbage", "half", "stall", "never", "reset")
_WITH_SAMPLE = (None, "half", "stall")


@dataclass
class Seen:
    """A request."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Sample:
    """A completion that was sampled: its idempotency key, and the fault that befell its delivery."""

    key: str
    model: str
    fault: str | None
    content: str


@dataclass
class ModelServer:
    """What the endpoint does, and what it has seen. A test may change it at any time.

    Attributes:
        policies: Models beside those of `POLICIES`.
        faults: Share of requests that meet each of `FAULTS`.
        planned: Faults of the next requests, in order; None for a good one.
        canned: Answers of the next requests: a JSON value, or the text of a stream.
        refused_fields: Fields of a body that the endpoint does not know.
        retry_after: Header of a 429.
        latency_s: Seconds before each answer.
        key: The key that requests must have; None for any.
        context: Most tokens of prompt and completion.
        log: A file that gets a JSON line for each sample.
        remember: Whether a request with the idempotency key of a sample, also of one in `log`, gets that one again.
        keep: Whether `seen` and `samples` are kept.
        connections: Connections that were opened.
        requests, open_requests, most_requests: Requests so far, those without an answer now, and the most at once.
    """

    policies: Mapping[str, Policy] = field(default_factory=dict)
    faults: Mapping[str, float] = field(default_factory=dict)
    planned: deque[str | None] = field(default_factory=deque)
    canned: deque[Any] = field(default_factory=deque)
    refused_fields: Collection[str] = ()
    retry_after: str = "0"
    latency_s: float = 0.0
    key: str | None = None
    context: int | None = None
    log: Path | None = None
    remember: bool = False
    keep: bool = True
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    connections: int = 0
    requests: int = 0
    open_requests: int = 0
    most_requests: int = 0
    _log_file: int | None = None
    _number: int = 0
    _keys: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.remember and self.log is not None and self.log.exists():
            lines = self.log.read_bytes().splitlines(keepends=True)
            self._keys |= {json.loads(line)["key"] for line in lines if line.endswith(b"\n")}

    def plan(self, *faults: str | None) -> None:
        """Sets the faults of the next requests."""
        self.planned.extend(faults)

    def fault(self) -> str | None:
        """The fault of the next request."""
        if self.planned:
            return self.planned.popleft()
        if not self.faults:
            return None
        kinds = [None, *self.faults]
        return random.choices(kinds, [1 - sum(self.faults.values()), *self.faults.values()])[0]

    def respond(
        self, path: str, headers: dict[str, str], content: bytes, fault: str | None
    ) -> tuple[int, str, bytes]:
        """The status, type and body of an answer."""
        if path == "/v1/models":
            models = [{"id": name, "object": "model"} for name in {**POLICIES, **self.policies}]
            return 200, "application/json", msgspec.json.encode({"object": "list", "data": models})
        try:
            return 200, *self._sample(path, headers, content, fault)
        except BadRequest as refusal:
            error = {"message": str(refusal), "type": refusal.kind, "code": refusal.kind}
            return refusal.status, "application/json", json.dumps({"type": "error", "error": error}).encode()

    def _sample(self, path: str, headers: dict[str, str], content: bytes, fault: str | None) -> tuple[str, bytes]:
        if path not in PATHS:
            raise BadRequest(404, "not_found", f"no such path: {path}")
        body = msgspec.json.decode(content)
        if self.keep:
            self.seen.append(Seen(path, headers, body))
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            raise BadRequest(401, "invalid_api_key", f"Incorrect API key provided: {given}")
        if unknown := [name for name in self.refused_fields if name in body]:
            raise BadRequest(400, "unknown_parameter", f"Unknown parameter: '{unknown[0]}'.")
        if self.canned:
            answer = self.canned.popleft()
            if isinstance(answer, str):
                return "text/event-stream", answer.encode()
            return "application/json", msgspec.json.encode(answer)
        policy = policy_of(body["model"], self.policies)
        if policy is None:
            raise BadRequest(404, "model_not_found", f"The model `{body['model']}` does not exist.")
        self._number += 1
        sampled = sample(path, body, lambda messages, tools: _reply(policy(messages, tools)), self._number)
        needed = len(sampled.prompt_ids) + (body.get("max_tokens") or 0)
        if self.context is not None and needed > self.context:
            said = f"This model's maximum context length is {self.context} tokens. However, you requested {needed}"
            raise BadRequest(400, "context_length_exceeded", said)
        key = headers.get("idempotency-key", "")
        if not self.remember or key not in self._keys:  # a policy answers the same request alike
            self._keys.add(key)
            self._keep(Sample(key, body["model"], fault, sampled.reply.content))
        return "text/event-stream" if body.get("stream") else "application/json", answer_bytes(path, sampled)

    def _keep(self, sample: Sample) -> None:
        if self.keep:
            self.samples.append(sample)
        if self.log is not None:
            if self._log_file is None:
                self._log_file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(self._log_file, msgspec.json.encode(sample) + b"\n")

    def close(self) -> None:
        """Closes the log."""
        if self._log_file is not None:
            os.close(self._log_file)
            self._log_file = None


def _reply(said: ModelReply | str) -> ModelReply:
    return ModelReply(said) if isinstance(said, str) else said


class HttpConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, server: ModelServer, connections: set[HttpConnection]) -> None:
        self.server = server
        self.connections = connections
        self.parser = httptools.HttpRequestParser(self)
        self.waiting: asyncio.TimerHandle | None = None
        self.busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections += 1
        self.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.discard(self)
        if self.waiting is not None:
            self.waiting.cancel()
        self._answered()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.content, self.headers = b"", b"", {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.content += body

    def on_message_complete(self) -> None:
        server = self.server
        server.requests += 1
        server.open_requests += 1
        server.most_requests = max(server.most_requests, server.open_requests)
        self.busy = True
        if server.latency_s:
            self.waiting = asyncio.get_running_loop().call_later(server.latency_s, self.answer)
        else:
            self.answer()

    def answer(self) -> None:
        fault = self.server.fault()
        if fault == "never":
            return
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
            return
        if fault in _WITH_SAMPLE:
            status, kind, body = self.server.respond(
                urlsplit(self.url).path.decode(), self.headers, self.content, fault
            )
        else:
            status, kind, body = _faulty(fault)
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n"
        if status == 429:
            head += f"retry-after: {self.server.retry_after}\r\n"
        if kind == "text/event-stream":
            half = len(body) // 2
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
            data = f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"
        else:
            data = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        if fault in ("half", "stall"):
            data = data[: -len(body) // 2]
        self.transport.write(data)
        if fault == "half":
            self.transport.close()
        if fault != "stall":
            self._answered()

    def _answered(self) -> None:
        if self.busy:
            self.busy = False
            self.server.open_requests -= 1


def _faulty(fault: str) -> tuple[int, str, bytes]:
    if fault == "garbage":
        return 200, "text/html", b"<html>garbage</html>"
    return int(fault), "application/json", b'{"error": {"message": "busy, try again"}}'


def listening(port: int = 0, reuse: bool = False) -> socket.socket:
    """A listening socket on the loopback interface."""
    listener = socket.socket()
    if reuse:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    return listener


async def serve(server: ModelServer, listener: socket.socket, ended: asyncio.Event) -> None:
    """Serves until the event is set."""
    connections: set[HttpConnection] = set()
    loop = asyncio.get_running_loop()
    serving = await loop.create_server(lambda: HttpConnection(server, connections), sock=listener, backlog=4096)
    await ended.wait()
    serving.close()
    for connection in list(connections):
        connection.transport.abort()


@contextmanager
def model_server(**settings: Any) -> Iterator[ModelServer]:
    """An endpoint on a thread of this process.

    Args:
        settings: Those of `ModelServer`.
    """
    import uvloop

    server, listener, loop = ModelServer(**settings), listening(), uvloop.new_event_loop()
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(server, listener, ended)), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        server.close()


@contextmanager
def model_process(*arguments: str) -> Iterator[str]:
    """An endpoint as a program of its own; gives its URL.

    Args:
        arguments: Those of `python -m tests.model_server`.
    """
    command = [sys.executable, "-m", "tests.model_server", *arguments]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=root) as program:
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.terminate()
