"""A stand-in of Daytona, which the daytona SDK (0.226) drives: its API, the toolbox of sandboxes, and port previews.

The routes and fields are those of the SDK's generated clients (`daytona_api_client`, `daytona_toolbox_api_client`).
"""

from __future__ import annotations

import json
from typing import Any

from .clouds import Box, Cloud
from .standin import Gate, Refused, Request


class Daytona(Cloud):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gates: dict[str, Gate] = {}

    def settings(self) -> dict[str, str]:
        return {"DAYTONA_API_KEY": self.key, "DAYTONA_API_URL": self.url}

    def refusal(self, status: int, message: str) -> Any:
        return {"statusCode": status, "message": message, "source": "DAYTONA_API"}

    def close(self) -> None:
        super().close()
        for gate in self.gates.values():
            gate.close()

    def respond(self, request: Request) -> tuple[int, Any]:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            raise Refused(401, "Invalid credentials")
        match request.method, request.parts:
            case "POST", ["sandbox"]:
                wanted = request.data
                if "dockerfileContent" not in wanted.get("buildInfo", {}) and not wanted.get("snapshot"):
                    raise Refused(400, "neither snapshot nor buildInfo")
                return 200, self.told(self.start(wanted["env"], wanted["labels"]))
            case "GET", ["sandbox"]:
                labels = json.loads(request.query.get("labels", "{}"))
                return 200, {"items": [self.told(box) for box in self.listed(labels)]}
            case "GET", ["sandbox", box]:
                return 200, self.told(self.box(box))
            case "DELETE", ["sandbox", box]:
                return 200, self.told(self.delete(self.box(box)))
            case "GET", ["sandbox", box, "ports", port, "preview-url"]:
                return 200, {"sandboxId": box, "url": self._preview(self.box(box), int(port)), "token": f"for-{box}"}
            case "POST", ["toolbox", box, "process", "execute"]:
                done = self.running(box).run(request.data["command"], request.data.get("timeout"))
                return 200, {"exitCode": done.returncode, "result": done.stdout + done.stderr}
        raise Refused(404, f"no route {request.path}")

    def told(self, box: Box) -> dict[str, Any]:
        return {
            "id": box.id,
            "organizationId": "organization",
            "name": box.id,
            "user": "daytona",
            "env": {},
            "labels": box.labels,
            "public": False,
            "networkBlockAll": False,
            "kvm": False,
            "target": "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": {"running": "started", "booting": "creating", "stopped": "stopped"}.get(
                self.stage(box), "destroyed"
            ),
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }

    def _preview(self, box: Box, port: int) -> str:
        assert port == 8000
        token = f"x-daytona-preview-token: for-{box.id}\r\n".lower()
        if box.id not in self.gates:
            self.gates[box.id] = Gate(lambda head: self.port_of(box) if token in head else None)
        return f"http://127.0.0.1:{self.gates[box.id].port}"
