"""Stands before every route of an app, also before those that its owner adds."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import MessageTooLarge, OpenEnvError, TooManyCalls, TooManyFailures
from ..metrics import METER
from ..settings import ServerSettings
from .answer import answer_to
from .keys import Right, allows
from .porter import HANDSHAKE, Head, fields_of, without_keys
from .visitor import Visitor

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["PEER", "Guard", "head_of", "log_refusal", "may_control", "visitor_of"]

logger = logging.getLogger("openenv.server")

_VISITOR = "openenv.visitor"
PEER = "openenv.peer"
"""Key of an ASGI scope: host and port at the other end of the connection. `client` is what a header says, where
uvicorn believes it (of callers on loopback, by default)."""
_OFFERS = b"sec-websocket-protocol"
# Ours that read a body, be it to hand the request on. What an owner's route takes is its own matter.
_WITH_BODY = frozenset({"/reset", "/step", "/state", "/mcp", "/sessions", "/web/reset", "/web/step", "/web/state"})
_OF_ONE_SESSION = "/sessions/"
_TASKS = frozenset({"tasks", "num_tasks", "task", "task_range"})
# Refused before it was accepted; used where a server cannot answer a handshake with a status.
CLOSE_POLICY = 1008


class Guard:
    """ASGI middleware: keys, origins, and the size of bodies, of one request and of all that are being answered.

    Args:
        app: What it stands before.
        server: Whose keys are asked for.
        is_for_all: Says of a request that was refused whether it is for something that everybody may have.
    """

    def __init__(self, app: ASGIApp, server: HTTPEnvServer, is_for_all: Callable[[Scope], bool]):
        self._app = app
        self._server = server
        self._is_for_all = is_for_all
        self._bodies = _Bodies(server.settings)
        self._with_body = _WITH_BODY | {f"/{server.env_name}/{name}" for name in _TASKS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        body: _Body | None = None
        try:
            head = _admit(scope, self._server)
            if scope["type"] == "http" and self._reads_body(head.path):
                body = _Body(receive, send, self._bodies)
                body.expect(head.fields.get(b"content-length", b""))
                receive, send = body.receive, body.send
        except OpenEnvError as error:
            if not self._is_for_all(scope):
                log_refusal(error, head_of(scope))
                await _refuse(error, scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        finally:
            if body is not None:
                self._bodies.size -= body.size

    def _reads_body(self, path: str) -> bool:
        return path in self._with_body or path.startswith(_OF_ONE_SESSION)


def visitor_of(scope: MutableMapping[str, Any], server: HTTPEnvServer) -> Visitor:
    """Who sends a request. One that came past the guard, to routes taken out of their app, is checked here.

    Raises:
        Unauthorized: It may not come in.
    """
    if _VISITOR not in scope:
        _admit(scope, server)
    visitor = scope[_VISITOR]
    assert isinstance(visitor, Visitor)
    return visitor


def may_control(scope: MutableMapping[str, Any], server: HTTPEnvServer) -> bool:
    """Whether a request may have what production mode hides."""
    if not server.porter.production:
        return True
    visitor = scope.get(_VISITOR)
    return isinstance(visitor, Visitor) and allows(visitor.scope, Right.DRIVE)


def log_refusal(error: OpenEnvError, head: Head) -> None:
    """Notes that somebody was not let in; not each time, of somebody who tries all the time."""
    METER.failed(error)
    level = logging.DEBUG if isinstance(error, TooManyFailures) else logging.WARNING
    origin = head.peer[0] if head.peer else "-"
    logger.log(level, "%s from %s: %s: %s", head, origin, type(error).__name__, error.message)


def head_of(scope: MutableMapping[str, Any]) -> Head:
    """What the porter looks at."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if root and (path == root or path.startswith(f"{root.rstrip('/')}/")):
        path = path[len(root.rstrip("/")) :]
    client, server = scope.get(PEER) or scope.get("client"), scope.get("server")
    return Head(
        scope.get("method", HANDSHAKE) if scope["type"] == "http" else HANDSHAKE,
        path,
        fields_of(scope["headers"]),
        (client[0], client[1]) if client else None,
        server[0] if server else None,
    )


def _admit(scope: MutableMapping[str, Any], server: HTTPEnvServer) -> Head:
    head = head_of(scope)
    scope[_VISITOR] = server.porter.admit(head)
    if _OFFERS in head.fields:
        offers = without_keys(head.fields[_OFFERS].decode("latin-1").split(","))
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != _OFFERS]
        if offers:
            headers.append((_OFFERS, ",".join(offers).encode("latin-1")))
        scope["headers"] = headers
        scope["subprotocols"] = [offer.strip() for offer in offers]
    return head


async def _refuse(error: OpenEnvError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await answer_to(error)(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await receive()
        response = answer_to(error)
        start = {"status": response.status_code, "headers": response.raw_headers}
        await send({"type": "websocket.http.response.start", **start})
        await send({"type": "websocket.http.response.body", "body": bytes(response.body)})
    else:
        await receive()
        await send({"type": "websocket.close", "code": CLOSE_POLICY, "reason": type(error).__name__})


class _Bodies:
    """The bodies of all requests that are being answered.

    Attributes:
        size: Their bytes.
    """

    def __init__(self, settings: ServerSettings):
        self.size = 0
        self._limit = settings.max_message_bytes
        self._limit_of_all = settings.max_unsent_bytes

    def check(self, size: int, more: int = 0) -> None:
        """Checks a body of so many bytes, of which `more` are not counted yet.

        Raises:
            MessageTooLarge: It is larger than a message may be.
            TooManyCalls: The other requests leave no room for it.
        """
        if size > self._limit:
            limit = f"{self._limit} bytes (max_message_mb, OPENENV_MAX_MESSAGE_MB)"
            raise MessageTooLarge(f"a body of {size} bytes is over the limit of {limit}")
        if self.size + more > self._limit_of_all:
            limit = f"{self._limit_of_all} bytes (max_unsent_mb, OPENENV_MAX_UNSENT_MB)"
            held = f"the requests that are being answered have {self.size} bytes"
            raise TooManyCalls(f"{held}, and {more} more would be over the limit of {limit}: try again later")


class _Body:
    """Between an app and a request whose body may not be larger than a message.

    Attributes:
        size: Bytes that were received.
    """

    def __init__(self, receive: Receive, send: Send, bodies: _Bodies):
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self.size = 0
        self._refused = False

    def expect(self, length: bytes) -> None:
        """Checks the length that the request names. Raises `MessageTooLarge`, `TooManyCalls`."""
        if length.isdigit():
            self._bodies.check(int(length), int(length))

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            self._bodies.size += size
            try:
                self._bodies.check(self.size)
            except OpenEnvError as error:
                # What the app makes of a request that ends in the middle is not sent.
                await self._answer(error)
                return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            await self._send(message)

    async def _answer(self, error: OpenEnvError) -> None:
        if not self._refused:
            self._refused = True
            response = answer_to(error)
            headers = [*response.raw_headers, (b"connection", b"close")]
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            await self._send({"type": "http.response.body", "body": bytes(response.body)})
