"""A stand-in for the API server of a Kubernetes cluster, with servers that really run.

What is sent to it is checked by the published schemas, and by the rules beyond them that manifests could break. It
misbehaves on request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from .kubelet import Kubelet
from .rules import breaches, request_faults, restricted
from .schemas import faults_of
from .store import PLURALS, Store, Thing

__all__ = ["Asked", "Cluster", "standing_in"]

NAMESPACE = "training"
_PATH = re.compile(r"/(?:api|apis)/(?P<version>v1|[a-z0-9.]+/v\d+)(?:/namespaces/(?P<namespace>[a-z0-9-]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[a-z0-9.-]+))?(?:/(?P<sub>[a-z]+))?")  # fmt: skip  # noqa: E501
_VERBS = {"GET", "POST", "PATCH", "DELETE"}


@dataclass
class Asked:
    """A request."""

    method: str
    path: str
    parameters: dict[str, str]
    body: Any = None


@dataclass
class Fault:
    """How requests go wrong that match."""

    pattern: str
    how: int | str
    times: int = 1
    after: bool = False
    headers: dict[str, str] = field(default_factory=dict)


class Cluster:
    """What the stand-in has, and what it was asked for.

    Attributes:
        asked: Every request.
        faults: What goes wrong, before or `after` the request: an HTTP status, "slow", "drop" or "nonsense".
        wrong: What was refused as against schema or rules, ever.
        token: What requests must show.
    """

    def __init__(self, version: str = "1.34"):
        self.version = version
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.wrong: list[str] = []
        self.token = secrets.token_urlsafe(16)
        self.url = ""
        self.limit = 10_000
        self.kubeconfig = Path()
        self.keep_alive_s = 5
        # Status and message with which forwarded ports are refused.
        self.no_forwards: tuple[int, str] | None = None
        self.loop: asyncio.AbstractEventLoop
        self.server: uvicorn.Server
        self.store: Store
        self.kubelet: Kubelet
        self._ended: asyncio.Event
        self._cut: asyncio.Event

    def misbehave(self, pattern: str, how: int | str, times: int = 1, after: bool = False, **headers: str) -> None:
        """Has the next requests go wrong whose "METHOD /path" matches."""
        self.faults.append(Fault(pattern, how, times, after, {k.replace("_", "-"): v for k, v in headers.items()}))

    def on_loop(self, call: Any) -> Any:
        """Does something to what the stand-in has, where it lives."""

        async def done() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(10)

    def cut_watches(self, forget: bool = False) -> None:
        """Ends all watches; with `forget`, they cannot go on where they were."""

        def cut() -> None:
            if forget:
                self.store.forget()
            self._cut.set()
            self._cut = asyncio.Event()

        self.on_loop(cut)

    def names(self, kind: str) -> list[str]:
        """What there is of a kind."""
        return [name for each, _, name in list(self.store.things) if each == kind]

    def methods(self, pattern: str) -> list[str]:
        """Requests that match, as "METHOD /path"."""
        return [line for line in (f"{each.method} {each.path}" for each in self.asked) if re.search(pattern, line)]

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self.server.server_state.connections)

    # What is asked for.

    async def lived(self, app: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.store, self._ended, self._cut = Store(), asyncio.Event(), asyncio.Event()
        self.kubelet = Kubelet(self.store)
        self.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, "")

    async def answer(self, request: Request) -> Response:
        parameters = dict(request.query_params)
        raw = await request.body()
        asked = Asked(request.method, request.url.path, parameters, yaml.safe_load(raw) if raw else None)
        self.asked.append(copy.deepcopy(asked))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return refusal(401, "Unauthorized")
        fault = self._fault(asked)
        if fault is None:
            return await self._answer(asked, request)
        if fault.after or fault.how == "slow":
            reply = await self._answer(asked, request)
            if fault.how == "slow":
                await asyncio.sleep(1.0)
                return reply
        if fault.how == "drop":
            # An answer that breaks off.
            return Response(headers={"Content-Length": "100"}, content=b"")
        if fault.how == "nonsense":
            return PlainTextResponse("<html>please log in</html>")
        assert isinstance(fault.how, int)
        return refusal(fault.how, f"the stand-in was told to say {fault.how}", fault.headers)

    def _fault(self, asked: Asked) -> Fault | None:
        for fault in self.faults:
            if fault.times and re.search(fault.pattern, f"{asked.method} {asked.path}"):
                fault.times -= 1
                return fault
        return None

    async def _answer(self, asked: Asked, request: Request) -> Response:
        if asked.path.rstrip("/") == "/version":
            major, _, minor = self.version.partition(".")
            return JSONResponse({"major": major, "minor": minor, "gitVersion": f"v{self.version}.0"})
        found = _PATH.fullmatch(asked.path)
        if found is None or found["plural"] not in PLURALS or asked.method not in _VERBS:
            return refusal(404, f"the server could not find the requested resource {asked.path}")
        version, kind = PLURALS[found["plural"]]
        wrong = request_faults(asked.method, asked.parameters)
        if version != found["version"]:
            wrong.append(f"{kind} is not in {found['version']}")
        if asked.body is not None:
            wrong += self._faults_of(asked.body)
        if wrong:
            return self._refuse(wrong)
        space = found["namespace"] or ""
        reply: Response = await getattr(self, f"_{asked.method.lower()}")(
            asked, request, kind, space, found["name"], found["sub"]
        )
        return reply

    def _refuse(self, wrong: list[str]) -> Response:
        self.wrong += wrong
        return refusal(422, f"invalid: {'; '.join(wrong)}")

    def _faults_of(self, body: Thing) -> list[str]:
        found = faults_of(body, self.version)
        if found or body["kind"] == "DeleteOptions":
            return found
        found = breaches(body)
        spec = body["spec"] if body["kind"] == "Pod" else body.get("spec", {}).get("template", {}).get("spec")
        if spec is not None:
            found += [f'violates PodSecurity "restricted": {each}' for each in restricted(spec)]
        return found

    async def _get(self, asked: Asked, request: Request, kind: str, space: str, name: str, sub: str) -> Response:
        if name:
            thing = self.store.get(kind, space, name)
            if thing is None:
                return refusal(404, f'{asked.path.split("/")[-2]} "{name}" not found')
            return JSONResponse(thing) if not sub else self._log(thing, asked.parameters)
        labels, fields = (asked.parameters.get(each, "") for each in ("labelSelector", "fieldSelector"))
        if asked.parameters.get("watch") == "true":
            since = int(asked.parameters["resourceVersion"])
            return StreamingResponse(self._watch(kind, space, labels, since), media_type="application/json")
        metadata = {"resourceVersion": str(self.store.version)}
        items = self.store.select(kind, space, labels, fields)
        return JSONResponse({"apiVersion": "v1", "kind": f"{kind}List", "metadata": metadata, "items": items})

    async def _watch(self, kind: str, space: str, labels: str, since: int) -> AsyncIterator[bytes]:
        cut = self._cut
        while not cut.is_set() and not self._ended.is_set():
            if since < self.store.forgotten:
                gone = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": 410}
                yield line_of("ERROR", gone | {"reason": "Expired", "message": f"too old resource version: {since}"})
                return
            for version, what, thing in list(self.store.history):
                if version > since:
                    since = version
                    wanted = thing["kind"] == kind and thing["metadata"].get("namespace", "") == space
                    term, _, value = labels.partition("=")
                    if wanted and (not term or thing["metadata"].get("labels", {}).get(term) == value):
                        yield line_of(what, thing)
            changed = [asyncio.ensure_future(each.wait()) for each in (self.store.changed, cut, self._ended)]
            await asyncio.wait(changed, return_when=asyncio.FIRST_COMPLETED)
            for each in changed:
                each.cancel()

    def _log(self, pod: Thing, parameters: dict[str, str]) -> Response:
        name = pod["metadata"]["name"]
        logs = self.kubelet.logs
        if name not in logs:
            return refusal(400, f'container "server" in pod "{name}" is waiting to start: ContainerCreating')
        return PlainTextResponse("".join(list(logs[name])[-int(parameters["tailLines"]) :]))

    async def _post(self, asked: Asked, request: Request, kind: str, space: str, name: str, sub: str) -> Response:
        thing = asked.body
        if self.store.get("Namespace", "", space) is None:
            return refusal(404, f'namespaces "{space}" not found')
        if self.store.get(kind, space, thing["metadata"]["name"]) is not None:
            return refusal(409, f'{kind} "{thing["metadata"]["name"]}" already exists')
        if kind == "Pod" and len(self.names("Pod")) >= self.limit:
            return refusal(403, "exceeded quota: pods")
        self._made(thing, space)
        return JSONResponse(thing, 201)

    async def _patch(self, asked: Asked, request: Request, kind: str, space: str, name: str, sub: str) -> Response:
        if (
            request.headers.get("Content-Type") != "application/apply-patch+yaml"
            or "fieldManager" not in asked.parameters
        ):
            return refusal(415, "only server-side apply is known here")
        there = self.store.get(kind, space, name)
        if there is None:
            if kind != "Namespace" and self.store.get("Namespace", "", space) is None:
                return refusal(404, f'namespaces "{space}" not found')
            self._made(asked.body, space)
            return JSONResponse(asked.body, 201)
        there.update({part: value for part, value in asked.body.items() if part != "metadata"})
        there["metadata"].update(asked.body["metadata"])
        self._made(there, space)
        return JSONResponse(there)

    async def _delete(self, asked: Asked, request: Request, kind: str, space: str, name: str, sub: str) -> Response:
        thing = self.store.get(kind, space, name)
        if thing is None:
            return refusal(404, f'{kind} "{name}" not found')
        options = asked.body or {}
        uid = options.get("preconditions", {}).get("uid")
        if uid not in {None, thing["metadata"]["uid"]}:
            return refusal(409, "the UID in the precondition does not match the UID in record")
        if kind == "Pod":
            self.kubelet.end(thing, options.get("gracePeriodSeconds", thing["spec"]["terminationGracePeriodSeconds"]))
        else:
            self.store.remove(thing)
        return JSONResponse(thing)

    def _made(self, thing: Thing, space: str) -> None:
        self.store.put(thing, space)
        if thing["kind"] == "Pod":
            self.kubelet.start(thing)
        elif thing["kind"] == "Deployment":
            self._follow(thing, space)

    def _follow(self, deployment: Thing, space: str) -> None:
        """Has as many Pods as a Deployment asks for. It counts all as ready once they are made."""
        spec = deployment["spec"]
        wanted, name = spec.get("replicas", 1), deployment["metadata"]["name"]
        labels = ",".join(f"{label}={value}" for label, value in spec["selector"]["matchLabels"].items())
        there = self.store.select("Pod", space, labels)
        for pod in there[wanted:]:
            self.kubelet.end(pod, 1.0)
        for _ in range(wanted - len(there)):
            metadata = {**spec["template"]["metadata"], "name": f"{name}-{secrets.token_hex(3)}"}
            pod_spec = {"restartPolicy": "Always", **spec["template"]["spec"]}
            self._made({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}, space)
        self._watching = asyncio.ensure_future(self._count(deployment, space, labels))

    async def _count(self, deployment: Thing, space: str, labels: str) -> None:
        wanted = deployment["spec"].get("replicas", 1)
        while True:
            pods = self.store.select("Pod", space, labels)
            conditions = [each for pod in pods for each in pod.get("status", {}).get("conditions", [])]
            ready = sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            deployment["status"] = {"replicas": len(pods), "updatedReplicas": len(pods), "availableReplicas": ready}
            deployment["status"]["observedGeneration"] = deployment["metadata"].setdefault("generation", 1)
            if ready >= wanted:
                self.store.put(deployment, space)
                return
            await asyncio.sleep(0.05)

    async def forward(self, socket_: WebSocket) -> None:
        """A port of a Pod, as a WebSocket: each message of a channel, which its first byte names."""
        path = socket_.scope["path"]
        self.asked.append(Asked("WS", path, dict(socket_.query_params)))
        authorized = socket_.headers.get("Authorization") == f"Bearer {self.token}"
        parts = path.split("/")
        pod = self.store.get("Pod", parts[4], parts[6])
        if not authorized or pod is None or "running" not in str(pod["status"].get("containerStatuses")):
            await socket_.send_denial_response(refusal(401 if not authorized else 500, "pod is not running"))
            return
        if self.no_forwards is not None:
            await socket_.send_denial_response(refusal(*self.no_forwards))
            return
        port = int(socket_.query_params["ports"])
        await socket_.accept("v4.channel.k8s.io" if "v4.channel.k8s.io" in socket_.scope["subprotocols"] else None)
        for channel in (0, 1):
            await socket_.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection(pod["status"]["podIP"], port)
        except OSError as error:
            await socket_.send_bytes(b"\x01" + f"connection refused: {error.strerror}".encode())
            await socket_.close()
            return
        inward = asyncio.ensure_future(self._inward(socket_, reader))
        try:
            while message := await socket_.receive_bytes():
                writer.write(message[1:])
                await writer.drain()
        except (WebSocketDisconnect, OSError, RuntimeError):
            pass
        finally:
            inward.cancel()
            writer.close()

    async def _inward(self, socket_: WebSocket, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, RuntimeError, WebSocketDisconnect):
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    await socket_.send_bytes(b"\0" + data)
            await socket_.close()

    async def end(self) -> None:
        self._ended.set()
        await self.kubelet.stop()


def line_of(what: str, thing: Thing) -> bytes:
    return json.dumps({"type": what, "object": thing}).encode() + b"\n"


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    said = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": status}
    return JSONResponse(said | {"message": message}, status, headers)


@contextmanager
def standing_in(cluster: Cluster, folder: Path, chain: Path | None = None, key: Path | None = None) -> Iterator[Path]:
    """The cluster on a port of its own; yields a kubeconfig for it. With a certificate, over TLS."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await cluster.lived(app)
        yield

    routes = [
        WebSocketRoute("/api/v1/namespaces/{namespace}/pods/{name}/portforward", cluster.forward),
        Route("/{path:path}", cluster.answer, methods=sorted(_VERBS)),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        loop="asyncio",
        log_config=None,
        ssl_certfile=chain,
        ssl_keyfile=key,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=cluster.keep_alive_s,
    )
    server = cluster.server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],), name="kubernetes-stand-in")
    thread.start()
    scheme = "http" if chain is None else "https"
    cluster.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    while not server.started:
        assert thread.is_alive(), "the stand-in has not started"
        thread.join(0.01)
    try:
        yield write_kubeconfig(cluster, folder / "kubeconfig", chain)
    finally:
        asyncio.run_coroutine_threadsafe(cluster.end(), cluster.loop).result(20)
        server.should_exit = True
        thread.join()
        listener.close()


def write_kubeconfig(cluster: Cluster, path: Path, chain: Path | None = None) -> Path:
    place: Thing = {"server": cluster.url}
    if chain is not None:
        place["certificate-authority-data"] = base64.b64encode(chain.read_bytes()).decode()
    context = {"cluster": "here", "user": "trainer", "namespace": NAMESPACE}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "here", "cluster": place}],
        "users": [{"name": "trainer", "user": {"token": cluster.token}}],
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path
