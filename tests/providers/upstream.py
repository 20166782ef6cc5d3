"""An application behind the local proxy, on loopback, and a job that is where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as Endpoint
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from openenv.errors import OpenEnvError
from openenv.providers.sandbox.proxy import proxy_of_this_loop
from openenv.providers.sandbox.relay import ProxyTimeouts, SandboxRoute
from openenv.providers.sandbox.service import RemoteSandbox

from ..cli.certificates import Certificate

KEY = "the-key-of-the-deployment"


class Place:
    """A job that a test can end."""

    headers: ClassVar = {"Authorization": "Bearer token-of-the-hub"}

    def __init__(self, url: str):
        self.url = url
        self.looks = 0
        self.end: OpenEnvError | None = None

    async def address(self) -> str:
        self.check()
        return self.url

    async def verify(self) -> None:
        self.looks += 1
        self.check()

    def check(self) -> None:
        if self.end is not None:
            raise self.end


class Upstream:
    """What the application has seen.

    Attributes:
        go: Lets a stream go on.
        left: How connections have ended, as the application was told.
        sent: Messages that a flood has sent so far.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.left: asyncio.Queue[int] = asyncio.Queue()
        self.sent = 0
        self.app = Starlette(
            routes=[
                Endpoint("/echo", self.echo, methods=["GET", "POST", "DELETE"]),
                Endpoint("/stream", self.stream),
                Endpoint("/fail", self.fail),
                Endpoint("/away", self.away),
                Endpoint("/size", self.size, methods=["POST"]),
                WebSocketRoute("/ws", self.talk),
                WebSocketRoute("/refuse", self.refuse),
                WebSocketRoute("/flood", self.flood),
            ]
        )

    async def echo(self, request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items()]
        told = {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "headers": headers,
            "body": (await request.body()).decode(),
        }
        answer = JSONResponse(told, 201)
        answer.headers.append("set-cookie", "a=1")
        answer.headers.append("set-cookie", "b=2")
        return answer

    async def size(self, request: Request) -> Response:
        size = 0
        async for part in request.stream():
            size += len(part)
        return Response(b"x" * size)

    async def stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.left.put_nowait(0)
                raise
            yield b"second"

        return StreamingResponse(parts())

    async def fail(self, request: Request) -> Response:
        return JSONResponse({"error": "mine"}, int(request.query_params["status"]), {"x-own": "yes"})

    async def away(self, request: Request) -> Response:
        return RedirectResponse("/echo?there=1", 307)

    async def talk(self, websocket: WebSocket) -> None:
        offered = websocket.scope["subprotocols"]
        await websocket.accept(offered[-1] if offered else None, headers=[(b"x-own", b"yes")])
        try:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    self.left.put_nowait(message["code"])
                    return
                if (message.get("text") or "").startswith("close"):
                    await websocket.close(int(message["text"].split()[1]), "as asked")
                    return
                if message.get("text") == "headers":
                    await websocket.send_json(dict(websocket.headers))
                elif message.get("text") is not None:
                    await websocket.send_text(message["text"])
                else:
                    await websocket.send_bytes(message["bytes"])
        except WebSocketDisconnect as end:
            self.left.put_nowait(end.code)

    async def refuse(self, websocket: WebSocket) -> None:
        await websocket.send_denial_response(JSONResponse({"error": "mine"}, 418))

    async def flood(self, websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_bytes(bytes(1024 * 1024))
                self.sent += 1
        except (WebSocketDisconnect, RuntimeError):
            self.left.put_nowait(0)


@asynccontextmanager
async def behind_the_proxy(
    patience: ProxyTimeouts | None = None, tls: Certificate | None = None
) -> AsyncIterator[tuple[str, Upstream, Place, SandboxRoute]]:
    """An application behind the proxy: the address to take, the application, its job, and the route."""
    upstream = Upstream()
    config = uvicorn.Config(
        upstream.app,
        port=0,
        log_config=None,
        lifespan="off",
        ws="websockets-sansio",
        ssl_certfile=None if tls is None else str(tls.chain),
        ssl_keyfile=None if tls is None else str(tls.key),
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve())
    await server.listens.wait()
    place = Place(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
    route = SandboxRoute("there", [KEY], cast(RemoteSandbox, place), patience or ProxyTimeouts(), shows_key=True)
    try:
        yield await proxy_of_this_loop().add(route), upstream, place, route
    finally:
        await proxy_of_this_loop().remove(route)
        server.should_exit = server.force_exit = True
        upstream.go.set()
        await serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    def drop(self) -> None:
        """Ends every connection at once, and takes no more."""
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def server_of(url: str) -> str:
    """The address of the proxy itself."""
    return url.rpartition("/")[0]
