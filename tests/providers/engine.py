"""A stand-in for the Docker engine: its HTTP API, as far as our providers use it, with servers that run already."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Engine", "standing_in"]


class Engine:
    """What the engine has, and what it was asked for.

    Attributes:
        port: Where the server of every container is reached.
        asked: Method and path of each request, without versions and queries.
        made: Bodies of what was to be created, by kind.
        images: Those that are here.
        status: Of every container, and of every task of a service.
        log: What they write.
        refusal: What a start is refused with, if it is.
        clinging: What a stop is refused with, if it is.
    """

    def __init__(self, port: int):
        self.port = port
        self.asked: list[str] = []
        self.made: dict[str, Any] = {}
        self.images = {"img:1", "img"}
        self.status = "running"
        self.log = "up\n"
        self.refusal: str | None = None
        self.clinging: str | None = None
        self.in_swarm = False

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """The status and body of an answer."""
        self.asked.append(f"{method} {path}")
        for pattern, name in _ROUTES:
            if re.fullmatch(pattern, f"{method} {path}"):
                found: tuple[int, Any] = getattr(self, name)(query, body)
                return found
        return 404, {"message": f"the stand-in has no {method} {path}"}

    def _version(self, *_: Any) -> tuple[int, Any]:
        return 200, {"ApiVersion": "1.41", "Version": "20.10"}

    def _info(self, *_: Any) -> tuple[int, Any]:
        return 200, {"Swarm": {"LocalNodeState": "active" if self.in_swarm else "inactive"}}

    def _init(self, _: Any, body: Any) -> tuple[int, Any]:
        self.made["swarm"] = body
        self.in_swarm = True
        return 200, "node"

    def _swarm(self, *_: Any) -> tuple[int, Any]:
        return 200, {"ID": "swarm"}

    def _create(self, query: Any, body: Any) -> tuple[int, Any]:
        if body["Image"] not in self.images:
            return 404, {"message": f"No such image: {body['Image']}"}
        self.made["container"] = {"Name": query["name"][0], **body}
        return 201, {"Id": "c1"}

    def _pull(self, query: Any, _: Any) -> tuple[int, Any]:
        image = f"{query['fromImage'][0]}:{query['tag'][0]}"
        if "nothing" in image:
            return 404, {"message": f"pull access denied for {image}"}
        self.images.add(image)
        return 200, {"status": "done"}

    def _image(self, *_: Any) -> tuple[int, Any]:
        return 200, {"Id": "sha256:1", "RepoTags": []}

    def _start(self, *_: Any) -> tuple[int, Any]:
        return (204, None) if self.refusal is None else (500, {"message": self.refusal})

    def _inspect(self, *_: Any) -> tuple[int, Any]:
        if "container" not in self.made:
            return 404, {"message": "no such container"}
        published = [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}] if self.status == "running" else None
        return 200, {
            "Id": "c1",
            "Name": "/c1",
            "Config": {"Tty": True},
            "State": {"Status": self.status, "ExitCode": 7},
            "NetworkSettings": {"Ports": {"8000/tcp": published}},
        }

    def _logs(self, *_: Any) -> tuple[int, Any]:
        return 200, self.log.encode()

    def _parcels(self, *_: Any) -> tuple[int, Any]:
        """The log with a head on each part, as it comes without a terminal."""
        return 200, struct.pack(">BxxxL", 1, len(self.log)) + self.log.encode()

    def _stop(self, *_: Any) -> tuple[int, Any]:
        return (204, None) if self.clinging is None else (500, {"message": self.clinging})

    def _gone(self, *_: Any) -> tuple[int, Any]:
        self.made.pop("container", None)
        self.made.pop("service", None)
        return 204, None

    def _networks(self, *_: Any) -> tuple[int, Any]:
        return 200, []

    def _network(self, _: Any, body: Any) -> tuple[int, Any]:
        if body is not None:
            self.made["network"] = body
        return 201, {"Id": "n1", "Name": "net"}

    def _make_service(self, _: Any, body: Any) -> tuple[int, Any]:
        if self.refusal is not None:
            return 500, {"message": self.refusal}
        self.made["service"] = body
        return 201, {"ID": "s1"}

    def _service(self, *_: Any) -> tuple[int, Any]:
        if "service" not in self.made:
            return 404, {"message": "no such service"}
        ports = [{"Protocol": "tcp", "TargetPort": 8000, "PublishedPort": self.port}]
        return 200, {"ID": "s1", "Spec": self.made["service"], "Endpoint": {"Ports": ports}}

    def _tasks(self, *_: Any) -> tuple[int, Any]:
        return 200, [{"ID": "t1", "Status": {"State": self.status, "Err": "no such program, key hush-hush"}}]


_ROUTES = [
    ("GET /version", "_version"),
    ("GET /_ping", "_version"),
    ("GET /info", "_info"),
    ("POST /swarm/init", "_init"),
    ("GET /swarm", "_swarm"),
    ("GET /networks", "_networks"),
    ("POST /networks/create", "_network"),
    ("GET /networks/.*", "_network"),
    ("POST /images/create", "_pull"),
    ("GET /images/.*/json", "_image"),
    ("GET /distribution/.*/json", "_image"),
    ("POST /containers/create", "_create"),
    ("POST /containers/c1/start", "_start"),
    ("GET /containers/c1/json", "_inspect"),
    ("GET /containers/c1/logs", "_logs"),
    ("POST /containers/c1/stop", "_stop"),
    ("DELETE /containers/c1", "_gone"),
    ("POST /services/create", "_make_service"),
    ("GET /services/s1", "_service"),
    ("GET /services/s1/logs", "_parcels"),
    ("GET /tasks", "_tasks"),
    ("DELETE /services/s1", "_gone"),
]


@contextmanager
def standing_in(engine: Engine) -> Iterator[str]:
    """The engine on a port of its own; yields what DOCKER_HOST is to say."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = re.sub(r"^/v1\.\d+", "", place.path)
            status, answer = engine.answer(self.command, path, parse_qs(place.query), body)
            said = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
