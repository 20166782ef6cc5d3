"""The HTTP endpoints: facts about the server, and reset, step and state for callers without WebSocket.

A request that names no session stands alone: it gets an environment of its own, which is closed with the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from ..errors import OpenEnvError, StepTimeout
from ..execution import Done
from ..protocol import encode_observation, encode_state
from ..protocol.report import UNSEEDED
from ..sessions import Session
from ..sessions.waiting import opened_session, result_of
from ..types import EnvironmentMetadata, HealthResponse, ResetRequest, StepRequest
from .environment_server import HTTPEnvServer
from .guard import visitor_of
from .http_sessions import Call, in_session, json_response
from .metadata import environment_metadata
from .stay import LONGEST_S

__all__ = ["health", "metadata", "ready", "reset", "schema", "seconds_of", "server_of", "sessions", "state", "step"]


async def health() -> HealthResponse:
    """Answers while the server's event loop turns."""
    return HealthResponse()


async def ready(request: Request) -> Response:
    """Says whether a session can be had here: 503 while workers start, while the server stops, and when each slot is
    held by a call that does not return. A server that is merely full is ready.
    """
    reason = server_of(request).unready
    if reason is None:
        return json_response(b'{"status":"ready"}')
    return json_response(msgspec.json.encode({"status": "not ready", "reason": reason}), 503)


async def metadata(request: Request) -> EnvironmentMetadata:
    """Name, description and README of the environment."""
    return await environment_metadata(server_of(request))


async def schema(request: Request) -> dict[str, Any]:
    """JSON Schemas of action, observation and state."""
    return server_of(request).schemas


async def sessions(request: Request) -> Response:
    """The sessions that there are, of all worker processes."""
    # Not by FastAPI's encoder: ten thousand sessions would keep the event loop for a fifth of a second.
    return json_response(msgspec.json.encode(await server_of(request).report()))


async def reset(request: Request, body: ResetRequest | None = None) -> Response:
    """Starts an episode and returns the first observation: in the session that is named, else in one of its own."""
    server = server_of(request)
    arguments = body.model_dump(exclude_unset=True) if body else {}

    def encode(session: Session, observation: Any) -> bytes:
        notes = None if session.takes_seed_of(arguments) else UNSEEDED
        return encode_observation(observation, notes=notes, complete=True)

    def start(session: Session, done: Done) -> None:
        session.reset(arguments, done)

    call = Call(start, encode, seconds_of(arguments.get("timeout_s")))
    return await in_session(request, server, call) or await _alone(request, server, call)


async def step(request: Request, body: StepRequest) -> Response:
    """Does one action: in the session that is named, else in one of its own, for steps that stand alone.

    With `timeout_s`, all of that is answered within so many seconds.
    """
    server = server_of(request)
    action = server.read_action(body.action)
    arguments = body.model_dump(exclude={"action", "request_id"}, exclude_none=True)

    def start(session: Session, done: Done) -> None:
        session.step_with(action, arguments, done)

    call = Call(start, lambda _, observation: encode_observation(observation, complete=True), body.timeout_s)
    answer = await in_session(request, server, call)
    if answer is None:
        async with _deadline(body.timeout_s):
            answer = await _alone(request, server, call)
    return answer


async def state(request: Request) -> Response:
    """The environment's state: that of the session that is named, else of a new one."""
    server = server_of(request)
    call = Call(Session.read_state, lambda _, state: encode_state(state))
    return await in_session(request, server, call) or await _alone(request, server, call)


async def _alone(request: Request, server: HTTPEnvServer, call: Call) -> Response:
    """Does a call in a session of its own."""
    async with _session(server, request) as session:
        result = await result_of(partial(call.start, session))
        return json_response(call.encode(session, result))


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


def server_of(request: Request) -> HTTPEnvServer:
    """The server behind an endpoint, whose client was let in. Raises `Unauthorized` where the guard did not ask."""
    server = request.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    visitor_of(request.scope, server)
    return server


def seconds_of(value: Any) -> float | None:
    """A time limit among arguments that may hold anything."""
    return float(min(value, LONGEST_S)) if isinstance(value, (int, float)) and value > 0 else None
