"""Middleware of an app: errors as responses, authentication, limits on bodies, and logs without keys."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import errors
from ..errors import OpenEnvError
from ..protocol.errors import MOST_FAULTS, error_facts, too_many_faults
from ..telemetry.metrics import METER
from .auth import HANDSHAKE, KEY_OFFER, Principal, RequestHead, Right, allows, header_fields

if TYPE_CHECKING:
    from .server import EnvironmentServer


# First match wins: classes before their bases.
_STATUS: tuple[tuple[type[OpenEnvError], int], ...] = (
    (errors.InvalidAction, 422),
    (errors.Hidden, 404),
    (errors.Forbidden, 403),
    (errors.TooManyFailures, 429),
    (errors.Unauthorized, 401),
    (errors.MessageTooLarge, 413),
    (errors.UnknownSession, 404),
    (errors.SessionLost, 404),
    (errors.UsageError, 400),
    (errors.CapacityError, 503),
    (errors.StepTimeout, 504),
    (OpenEnvError, 500),
)


def error_response(error: OpenEnvError, status: int | None = None) -> JSONResponse:
    """The response for an error. Without a given status, the class of the error decides it."""
    status = status or next(status for cls, status in _STATUS if isinstance(error, cls))
    headers: dict[str, str] = {}
    if status in {429, 503}:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s or 1))
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    facts = error_facts(error)
    data = facts.pop("data", {})
    detail = facts["message"]
    if isinstance(error, errors.InvalidAction):  # the validation errors, where clients of FastAPI look for them
        detail = data.get("errors") or [{"type": "invalid", "loc": [], "msg": detail}]
    return JSONResponse({**data, **facts, "detail": detail}, status, headers)


def raw_error_response(error: OpenEnvError, status: int | None = None) -> bytes:
    """The response of `error_response` as bytes, for a connection that closes after it."""
    response = error_response(error, status)
    number = response.status_code
    lines = [b"HTTP/1.1 %d %b" % (number, HTTPStatus(number).phrase.encode()), b"connection: close"]
    lines += [b"%b: %b" % field for field in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


logger = logging.getLogger("openenv.server")


def install_error_handlers(app: FastAPI) -> None:
    """Installs these handlers in an app, except where its owner installed others."""
    handlers = app.exception_handlers

    @app.exception_handler(OpenEnvError)
    async def openenv_error(request: Request, error: OpenEnvError) -> JSONResponse:
        """Every `OpenEnvError`: the facts of a WebSocket error frame, under an HTTP status."""
        where, kind = f"{request.method} {request.url.path}", type(error).__name__
        logger.warning("%s: %s: %s", where, kind, error.message, exc_info=error.__cause__)
        METER.failed(error)
        return error_response(error)

    if handlers.get(RequestValidationError) is request_validation_exception_handler:

        @app.exception_handler(RequestValidationError)
        async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
            """A body that does not validate. The response omits the input: JSON may be unable to encode it."""
            shown = [{name: fault.get(name) for name in ("type", "loc", "msg")} for fault in error.errors()]
            if len(shown) > MOST_FAULTS:
                shown = too_many_faults(len(shown))
            return error_response(errors.InvalidAction("the request body is invalid", data={"errors": shown}))

    if Exception not in handlers and 500 not in handlers:

        @app.exception_handler(Exception)
        async def internal_error(request: Request, error: Exception) -> JSONResponse:
            """An unexpected error. The ASGI server writes its traceback to the log."""
            what = f"{request.method} {request.url.path} failed in the server ({type(error).__name__}): see its log"
            return error_response(OpenEnvError(what))


# At level debug, websockets logs every header of a handshake under uvicorn's logger; uvicorn logs each URL.
_LOGGERS = ("uvicorn.error", "uvicorn.access")
_SECRET = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "sec-websocket-protocol",
        "x-openenv-key",
        "x-session-token",
    }
)
_HIDDEN = "(not shown)"
# One field of a query: its name up to the `=`, and its value.
_FIELD = re.compile(r"(?<=[?&;])([^=&;?]*=)([^&;]*)")
# uvicorn logs this with the traceback of a decoder, though it is the client's fault.
_BAD_TEXT = "Invalid UTF-8 sequence received from client."


def _redact(record: logging.LogRecord) -> bool:
    """Replaces the values of headers that may hold keys, and tokens in URLs."""
    match record.args:
        case (str(name), _) if name.strip().lower() in _SECRET:
            record.args = (name, _HIDDEN)
        case tuple(values) if any(isinstance(value, str) and "?" in value for value in values):
            record.args = tuple(
                _FIELD.sub(_redact_field, value) if isinstance(value, str) else value for value in values
            )
    if record.msg == _BAD_TEXT:
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _redact_field(found: re.Match[str]) -> str:
    # A server decodes the name too: `%74oken` is a token.
    return found[1] + (_HIDDEN if unquote(found[1][:-1]).lower() == "token" else found[2])


def redact_logs() -> None:
    """Redacts the logs of the whole process from now on. Idempotent."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_redact)


_PRINCIPAL = "openenv.principal"
PEER = "openenv.peer"
"""Key of an ASGI scope: host and port at the other end of the connection. The scope's `client` comes from a header if
uvicorn trusts the caller (by default, callers on loopback)."""
_OFFERS = b"sec-websocket-protocol"
# Our routes that read a body, some of them to forward the request. Routes of the app's owner have no such limit.
_WITH_BODY = frozenset({"/reset", "/step", "/state", "/mcp", "/sessions", "/web/reset", "/web/step", "/web/state"})
_OF_ONE_SESSION = "/sessions/"
_TASKS = frozenset({"tasks", "num_tasks", "task", "task_range"})
# Close code before acceptance, for servers that cannot answer a handshake with a status.
CLOSE_POLICY = 1008


class AuthMiddleware:
    """ASGI middleware: checks keys and origins, and limits the size of a body and of all bodies in progress.

    Args:
        app: The app behind it.
        server: The server that has the keys.
        is_for_all: Whether a refused request is for something that needs no key.

    Attributes:
        bodies_size: Bytes of the bodies of all requests in progress.
    """

    def __init__(self, app: ASGIApp, server: EnvironmentServer, is_for_all: Callable[[Scope], bool]):
        self._app = app
        self._server = server
        self._is_for_all = is_for_all
        self.bodies_size = 0
        self._with_body = _WITH_BODY | {f"/{server.env_name}/{name}" for name in _TASKS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        body: _LimitedBody | None = None
        try:
            head = _admit(scope, self._server)
            if scope["type"] == "http" and (head.path in self._with_body or head.path.startswith(_OF_ONE_SESSION)):
                body = _LimitedBody(receive, send, self)
                length = head.fields.get(b"content-length", b"")
                if length.isdigit():
                    self.check_body(int(length), int(length))
                receive, send = body.receive, body.send
        except OpenEnvError as error:
            if not self._is_for_all(scope):
                log_refusal(error, request_head(scope))
                if scope["type"] == "websocket":
                    await receive()
                    if "websocket.http.response" not in scope.get("extensions", {}):
                        refused = {"code": CLOSE_POLICY, "reason": type(error).__name__}
                        await send({"type": "websocket.close", **refused})
                        return
                await error_response(error)(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        finally:
            if body is not None:
                self.bodies_size -= body.size

    def check_body(self, size: int, more: int = 0) -> None:
        """Checks a body of `size` bytes, of which `more` are not counted yet.

        Raises:
            MessageTooLarge: It is larger than a message may be.
            TooManyCalls: The other requests leave no room for it.
        """
        settings = self._server.settings
        if size > settings.max_message_bytes:
            limit = f"{settings.max_message_bytes} bytes (max_message_mb, OPENENV_MAX_MESSAGE_MB)"
            raise errors.MessageTooLarge(f"a body of {size} bytes is over the limit of {limit}")
        if self.bodies_size + more > settings.max_unsent_bytes:
            limit = f"{settings.max_unsent_bytes} bytes (max_unsent_mb, OPENENV_MAX_UNSENT_MB)"
            held = f"requests in progress hold {self.bodies_size} bytes"
            raise errors.TooManyCalls(f"{held}, and {more} more would exceed the limit of {limit}: retry later")


def principal_of(scope: MutableMapping[str, Any], server: EnvironmentServer) -> Principal:
    """The client of a request. Checks the request itself if its route was taken out of the app with the middleware.

    Raises:
        Unauthorized: The client may not use the server.
    """
    if _PRINCIPAL not in scope:
        _admit(scope, server)
    principal: Principal = scope[_PRINCIPAL]
    return principal


def server_of(connection: HTTPConnection) -> EnvironmentServer:
    """The server behind an endpoint, for a client that may use it.

    Raises:
        Unauthorized: The middleware did not run for this request, and its client may not use the server.
    """
    server: EnvironmentServer = connection.app.state.openenv
    principal_of(connection.scope, server)
    return server


def may_control(scope: MutableMapping[str, Any], server: EnvironmentServer) -> bool:
    """Whether a request may use the routes that production mode hides."""
    if not server.authenticator.production:
        return True
    principal = scope.get(_PRINCIPAL)
    return isinstance(principal, Principal) and allows(principal.scope, Right.DRIVE)


def log_refusal(error: OpenEnvError, head: RequestHead) -> None:
    """Logs a refusal; after too many wrong keys at level debug, since such a client may retry endlessly."""
    METER.failed(error)
    level = logging.DEBUG if isinstance(error, errors.TooManyFailures) else logging.WARNING
    origin = head.peer[0] if head.peer else "-"
    logger.log(level, "%s from %s: %s: %s", head, origin, type(error).__name__, error.message)


def request_head(scope: MutableMapping[str, Any]) -> RequestHead:
    """The parts of a request that the authenticator reads."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if root and (path == root or path.startswith(f"{root.rstrip('/')}/")):
        path = path[len(root.rstrip("/")) :]
    client, server = scope.get(PEER) or scope.get("client"), scope.get("server")
    return RequestHead(
        scope.get("method", HANDSHAKE) if scope["type"] == "http" else HANDSHAKE,
        path,
        header_fields(scope["headers"]),
        (client[0], client[1]) if client else None,
        server[0] if server else None,
    )


def _admit(scope: MutableMapping[str, Any], server: EnvironmentServer) -> RequestHead:
    head = request_head(scope)
    scope[_PRINCIPAL] = server.authenticator.admit(head)
    if _OFFERS in head.fields:
        offers = head.fields[_OFFERS].decode("latin-1").split(",")
        # Without the key, so that the app neither sees it nor sends it back.
        offers = [offer for offer in offers if not offer.strip().startswith(KEY_OFFER)]
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != _OFFERS]
        if offers:
            headers.append((_OFFERS, ",".join(offers).encode("latin-1")))
        scope["headers"] = headers
        scope["subprotocols"] = [offer.strip() for offer in offers]
    return head


class _LimitedBody:
    """The `receive` of a request. Limits the body to the size of a message.

    Attributes:
        size: Bytes received so far.
    """

    def __init__(self, receive: Receive, send: Send, middleware: AuthMiddleware):
        self._receive = receive
        self._send = send
        self._middleware = middleware
        self.size = 0
        self._refused = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            self._middleware.bodies_size += size
            try:
                self._middleware.check_body(self.size)
            except OpenEnvError as error:
                if not self._refused:
                    # The app's answer to the cut request is not sent.
                    self._refused = True
                    response = error_response(error)
                    response.headers["connection"] = "close"
                    await response({"type": "http"}, self._receive, self._send)
                return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            await self._send(message)
