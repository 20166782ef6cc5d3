"""Stand-ins of E2B and of Novita, which their SDKs drive: the API, the daemon of sandboxes, and their proxy.

Routes and fields are those of the generated clients in e2b 2.63 and novita-sandbox 2.1 (`api/client`), and of their
protocol with the daemon: Connect's streams of JSON messages (`envd/process`).
"""

from __future__ import annotations

import base64
import json
import struct
import urllib.parse
from typing import Any

from .clouds import Box, Cloud
from .standin import Gate, Refused, Request

_ENVD_PORT = "49983"
_NEVER = "2026-01-01T00:00:00Z"


class E2B(Cloud):
    prefix = "E2B"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = Gate(self._admit)

    def settings(self) -> dict[str, str]:
        values = {"API_KEY": self.key, "API_URL": self.url, "SANDBOX_URL": f"http://127.0.0.1:{self.gate.port}"}
        return {f"{self.prefix}_{name}": value for name, value in values.items()} | {"E2B_HTTP_VERSION": "1.1"}

    def refusal(self, status: int, message: str) -> Any:
        return {"code": status, "message": message}

    def close(self) -> None:
        super().close()
        self.gate.close()

    def respond(self, request: Request) -> tuple[int, Any]:
        box_id = request.headers.get(f"{self.prefix}-Sandbox-Id")
        if box_id is not None:
            return 200, self._execute(box_id, request)
        if request.headers.get("X-API-KEY") != self.key:
            raise Refused(401, "invalid API key")
        match request.method, request.parts:
            case "POST", ["sandboxes"] | ["v2", "sandboxes"]:
                wanted = request.data
                assert wanted["templateID"]
                box = self.start(wanted["envVars"], wanted["metadata"])
                if self.stage(box) == "booting":
                    self.closed.wait()
                return 201, self.told(box)
            case "GET", ["v2", "sandboxes"]:
                labels = urllib.parse.parse_qsl(request.query.get("metadata", ""))
                wanted = {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, value in labels}
                return 200, [self.told(box) for box in self.listed(wanted)]
            case "GET", ["sandboxes", box_id]:
                return 200, self.told(self.box(box_id))
            case "DELETE", ["sandboxes", box_id]:
                self.delete(self.box(box_id))
                return 204, None
        raise Refused(404, f"no route {request.path}")

    def told(self, box: Box) -> dict[str, Any]:
        return {
            "templateID": "base",
            "sandboxID": box.id,
            "clientID": "client",
            "envdVersion": "0.4.0",
            "envdAccessToken": f"for-{box.id}",
            "domain": "sandboxes.example",
            "metadata": box.labels,
            "state": "running",
            "startedAt": _NEVER,
            "endAt": _NEVER,
            "cpuCount": 1,
            "memoryMB": 512,
            "diskSizeMB": 512,
        }

    def _execute(self, box_id: str, request: Request) -> tuple[str, bytes]:
        """Runs a command, as the daemon does: the messages of its stream have a byte of flags and four of length."""
        if request.headers.get("X-Access-Token") != f"for-{box_id}":
            raise Refused(401, "invalid token")
        if request.path != "/process.Process/Start":
            raise Refused(404, f"no route {request.path}")
        process = json.loads(request.body[5:])["process"]
        done = self.running(box_id).run(process["args"][-1])
        said = base64.b64encode(done.stdout.encode()).decode()
        end = {"exitCode": done.returncode, "exited": True, "status": f"exit status {done.returncode}"}
        events = [{"start": {"pid": 1}}, {"data": {"stdout": said}}, {"end": end}]
        messages = [(0, {"event": event}) for event in events] + [(2, {})]
        texts = [(flags, json.dumps(message).encode()) for flags, message in messages]
        return "application/connect+json", b"".join(
            struct.pack(">BI", flags, len(text)) + text for flags, text in texts
        )

    def _admit(self, head: str) -> int | None:
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        port = fields.get(f"{self.prefix}-sandbox-port".lower())
        box = self.boxes.get(fields.get(f"{self.prefix}-sandbox-id".lower(), ""))
        if port == _ENVD_PORT:
            return self.port
        return self.port_of(box) if box is not None and port == "8000" else None


class Novita(E2B):
    prefix = "NOVITA"
