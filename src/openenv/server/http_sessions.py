"""Sessions over HTTP: how one is opened, named by later requests, and closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from ..sessions import Session
from .environment_server import HTTPEnvServer
from .forward import forwarded
from .guard import visitor_of
from .stays import Start, Stay

__all__ = [
    "COOKIE",
    "HEADER",
    "TOKEN_HEADER",
    "Call",
    "close",
    "in_session",
    "json_response",
    "open_",
    "remember",
    "stay_of",
]

HEADER = "X-Session-ID"
TOKEN_HEADER = "X-Session-Token"  # noqa: S105 - the name of a header
COOKIE = "openenv_session"


class Call(NamedTuple):
    """What a request wants done with its session.

    Attributes:
        start: Begins it.
        encode: Makes the body of the answer of its result, before the session does anything else.
        timeout_s: Seconds that it may take; None: without end.
    """

    start: Start
    encode: Callable[[Session, Any], bytes]
    timeout_s: float | None = None


async def open_(request: Request) -> Response:
    """Opens a session: later requests name it in the header `X-Session-ID`, or by the cookie that comes with this."""
    server = _server(request)
    stay = await server.stays.open(visitor_of(request.scope, server))
    if await request.is_disconnected():  # nobody will ever name it
        await stay.close()
    manager = server.manager
    slot = {"active_sessions": manager.held, "max_sessions": manager.limits.max_sessions}
    idle = manager.limits.idle_timeout_s
    response = JSONResponse({"session_id": stay.id, "token": stay.token, "slot": slot, "idle_timeout_s": idle})
    remember(request, response, stay)
    return response


async def close(request: Request, session_id: str) -> Response:
    """Closes a session. Closing it again is no error; one that never was is unknown."""
    server = _server(request)
    answer = await forwarded(request, server, session_id)
    if answer is None:
        visitor = visitor_of(request.scope, server)
        stay = server.stays.look_up(session_id, visitor, request.headers.get(TOKEN_HEADER))
        await stay.close()
        answer = JSONResponse({"session_id": stay.id, "closed": True})
        if request.cookies.get(COOKIE) == stay.id:
            answer.delete_cookie(COOKIE, path=_path(request), httponly=True, samesite="strict")
    return answer


async def in_session(request: Request, server: HTTPEnvServer, call: Call) -> Response | None:
    """Does a call in the session that a request names; in another worker process if it is there.

    Returns:
        The response; None if the request names no session.

    Raises:
        UnknownSession: There is none of that name.
        Unauthorized: It was opened with another key.
        OpenEnvError: What the call failed with.
    """
    stay = await stay_of(request, server, call.timeout_s)
    if not isinstance(stay, Stay):
        return stay
    return json_response(await stay.call(call.start, call.timeout_s, partial(call.encode, stay.session)))


async def stay_of(request: Request, server: HTTPEnvServer, timeout_s: float | None = None) -> Stay | Response | None:
    """The session that a request names; the answer of the worker process that has it, if that is another one.

    Args:
        request: Names it in the header, else in the cookie.
        server: That got the request.
        timeout_s: The time that the request gives its own call.

    Returns:
        None if the request names no session.

    Raises:
        UnknownSession: There is none of that name.
        Unauthorized: It was opened with another key.
        SessionLost: Its worker process has ended.
    """
    named = request.headers.get(HEADER)
    named = request.cookies.get(COOKIE) if named is None else named
    if named is None:
        return None
    answer = await forwarded(request, server, named, timeout_s)
    if answer is not None:
        return answer
    return server.stays.find(named, visitor_of(request.scope, server), request.headers.get(TOKEN_HEADER))


def remember(request: Request, response: Response, stay: Stay) -> None:
    """Has the browser name the session from now on."""
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, stay.id, path=_path(request), secure=secure, httponly=True, samesite="strict")


def json_response(body: bytes, status: int = 200) -> Response:
    """One that is encoded already."""
    return Response(body, status, media_type="application/json")


def _server(request: Request) -> HTTPEnvServer:
    server = request.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    return server


def _path(request: Request) -> str:
    """Where the app lies: the cookie is for no other one of its host."""
    return str(request.scope.get("root_path") or "/")
