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
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Engine", "Events", "standing_in"]


class Events(list[dict[str, Any]]):
    """An answer that comes in parts, one after the other."""


class Engine:
    """What the engine has, and what it was asked for.

    Attributes:
        port: Where the server of every container is reached.
        asked: Method and path of each request, without versions and queries.
        made: Bodies of what was to be created, by kind.
        images: Those that are here.
        status: Of every container, and of every task of a service.
        reason: Why tasks are what they are.
        log: What they write.
        refusal: What a start is refused with, if it is.
        clinging: What a stop is refused with, if it is.
        in_swarm: Whether it is in a swarm.
        manages: Whether it is a manager there.
        excuses: Statuses and words that the next attempts to make or change a service are answered with.
        said: What it says while it builds, and while it pushes.
        contexts: What was sent to be built: a tar file each.
    """

    def __init__(self, port: int):
        self.port = port
        self.asked: list[str] = []
        self.made: dict[str, Any] = {}
        self.images = {"img:1", "img"}
        self.status = "running"
        self.reason = "no such program, key hush-hush"
        self.log = "up\n"
        self.refusal: str | None = None
        self.clinging: str | None = None
        self.in_swarm = self.manages = False
        self.excuses: list[tuple[int, str]] = []
        self.said: dict[str, Events] = {}
        self.contexts: list[bytes] = []

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
        state = {"LocalNodeState": "active" if self.in_swarm else "inactive", "ControlAvailable": self.manages}
        return 200, {"Swarm": state}

    def _init(self, _: Any, body: Any) -> tuple[int, Any]:
        self.made["swarm"] = body
        self.in_swarm = self.manages = True
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
        name = unquote(self.asked[-1].removeprefix("GET /images/").removesuffix("/json"))
        if "/distribution/" not in name and name not in self.images:
            return 404, {"message": f"No such image: {name}"}
        digests = [] if name == "built-here" else [f"{name}@sha256:2"]
        return 200, {"Id": "sha256:1", "RepoTags": [name], "RepoDigests": digests, "Size": 1}

    def _build(self, query: Any, body: Any) -> tuple[int, Any]:
        self.made["build"] = {name: values[0] for name, values in query.items()}
        self.contexts.append(body)
        self.images |= {query["t"][0], "sha256:1"}
        return 200, self.said["build"]

    def _push(self, query: Any, _: Any) -> tuple[int, Any]:
        self.made["push"] = {name: values[0] for name, values in query.items()}
        return 200, self.said["push"]

    def _tag(self, query: Any, _: Any) -> tuple[int, Any]:
        self.images.add(f"{query['repo'][0]}:{query['tag'][0]}")
        return 201, None

    def _untag(self, *_: Any) -> tuple[int, Any]:
        self.images.discard(unquote(self.asked[-1].removeprefix("DELETE /images/")))
        return 200, []

    def _start(self, *_: Any) -> tuple[int, Any]:
        return (204, None) if self.refusal is None else (500, {"message": self.refusal})

    def _inspect(self, *_: Any) -> tuple[int, Any]:
        if "container" not in self.made:
            return 404, {"message": "no such container"}
        published = [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}] if self.status == "running" else None
        return 200, {
            "Id": "c1",
            "Name": "/c1",
            "Config": {"Tty": True, "Labels": self.made["container"].get("Labels")},
            "State": {"Status": self.status, "ExitCode": 7},
            "NetworkSettings": {"Ports": {"8000/tcp": published}},
        }

    def _list(self, *_: Any) -> tuple[int, Any]:
        running = "container" in self.made and self.status == "running"
        return 200, [{"Id": "c1"}] if running else []

    def _logs(self, *_: Any) -> tuple[int, Any]:
        return 200, self.log.encode()

    def _parcels(self, *_: Any) -> tuple[int, Any]:
        """The log with a head on each part, as it comes without a terminal."""
        line = b"com.docker.swarm.service.id=s1,com.docker.swarm.task.id=t1 " + self.log.encode()
        return 200, struct.pack(">BxxxL", 1, len(line)) + line

    def _stop(self, *_: Any) -> tuple[int, Any]:
        return (204, None) if self.clinging is None else (500, {"message": self.clinging})

    def _gone(self, *_: Any) -> tuple[int, Any]:
        self.made.pop("container", None)
        self.made.pop("service", None)
        return 204, None

    def _networks(self, *_: Any) -> tuple[int, Any]:
        made = self.made.get("network")
        return 200, [] if made is None else [{"Id": "n1", **made}]

    def _network(self, _: Any, body: Any) -> tuple[int, Any]:
        if body is not None:
            self.made["network"] = body
        return 201, {"Id": "n1", "Name": "net"}

    def _no_network(self, *_: Any) -> tuple[int, Any]:
        return (404, {"message": "no such network"}) if self.made.pop("network", None) is None else (204, None)

    def _make_service(self, _: Any, body: Any) -> tuple[int, Any]:
        if self.excuses:
            status, words = self.excuses.pop(0)
            return status, {"message": words}
        if self.refusal is not None:
            return 500, {"message": self.refusal}
        self.made["service"] = body
        return 200 if self.asked[-1].endswith("update") else 201, {"ID": "s1"}

    def _service(self, *_: Any) -> tuple[int, Any]:
        if "service" not in self.made:
            return 404, {"message": "no such service"}
        ports = [{"Protocol": "tcp", "TargetPort": 8000, "PublishedPort": self.port}]
        about = {"Spec": self.made["service"], "Endpoint": {"Ports": ports}, "Version": {"Index": len(self.asked)}}
        return 200, {"ID": "s1", **about}

    def _services(self, *_: Any) -> tuple[int, Any]:
        return 200, [self._service()[1]] if "service" in self.made else []

    def _nodes(self, *_: Any) -> tuple[int, Any]:
        return 200, [{"ID": "node", "Status": {"Addr": "0.0.0.0"}, "ManagerStatus": {"Addr": "127.0.0.1:2377"}}]

    def _secrets(self, *_: Any) -> tuple[int, Any]:
        return 200, [{"ID": "secret-1", "Spec": {"Name": "of-the-model"}}]

    def _tasks(self, *_: Any) -> tuple[int, Any]:
        if "service" not in self.made:
            return 200, []
        mode = next(iter(self.made["service"]["Mode"].values()))
        port = {"TargetPort": 8000, "PublishedPort": self.port, "PublishMode": "host"}
        status = {"State": self.status, "Err": self.reason, "PortStatus": {"Ports": [port]}}
        task = {"NodeID": "node", "DesiredState": "running", "Status": status}
        return 200, [{"ID": f"t{slot}", "Slot": slot, **task} for slot in range(1, mode["Replicas"] + 1)]


_ROUTES = [
    ("GET /version", "_version"),
    ("GET /_ping", "_version"),
    ("GET /info", "_info"),
    ("POST /swarm/init", "_init"),
    ("GET /swarm", "_swarm"),
    ("GET /networks", "_networks"),
    ("POST /networks/create", "_network"),
    ("GET /networks/.*", "_network"),
    ("DELETE /networks/n1", "_no_network"),
    ("GET /nodes", "_nodes"),
    ("GET /secrets", "_secrets"),
    ("POST /images/create", "_pull"),
    ("POST /build", "_build"),
    ("POST /images/.*/push", "_push"),
    ("POST /images/.*/tag", "_tag"),
    ("DELETE /images/.*", "_untag"),
    ("GET /images/.*/json", "_image"),
    ("GET /distribution/.*/json", "_image"),
    ("POST /containers/create", "_create"),
    ("POST /containers/c1/start", "_start"),
    ("GET /containers/json", "_list"),
    ("GET /containers/c1/json", "_inspect"),
    ("GET /containers/c1/logs", "_logs"),
    ("POST /containers/c1/stop", "_stop"),
    ("DELETE /containers/c1", "_gone"),
    ("GET /services", "_services"),
    ("POST /services/create", "_make_service"),
    ("POST /services/s1/update", "_make_service"),
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
            sent = self.rfile.read(length) if length else None
            is_tar = self.headers.get("Content-Type") == "application/tar"
            body = sent if is_tar or sent is None else json.loads(sent)
            path = re.sub(r"^/v1\.\d+", "", place.path)
            status, answer = engine.answer(self.command, path, parse_qs(place.query), body)
            if isinstance(answer, Events):
                self._stream(answer)
                return
            said = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_DELETE = do_GET

        def _stream(self, events: Events) -> None:
            self.protocol_version = "HTTP/1.1"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            for event in events:
                line = json.dumps(event).encode() + b"\r\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

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
