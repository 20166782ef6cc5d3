"""The HTTP endpoints: facts about the server, and reset, step and state for callers without WebSocket.

A request stands alone: it gets an environment of its own, which is closed with the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from ..errors import OpenEnvError, StepTimeout
from ..metrics import METER
from ..protocol import encode_observation, encode_state
from ..protocol.report import UNSEEDED
from ..sessions import Session
from ..sessions.waiting import opened_session, result_of
from ..types import EnvironmentMetadata, HealthResponse, ResetRequest, StepRequest
from .answer import answer_to
from .environment_server import HTTPEnvServer
from .guard import visitor_of
from .metadata import environment_metadata

__all__ = ["health", "metadata", "on_error", "reset", "schema", "sessions", "state", "step"]

logger = logging.getLogger("openenv.server")

# A request that may take longer need not be timed.
LONGEST_S = 86_400.0


async def health() -> HealthResponse:
    """Answers while the server's event loop turns."""
    return HealthResponse()


async def metadata(request: Request) -> EnvironmentMetadata:
    """Name, description and README of the environment."""
    return await environment_metadata(_server(request))


async def schema(request: Request) -> dict[str, Any]:
    """JSON Schemas of action, observation and state."""
    return _server(request).schemas


async def sessions(request: Request) -> Response:
    """The sessions that there are, of all worker processes."""
    # Not by FastAPI's encoder: ten thousand sessions would keep the event loop for a fifth of a second.
    return _json(msgspec.json.encode(await _server(request).report()))


async def reset(request: Request, body: ResetRequest | None = None) -> Response:
    """Makes an environment, resets it and returns the first observation."""
    arguments = body.model_dump(exclude_unset=True) if body else {}
    async with _session(_server(request), request) as session:
        observation = await result_of(partial(session.reset, arguments))
        notes = None if session.takes_seed_of(arguments) else UNSEEDED
        return _json(encode_observation(observation, notes=notes))


async def step(request: Request, body: StepRequest) -> Response:
    """Makes an environment and does one action; for environments whose steps stand alone.

    With `timeout_s`, all of that is answered within so many seconds.
    """
    server = _server(request)
    try:
        action = TypeAdapter(server.action_cls).validate_python(body.action)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_context=False)) from None
    arguments = body.model_dump(exclude={"action", "request_id"}, exclude_none=True)
    async with _deadline(body.timeout_s), _session(server, request) as session:
        return _json(encode_observation(await result_of(partial(session.step_with, action, arguments))))


async def state(request: Request) -> Response:
    """Makes an environment and returns its state."""
    async with _session(_server(request), request) as session:
        return _json(encode_state(await result_of(session.read_state)))


def on_error(request: Request, error: Exception) -> JSONResponse:
    """Every `OpenEnvError` as JSON: the facts of a WebSocket error frame, under an HTTP status."""
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


@asynccontextmanager
async def _session(server: HTTPEnvServer, request: Request) -> AsyncIterator[Session]:
    """A session for one request, whose call is stopped if the request has no more time for it."""
    visitor = visitor_of(request.scope, server)
    async with opened_session(server.manager, visitor.holder, visitor.peer) as session:
        try:
            yield session
        except asyncio.CancelledError:
            session.stop()
            raise


@asynccontextmanager
async def _deadline(timeout_s: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s and min(timeout_s, LONGEST_S)) as scope:
            yield
    except TimeoutError as error:
        if isinstance(error, OpenEnvError) or not scope.expired():
            raise
        raise StepTimeout(f"no answer within {timeout_s:g} s, the timeout_s of the request") from None


def _server(request: Request) -> HTTPEnvServer:
    server = request.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    visitor_of(request.scope, server)
    return server


def _json(payload: bytes) -> Response:
    return Response(payload, media_type="application/json")
