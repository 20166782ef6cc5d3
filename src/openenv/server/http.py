"""The HTTP endpoints: facts about the server, sessions, reset, step and state, and the task API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import messages
from ..errors import OpenEnvError, StepTimeout, UsageError
from ..protocol.encoding import encode_observation, encode_state
from ..protocol.errors import UNSEEDED
from ..runtime.executor import Done
from ..runtime.manager import opened_session, result_of
from ..runtime.session import Session
from ..types import EnvironmentMetadata
from .metadata import environment_metadata
from .middleware import error_response, principal_of, request_head, server_of
from .proxy import forward_to_owner
from .shared_sessions import LONGEST_S, SharedSession, StartCall
from .task_provider import ARGUMENTS, TasksUnsupported, ask_environment, encode_tasks, splits_of

if TYPE_CHECKING:
    from .server import EnvironmentServer

HEADER = "X-Session-ID"
TOKEN_HEADER = "X-Session-Token"  # noqa: S105 - the name of a header
COOKIE = "openenv_session"


async def open_(request: Request) -> Response:
    """Opens a session: later requests name it in the header `X-Session-ID`, or by the cookie of this response."""
    server = server_of(request)
    shared = await server.shared_sessions.open(principal_of(request.scope, server))
    if await request.is_disconnected():  # no client knows its id
        await shared.close()
    manager = server.manager
    slot = {"active_sessions": manager.held, "max_sessions": manager.limits.max_sessions}
    idle = manager.limits.idle_timeout_s
    response = JSONResponse({"session_id": shared.id, "token": shared.token, "slot": slot, "idle_timeout_s": idle})
    set_session_cookie(request, response, shared)
    return response


async def close(request: Request, session_id: str) -> Response:
    """Closes a session. It may be closed again; a session that never existed is unknown."""
    server = server_of(request)
    answer = await forward_to_owner(request, server, session_id)
    if answer is None:
        principal = principal_of(request.scope, server)
        shared = server.shared_sessions.look_up(session_id, principal, request.headers.get(TOKEN_HEADER))
        await shared.close()
        answer = JSONResponse({"session_id": shared.id, "closed": True})
        if request.cookies.get(COOKIE) == shared.id:
            answer.delete_cookie(COOKIE, path=_path(request), httponly=True, samesite="strict")
    return answer


async def shared_session_of(
    request: Request, server: EnvironmentServer, timeout_s: float | None = None
) -> SharedSession | Response | None:
    """The session that a request names, or the response of another worker process if the session is there.

    Args:
        request: Names the session in the header, else in the cookie.
        server: The server that got the request.
        timeout_s: The time limit that the request sets for its call.

    Returns:
        None if the request names no session.

    Raises:
        UnknownSession: No session has that id.
        Unauthorized: The session was opened with another key.
        SessionLost: Its worker process has ended.
    """
    named = request.headers.get(HEADER)
    named = request.cookies.get(COOKIE) if named is None else named
    if named is None:
        return None
    answer = await forward_to_owner(request, server, named, timeout_s)
    if answer is not None:
        return answer
    return server.shared_sessions.find(named, principal_of(request.scope, server), request.headers.get(TOKEN_HEADER))


def set_session_cookie(request: Request, response: Response, shared: SharedSession) -> None:
    """Sets the cookie with which the browser names the session in later requests."""
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, shared.id, path=_path(request), secure=secure, httponly=True, samesite="strict")


def json_response(body: bytes, status: int = 200) -> Response:
    """A response with a body that is already encoded."""
    return Response(body, status, media_type="application/json")


def _path(request: Request) -> str:
    """The path of the app, so that other apps of the same host do not get the cookie."""
    return str(request.scope.get("root_path") or "/")


async def health() -> messages.HealthResponse:
    """Answers as long as the server's event loop runs."""
    return messages.HealthResponse()


async def ready(request: Request) -> Response:
    """Reports whether the server can open sessions. 503 while workers start, while the server stops, and when a call
    that does not return holds each slot. A server that is only full is ready.
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
    """The open sessions of all worker processes."""
    # Not by FastAPI's encoder, which would block the event loop for 0.2 s with 10,000 sessions.
    server = server_of(request)
    found = server.sessions_here() if server.report is None else await server.report()
    return json_response(msgspec.json.encode(found))


async def reset(request: Request, body: messages.ResetRequest | None = None) -> Response:
    """Starts an episode and returns the first observation, in the named session or in a new one."""
    arguments = body.model_dump(exclude_unset=True) if body else {}

    def encode(session: Session, observation: Any) -> bytes:
        notes = None if session.takes_seed_of(arguments) else UNSEEDED
        return encode_observation(observation, notes=notes, complete=True)

    def start(session: Session, done: Done) -> None:
        session.reset(arguments, done)

    return await _call(request, start, encode, seconds_of(arguments.get("timeout_s")))


async def step(request: Request, body: messages.StepRequest) -> Response:
    """Executes one action, in the named session or in a new one, for steps that need no episode.

    With `timeout_s`, the server answers within that many seconds.
    """
    action = server_of(request).read_action(body.action)
    arguments = body.model_dump(exclude={"action", "request_id"}, exclude_none=True)

    def start(session: Session, done: Done) -> None:
        session.step_with(action, arguments, done)

    def encode(session: Session, observation: Any) -> bytes:
        return encode_observation(observation, complete=True)

    return await _call(request, start, encode, body.timeout_s, body.timeout_s)


async def state(request: Request) -> Response:
    """The environment's state, of the named session or of a new one."""
    return await _call(request, Session.read_state, lambda _, state: encode_state(state))


async def _call(
    request: Request,
    start: StartCall,
    encode: Callable[[Session, Any], bytes],
    timeout_s: float | None = None,
    own_timeout_s: float | None = None,
) -> Response:
    """Executes a call in the session that a request names (perhaps in another worker process), or in a new one.

    Args:
        request: May name a session.
        start: Begins the call.
        encode: Encodes the result as the body of the answer, before the session does anything else.
        timeout_s: Seconds that the call may take in a named session; None: no limit.
        own_timeout_s: Seconds for the call in a new session, with the time to open and close it.
    """
    server = server_of(request)
    shared = await shared_session_of(request, server, timeout_s)
    if isinstance(shared, SharedSession):
        return json_response(await shared.call(start, timeout_s, partial(encode, shared.session)))
    if shared is not None:
        return shared
    principal = principal_of(request.scope, server)
    try:
        async with (
            asyncio.timeout(own_timeout_s and min(own_timeout_s, LONGEST_S)) as scope,
            opened_session(server.manager, principal.holder, principal.peer) as session,
        ):
            try:
                return json_response(encode(session, await result_of(partial(start, session))))
            except asyncio.CancelledError:
                session.stop()
                raise
    except TimeoutError as error:
        if isinstance(error, OpenEnvError) or not scope.expired():
            raise
        raise StepTimeout(f"no answer within {own_timeout_s:g} s, the timeout_s of the request") from None


def seconds_of(value: Any) -> float | None:
    """A time limit in seconds, from arguments of any type."""
    return float(min(value, LONGEST_S)) if isinstance(value, (int, float)) and value > 0 else None


_ENDPOINTS = frozenset({"splits", "tasks", "num_tasks", "task", "task_range"})


async def environments(request: Request) -> list[str]:
    """The names of the served environments: one."""
    return [server_of(request).env_name]


async def splits(request: Request) -> Response:
    """The splits of the environment's tasks, each with its name and type."""
    return await _answer_tasks(request, "list_splits", splits_of)


async def tasks(request: Request, body: messages.ListTasksRequest) -> Response:
    """Every task of a split."""
    name = server_of(request).env_name
    return await _answer_tasks(request, "list_tasks", lambda found: {"tasks": found, "env_name": name}, body)


async def num_tasks(request: Request, body: messages.NumTasksRequest) -> Response:
    """The number of tasks in a split."""
    return await _answer_tasks(request, "num_tasks", lambda count: {"num_tasks": count}, body)


async def task(request: Request, body: messages.GetTaskRequest) -> Response:
    """One task of a split, counted from 0."""
    return await _answer_tasks(request, "get_task", lambda found: {"task": found}, body)


async def task_range(request: Request, body: messages.GetTaskRangeRequest) -> Response:
    """The tasks of a split from index `start` up to, but not including, `stop`."""
    return await _answer_tasks(request, "get_task_range", lambda found: {"tasks": found}, body)


async def _answer_tasks(
    request: Request, method: str, fields: Callable[[Any], Any], body: BaseModel | None = None
) -> Response:
    """Asks the environment for its tasks; `fields` turns the answer into the content of the response."""
    server = server_of(request)
    arguments = {} if body is None else {name: getattr(body, name) for name in ARGUMENTS[method]}
    try:
        found = await ask_environment(server, principal_of(request.scope, server), method, **arguments)
    except TasksUnsupported as error:
        return error_response(UsageError(error.message), HTTPStatus.NOT_IMPLEMENTED)
    return json_response(encode_tasks(fields(found)))


def task_route_fallback(otherwise: ASGIApp, served: str) -> ASGIApp:
    """An app for requests that match no route. For tasks of another environment, the error names the served one.

    Args:
        otherwise: Answers all other requests.
        served: The name of the served environment.
    """

    async def fallback(scope: Scope, receive: Receive, send: Send) -> None:
        answer = otherwise
        if scope["type"] == "http":
            _, *names = request_head(scope).path.split("/")
            if len(names) == 2 and names[1] in _ENDPOINTS and names[0] != served:
                unknown = f"no environment {names[0]!r:.80} on this server: it serves {served!r}"
                answer = error_response(UsageError(unknown), HTTPStatus.NOT_FOUND)
        await answer(scope, receive, send)

    return fallback
