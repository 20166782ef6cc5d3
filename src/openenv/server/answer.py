"""Errors as HTTP responses: the facts of a WebSocket error frame, under a status."""

from __future__ import annotations

import math
from http import HTTPStatus

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
from ..protocol.report import error_facts

__all__ = ["answer_to", "raw_answer"]

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


def answer_to(error: OpenEnvError, status: int | None = None) -> JSONResponse:
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


def raw_answer(error: OpenEnvError, status: int | None = None) -> bytes:
    """The same as bytes, for a connection that is closed after them."""
    response = answer_to(error, status)
    number = response.status_code
    lines = [b"HTTP/1.1 %d %b" % (number, HTTPStatus(number).phrase.encode()), b"connection: close"]
    lines += [b"%b: %b" % field for field in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
