"""A server of a language model: real HTTP, answers that the test has laid out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["PATIENCE_S", "Answer", "AnswerServer", "answer_server", "chat", "message"]

PATIENCE_S = 15.0


@dataclass
class Answer:
    """One HTTP answer.

    Attributes:
        body: JSON, or text as it is.
        before: Called before it is sent; may wait.
        hang_up: Closes the connection and sends nothing.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], Any] | None = None
    hang_up: bool = False


def chat(content: Any = "hello", **more: Any) -> dict[str, Any]:
    """What the OpenAI API answers."""
    return {"id": "c1", "choices": [{"index": 0, "message": {"role": "assistant", "content": content, **more}}]}


def message(*blocks: dict[str, Any]) -> dict[str, Any]:
    """What Anthropic's API answers."""
    return {"id": "m1", "type": "message", "role": "assistant", "content": list(blocks)}


class AnswerServer:
    """Answers one after the other, the last one for ever.

    Attributes:
        url: Its address.
        requests: What was asked: path, headers with lower-case names, JSON body.
        connections: How many were opened.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0
        self.lock = threading.Lock()

    def will_answer(self, *answers: Any) -> None:
        self.answers = [answer if isinstance(answer, Answer) else Answer(answer) for answer in answers]

    def take(self, path: str, headers: dict[str, str], body: Any) -> Answer:
        with self.lock:
            self.requests.append((path, headers, body))
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def path(self) -> str:
        return self.requests[-1][0]

    @property
    def headers(self) -> dict[str, str]:
        return self.requests[-1][1]

    @property
    def body(self) -> Any:
        return self.requests[-1][2]


@contextmanager
def answer_server() -> Iterator[AnswerServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with served.lock:
                served.connections += 1

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = served.take(self.path, {key.lower(): value for key, value in self.headers.items()}, content)
            if answer.before is not None:
                answer.before()
            if answer.hang_up:
                self.close_connection = True
                return
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            self.send_response(answer.status)
            for name, value in {"content-type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: a client that goes away is part of the tests."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """As above."""

    http = Server(("127.0.0.1", 0), Handler)
    served = AnswerServer(http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        http.shutdown()
        thread.join(PATIENCE_S)
        http.socket.close()
