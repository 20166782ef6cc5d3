"""What an app answers when a request fails: always the facts of an error, as JSON."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from ..errors import InvalidAction, OpenEnvError
from ..metrics import METER
from ..protocol.report import MOST_FAULTS, too_many_faults
from .answer import answer_to

__all__ = ["answer_faults"]

logger = logging.getLogger("openenv.server")


def answer_faults(app: FastAPI) -> None:
    """Has an app answer so, unless its owner has said otherwise."""
    app.add_exception_handler(OpenEnvError, _failed)
    handlers = app.exception_handlers
    if handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _invalid)
    if Exception not in handlers and 500 not in handlers:
        app.add_exception_handler(Exception, _unexpected)


def _failed(request: Request, error: Exception) -> JSONResponse:
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
    return answer_to(error)


def _invalid(request: Request, error: Exception) -> JSONResponse:
    """A body that does not validate. What was sent is not sent back: it may hold what JSON cannot say."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    told = [{name: fault.get(name) for name in ("type", "loc", "msg")} for fault in faults]
    if len(told) > MOST_FAULTS:
        told = too_many_faults(len(told))
    return answer_to(InvalidAction("the request does not validate", data={"errors": told}))


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """What nobody expected. The server's log gets the traceback, from whoever runs the app."""
    what = f"{request.method} {request.url.path} failed in the server ({type(error).__name__}): see its log"
    return answer_to(OpenEnvError(what))
