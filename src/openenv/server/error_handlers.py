"""Errors as HTTP responses: the facts of a WebSocket error frame under a status, for every route of an app."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from ..errors import (
    CapacityError,
    Forbidden,
    Hidden,
    InvalidAction,
    MessageTooLarge,
    OpenEnvError,
    SessionLost,
    StepTimeout,
    TooManyFailures,
    Unauthorized,
    UnknownSession,
    UsageError,
)
from ..protocol.errors import MOST_FAULTS, error_facts, too_many_faults
from ..telemetry.metrics import METER

# First match wins: classes before their bases.
_STATUS: tuple[tuple[type[OpenEnvError], int], ...] = (
    (InvalidAction, 422),
    (Hidden, 404),
    (Forbidden, 403),
    (TooManyFailures, 429),
    (Unauthorized, 401),
    (MessageTooLarge, 413),
    (UnknownSession, 404),
    (SessionLost, 404),
    (UsageError, 400),
    (CapacityError, 503),
    (StepTimeout, 504),
    (OpenEnvError, 500),
)


def error_response(error: OpenEnvError, status: int | None = None) -> JSONResponse:
    """The response that says what an error says; its status follows from its class if none is given."""
    status = status or next(status for cls, status in _STATUS if isinstance(error, cls))
    headers: dict[str, str] = {}
    if status in {429, 503}:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s or 1))
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    facts = error_facts(error)
    data = facts.pop("data", {})
    detail = facts["message"]
    if isinstance(error, InvalidAction):  # what validation found, where clients of FastAPI look for it
        detail = data.get("errors") or [{"type": "invalid", "loc": [], "msg": detail}]
    return JSONResponse({**data, **facts, "detail": detail}, status, headers)


def raw_error_response(error: OpenEnvError, status: int | None = None) -> bytes:
    """The same as bytes, for a connection that is closed after them."""
    response = error_response(error, status)
    number = response.status_code
    lines = [b"HTTP/1.1 %d %b" % (number, HTTPStatus(number).phrase.encode()), b"connection: close"]
    lines += [b"%b: %b" % field for field in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


logger = logging.getLogger("openenv.server")


def install_error_handlers(app: FastAPI) -> None:
    """Has an app answer so, unless its owner has said otherwise."""
    app.add_exception_handler(OpenEnvError, _openenv_error)
    handlers = app.exception_handlers
    if handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _validation_error)
    if Exception not in handlers and 500 not in handlers:
        app.add_exception_handler(Exception, _internal_error)


def _openenv_error(request: Request, error: Exception) -> JSONResponse:
    """Every `OpenEnvError`: the facts of a WebSocket error frame, under an HTTP status."""
    assert isinstance(error, OpenEnvError)
    logger.warning(
        "%s %s: %s: %s",
        request.method,
        request.url.path,
        type(error).__name__,
        error.message,
        exc_info=error.__cause__,
    )
    METER.failed(error)
    return error_response(error)


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """A body that does not validate. What was sent is not sent back: it may hold what JSON cannot say."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    shown = [{name: fault.get(name) for name in ("type", "loc", "msg")} for fault in faults]
    if len(shown) > MOST_FAULTS:
        shown = too_many_faults(len(shown))
    return error_response(InvalidAction("the request does not validate", data={"errors": shown}))


def _internal_error(request: Request, error: Exception) -> JSONResponse:
    """An unexpected error. The ASGI server writes its traceback to the log."""
    what = f"{request.method} {request.url.path} failed in the server ({type(error).__name__}): see its log"
    return error_response(OpenEnvError(what))
