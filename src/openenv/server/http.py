"""The HTTP endpoints: facts about the server, and reset, step and state for callers without WebSocket.

A request stands alone: it gets an environment of its own, which is closed with the response.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from ..errors import CapacityError, InvalidAction, OpenEnvError, StepTimeout, Unauthorized, UsageError
from ..protocol import encode_observation, encode_state
from ..sessions.waiting import opened_session, result_of
from ..types import EnvironmentMetadata, HealthResponse, ResetRequest, StepRequest
from .environment_server import HTTPEnvServer
from .metadata import environment_metadata

__all__ = ["health", "metadata", "on_error", "reset", "schema", "state", "step"]

logger = logging.getLogger("openenv.server")

# First match wins: classes before their bases.
_STATUS: tuple[tuple[type[OpenEnvError], int], ...] = (
    (InvalidAction, 422),
    (Unauthorized, 401),
    (UsageError, 400),
    (CapacityError, 503),
    (StepTimeout, 504),
    (OpenEnvError, 500),
)


async def health() -> HealthResponse:
    """Answers while the server's event loop turns."""
    return HealthResponse()


async def metadata(request: Request) -> EnvironmentMetadata:
    """Name, description and README of the environment."""
    return await environment_metadata(_server(request))


async def schema(request: Request) -> dict[str, Any]:
    """JSON Schemas of action, observation and state."""
    return _server(request).schemas


async def reset(request: Request, body: ResetRequest | None = None) -> Response:
    """Makes an environment, resets it and returns the first observation."""
    arguments = body.model_dump(exclude_unset=True) if body else {}
    async with opened_session(_server(request).manager) as session:
        return _json(encode_observation(await result_of(partial(session.reset, arguments))))


async def step(request: Request, body: StepRequest) -> Response:
    """Makes an environment and does one action; for environments whose steps stand alone."""
    server = _server(request)
    try:
        action = TypeAdapter(server.action_cls).validate_python(body.action)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_context=False)) from None
    arguments = body.model_dump(exclude={"action", "request_id"}, exclude_none=True)
    async with opened_session(server.manager) as session:
        return _json(encode_observation(await result_of(partial(session.step_with, action, arguments))))


async def state(request: Request) -> Response:
    """Makes an environment and returns its state."""
    async with opened_session(_server(request).manager) as session:
        return _json(encode_state(await result_of(session.read_state)))


def on_error(request: Request, error: Exception) -> JSONResponse:
    """Every `OpenEnvError` as JSON: the facts of a WebSocket error frame, under an HTTP status."""
    assert isinstance(error, OpenEnvError)
    status = next(status for cls, status in _STATUS if isinstance(error, cls))
    logger.warning(
        "%s %s: %s: %s",
        request.method,
        request.url.path,
        type(error).__name__,
        error.message,
        exc_info=error.__cause__,
    )
    body = {**error.data, **error.facts(), "detail": error.message}
    headers = {"Retry-After": str(round(error.retry_after_s or 1))} if status == 503 else None
    return JSONResponse(body, status_code=status, headers=headers)


def _server(request: Request) -> HTTPEnvServer:
    server = request.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    return server


def _json(payload: bytes) -> Response:
    return Response(payload, media_type="application/json")
