"""A stand-in of Azure Container Apps' sandboxes, which azure-containerapps-sandbox (0.1) drives, with TLS.

It checks the token, the version of the API, and the fields of each request as the SDK's models write them.
"""

from __future__ import annotations

import ssl
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openenv.providers import ACASandboxProvider

from ..cli.certificates import certificate
from .clouds import KEY, Box, Cloud
from .standin import Gate, Refused, Request

PLACE = {"AZURE_SUBSCRIPTION_ID": "subscription", "AZURE_RESOURCE_GROUP": "resources", "AZURE_SANDBOX_GROUP": "boxes"}
_GROUP = ["subscriptions", "subscription", "resourceGroups", "resources", "sandboxGroups", "boxes", "sandboxes"]
_FIELDS = {"sourcesRef", "resources", "lifecycle", "labels", "environment", "egressPolicy"}


class Credential:
    """A credential as those of azure-identity, for the scope of sandboxes."""

    def get_token(self, *scopes: str, **_: Any) -> Any:
        assert scopes == ("https://dynamicsessions.io/.default",)
        return SimpleNamespace(token=KEY, expires_on=int(time.time()) + 3600)


class Azure(Cloud):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gates: dict[str, Gate] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._certificate = certificate(Path(self._folder.name))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*self._certificate)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)

    def settings(self) -> dict[str, str]:
        return {**PLACE, "REQUESTS_CA_BUNDLE": str(self._certificate.chain)}

    def options(self) -> dict[str, Any]:
        allowed = ACASandboxProvider.deny_all_egress(allow=["models.example"])
        return {"endpoint": f"https://127.0.0.1:{self.port}", "credential": Credential(), "egress_policy": allowed}

    def refusal(self, status: int, message: str) -> Any:
        return {"error": {"code": str(status), "message": message}}

    def close(self) -> None:
        super().close()
        for gate in self.gates.values():
            gate.close()
        self._folder.cleanup()

    def respond(self, request: Request) -> tuple[int, Any]:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            raise Refused(401, "the token has expired")
        if request.query.get("api-version") != "2026-02-01-preview" or request.parts[:7] != _GROUP:
            raise Refused(400, f"no such version, or no such group: {request.path}")
        match request.method, request.parts[7:]:
            case "PUT", []:
                wanted = request.data
                disk, unknown = wanted["sourcesRef"]["diskImage"], wanted.keys() - _FIELDS
                if unknown or not ("id" in disk or disk.get("isPublic")):
                    raise Refused(400, f"invalid sandbox: {sorted(unknown)} {disk}")
                return 200, self.told(self.start(wanted["environment"], wanted["labels"]))
            case "GET", []:
                labels = dict(pair.split("=", 1) for pair in request.query["labels"].split(","))
                return 200, {"value": [self.told(box) for box in self.listed(labels)]}
            case "GET", [box]:
                return 200, self.told(self.box(box))
            case "DELETE", [box]:
                return 202, self.told(self.delete(self.box(box)))
            case "POST", [box, "executeShellCommand"]:
                done = self.running(box).run(request.data["command"])
                return 200, {"exitCode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
            case "POST", [box, "ports", "add"] if request.data == {"port": 8000, "auth": {"anonymous": True}}:
                return 200, {"ports": [{"port": 8000, "url": self._address(self.box(box))}]}
        raise Refused(404, f"no route {request.path}")

    def told(self, box: Box) -> dict[str, Any]:
        states = {"running": "Running", "booting": "Creating", "stopped": "Stopped"}
        return {"id": box.id, "state": states.get(self.stage(box), "Deleting"), "labels": box.labels}

    def _address(self, box: Box) -> str:
        if box.id not in self.gates:
            self.gates[box.id] = Gate(lambda _: self.port_of(box))
        return f"http://127.0.0.1:{self.gates[box.id].port}"
