"""The endpoints behind the page at `/web`: reset, step and state of a session, and a socket that follows it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response, WebSocket, WebSocketDisconnect
from pydantic_core import to_json

from ... import __version__
from ...errors import InvalidAction, OpenEnvError, ResetRequired, SessionLost, StepFailed, UnknownSession, UsageError
from ...messages import ResetRequest, StepRequest
from ...protocol.encoding import encode_state
from ...protocol.errors import error_facts
from ...runtime.profile import class_of
from ...runtime.session import Session
from ..http import COOKIE, HEADER, TOKEN_HEADER, seconds_of, set_session_cookie, shared_session_of
from ..middleware import CLOSE_POLICY, error_response, principal_of, server_of
from ..proxy import until_disconnect
from ..shared_sessions import SharedSession
from .episode import DRAWING_S, PageEpisode, PageResult
from .files import PANEL_HEADERS

if TYPE_CHECKING:
    from ..server import EnvironmentServer

# Answers are private to one browser, so they must not be cached.
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


async def metadata(request: Request) -> Response:
    """The data that the page needs at its start: metadata and schemas of the environment."""
    server = server_of(request)
    known = await server.about.tell(principal_of(request.scope, server))
    limits, contract = server.manager.limits, server.contract
    return _json(
        {
            **known.metadata,
            "tasks": callable(getattr(class_of(server.env_factory), "list_splits", None)),
            "reset_schema": known.reset_schema,
            "seedable": known.seedable,
            "show_state": _shows_state(server),
            "tools": known.tools,
            "notes": known.notes,
            "schemas": server.schemas,
            "schema_hash": contract.hash,
            "schema_hashes": contract.hashes,
            "server": {
                "version": __version__,
                "environment": server.env_name,
                "mode": server.settings.mode,
                "max_sessions": limits.max_sessions,
                "idle_timeout_s": limits.idle_timeout_s,
            },
            "panel": known.panel is not None,
            "custom": getattr(request.app.state, "openenv_page", None) is not None,  # made with Gradio
        }
    )


async def panel(request: Request) -> Response:
    """The panel that the environment's author made: HTML for a sandboxed frame."""
    server = server_of(request)
    text = (await server.about.tell(principal_of(request.scope, server))).panel
    if text is None:
        what = f"{server.env_name} has no panel of its own: its author may put panel.html beside its module"
        return error_response(UsageError(what), HTTPStatus.NOT_FOUND)
    return Response(text, media_type="text/html", headers=PANEL_HEADERS)


async def reset(request: Request, body: ResetRequest | None = None) -> Response:
    """Starts an episode in the session that the request names, else in a new one that the answer names."""
    server = server_of(request)
    arguments = body.model_dump(exclude_unset=True) if body else {}
    timeout_s = seconds_of(arguments.get("timeout_s"))
    shared: SharedSession | Response | None = None
    try:
        shared = await shared_session_of(request, server, _with_drawing(timeout_s))
    except (UnknownSession, SessionLost):
        # Only the header requires its session: a cookie may be from an earlier visit.
        if HEADER in request.headers:
            raise
    if isinstance(shared, Response):
        return shared
    if shared is not None:
        return _answer(server, shared, await PageEpisode.of(shared).reset(arguments, timeout_s))
    shared = await server.shared_sessions.open(principal_of(request.scope, server))
    try:
        played = await PageEpisode.of(shared).reset(arguments, timeout_s)
        if await request.is_disconnected():  # no client knows the new session
            raise SessionLost(f"session {shared.id} was opened for a client that has left")
        response = _answer(server, shared, played, token=shared.token)
    except BaseException:
        shared.depart("its first reset failed")
        raise
    set_session_cookie(request, response, shared)
    return response


async def step(request: Request, body: StepRequest) -> Response:
    """Does one action in the session that the request names."""
    server = server_of(request)
    action = server.read_action(body.action)
    arguments = body.model_dump(exclude={"action", "request_id"}, exclude_none=True)
    shared = await shared_session_of(request, server, _with_drawing(body.timeout_s))
    if isinstance(shared, SharedSession):
        return _answer(server, shared, await PageEpisode.of(shared).step(action, arguments, body.timeout_s))
    return shared or _no_episode()


async def state(request: Request) -> Response:
    """The environment's state in the session that the request names; null if the class hides it.

    In both cases the session's idle time begins again.
    """
    server = server_of(request)
    shared = await shared_session_of(request, server)
    if isinstance(shared, SharedSession):
        read = await shared.call(Session.read_state, None, lambda state: json.loads(encode_state(state)))
        return _json(read if _shows_state(server) else None)
    return shared or _no_episode()


def _shows_state(server: EnvironmentServer) -> bool:
    return bool(getattr(class_of(server.env_factory), "SHOW_STATE", True))


def _with_drawing(timeout_s: float | None) -> float | None:
    """The time limit for an answer of another worker process: for the call and its drawing, in seconds."""
    return None if timeout_s is None else timeout_s + DRAWING_S


def _answer(server: EnvironmentServer, shared: SharedSession, played: PageResult, **further: str) -> Response:
    drawing, state = played.drawing, played.state or {}
    episode, steps = state.get("episode_id"), state.get("step_count")
    actions = [_checked_action(server, label, action) for label, action in drawing.actions]
    faults = [
        f"web_actions offers {action['label']!r}, which is not a valid action: {action['error']}"[:2000]
        for action in actions
        if "error" in action
    ]
    return _json(
        {
            **played.payload,
            "session_id": shared.id,
            "episode_id": shared.session.episode if episode is None else episode,
            "step_count": steps if isinstance(steps, int) else played.steps,
            "state": played.state if _shows_state(server) else None,
            "html": drawing.html,
            "actions": actions,
            "notes": [*drawing.notes, *faults],
            "duration_s": round(played.duration_s, 6),
            **further,
        }
    )


def _checked_action(server: EnvironmentServer, label: str, action: dict[str, Any]) -> dict[str, Any]:
    """An action of `web_actions` for the page. The page also shows an invalid one, with the reason."""
    try:
        server.read_action(action)
    except InvalidAction as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.data.get("errors", ())]
        return {"label": label, "action": action, "error": "; ".join(faults)[:1000] or error.message}
    except Exception as error:  # noqa: BLE001 - a validator of the action type may raise anything
        return {"label": label, "action": action, "error": f"{type(error).__name__}: {error}"}
    return {"label": label, "action": action}


def _no_episode() -> Response:
    return error_response(ResetRequired("there is no episode yet: POST /web/reset begins one"), 409)


def _json(content: Any) -> Response:
    """A JSON response without NaN, which browsers reject."""
    try:
        body = to_json(content, inf_nan_mode="strings")
    except ValueError as error:  # nested up to the protocol's limit, and one level deeper here
        raise StepFailed(f"the call was executed, but its result cannot be shown: {error}") from error
    return Response(body, media_type="application/json", headers=_HEADERS)


SOCKET_PATH = "/ws/ui"
SUBPROTOCOL = "openenv.ui"
"""Accepted if the client offers it: browsers that send their API key as a subprotocol need one to be accepted."""


async def episode_socket(websocket: WebSocket) -> None:
    """Sends the episode of the named session, now and after each call by the routes of the page.

    Messages of the client are ignored. Its connection does not reset the idle timeout of the session.
    """
    server = server_of(websocket)
    principal = principal_of(websocket.scope, server)
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope.get("subprotocols", ()) else None)
    query, headers = websocket.query_params, websocket.headers
    name = query.get("session_id") or headers.get(HEADER) or websocket.cookies.get(COOKIE, "")
    token = query.get("token") or headers.get(TOKEN_HEADER)

    async def tell() -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has left
            try:
                await _follow(websocket, server.shared_sessions.find(name, principal, token))
            except OpenEnvError as error:
                await send_json(websocket, {"type": "error", "data": error_facts(error)})
                await websocket.close(CLOSE_POLICY, type(error).__name__)

    await until_disconnect(websocket.receive, tell())


async def _follow(websocket: WebSocket, shared: SharedSession) -> None:
    """Sends the episode when it has changed; a client that reads slowly misses states in between.

    Raises:
        SessionLost: The session has ended.
        StepFailed: The episode cannot be written as JSON.
    """
    episode, changed = PageEpisode.of(shared), asyncio.Event()
    ending: list[OpenEnvError] = []

    def ended(error: OpenEnvError) -> None:
        ending.append(error)
        changed.set()

    episode.watchers.add(changed)
    shared.on_lost.append(ended)
    try:
        while not ending:
            changed.clear()
            await send_json(websocket, {"type": "state_update", "episode_state": episode.state.model_dump()})
            await changed.wait()
    finally:
        episode.watchers.discard(changed)
        if ended in shared.on_lost:
            shared.on_lost.remove(ended)
    raise ending[0]


async def send_json(websocket: WebSocket, message: dict[str, Any]) -> None:
    """Sends a message as JSON, with NaN and infinity as strings.

    Raises:
        StepFailed: The message cannot be written as JSON.
    """
    try:
        text = to_json(message, inf_nan_mode="strings").decode()
    except ValueError as error:  # nested up to the protocol's limit, and a few levels deeper here
        raise StepFailed(f"the episode cannot be shown: {error}") from error
    await websocket.send_text(text)
