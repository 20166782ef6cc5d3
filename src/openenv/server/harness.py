"""The WebSocket `/harness`: a client talks to the agent of a `HarnessEnvironment`, in a session of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ..environment import Environment
from ..errors import OpenEnvError, SessionLost, UsageError
from ..harness.agents import HarnessClientMessage, HarnessEvent, HarnessEventType, HarnessProtocolError
from ..harness.environment import HarnessAction, HarnessEnvironment
from ..messages import WSErrorCode
from ..runtime.manager import close_session, opened_session, result_of
from ..runtime.profile import class_of
from ..runtime.session import LastSeen, Session
from ..telemetry.logs import log_extra
from ..types import Observation
from .auth import forbidden_call
from .mcp import FrameQueue, read_frames
from .middleware import principal_of, server_of

if TYPE_CHECKING:
    from .server import EnvironmentServer

logger = logging.getLogger("openenv.server")

HARNESS_PATH = "/harness"
# What a client learns of a turn that failed; the log has the rest.
_FAILURES = {"turn_timeout": "the agent's turn took too long", "harness_crashed": "the agent failed"}
_TALKS_NOT = "this environment has no agent to talk to: connect to /ws"


def may_be_harness(factory: Callable[[], Any]) -> bool:
    """Whether a factory makes a `HarnessEnvironment`, as far as that is known without a call."""
    cls = class_of(factory)
    return issubclass(cls or Environment, HarnessEnvironment) or cls is None


@dataclass(slots=True)
class AgentTurn:
    """One message to the agent of a session: an operation on its environment.

    Attributes:
        message: The message.
        send: Gets each event, on the loop of the connection.
        step_arguments: None: in a record it is a step like others.
    """

    message: str
    send: Callable[[HarnessEvent], object]
    step_arguments: None = None

    def as_action(self) -> dict[str, Any]:
        """The action for a record of the session."""
        return {"message": self.message}

    def as_observation(self, observation: Observation) -> Observation:
        """The observation for it."""
        return observation


async def play_turn(environment: Any, turn: AgentTurn) -> Observation:
    """The operation: sends the events of the turn, and returns its observation."""
    observation = Observation(done=True, metadata={"error_type": "harness_crashed"})
    async for each in environment.stream_turn(HarnessAction(message=turn.message)):
        if isinstance(each, Observation):
            observation = each
        else:
            turn.send(each)
    return observation


def harness_name(environment: Any, _: None) -> str:
    """The operation: the name of the agent. Raises `UsageError` for an environment without one."""
    if not isinstance(environment, HarnessEnvironment):
        raise UsageError(_TALKS_NOT)
    return environment.adapter.config.name


async def harness_socket(websocket: WebSocket) -> None:
    """Serves one client: `session_started`, then the events of a turn for each of its messages."""
    server = server_of(websocket)
    await websocket.accept()
    frames = FrameQueue(server.settings.max_in_flight, server.settings.max_message_bytes)
    # Reads continuously, to notice during a turn that the client disconnects.
    reading = asyncio.create_task(read_frames(websocket, frames))
    serving = asyncio.create_task(_serve(websocket, server, frames))
    try:
        await asyncio.wait([reading, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        serving.cancel()


async def _serve(websocket: WebSocket, server: EnvironmentServer, frames: FrameQueue) -> None:
    principal = principal_of(websocket.scope, server)
    session: Session | None = None
    try:
        forbidden = forbidden_call(principal.scope, "mcp")
        if forbidden is not None:
            raise forbidden
        async with opened_session(server.manager, principal.holder, principal.peer) as session:
            await _begin(websocket, session)
            session.life = _Attached()
            while await _converse(websocket, session, await frames.get(), server.settings.max_message_bytes):
                pass
        await close_session(session)
    except OpenEnvError as error:
        name = None if session is None else session.id
        logger.warning("session %s: %s", name, error, exc_info=error.__cause__, extra=log_extra(name))
        await websocket.send_text(server.protocol.error(error).decode())
    except WebSocketDisconnect:
        return
    await websocket.close()


class _Attached(LastSeen):
    """A client that is there for as long as its connection: its session is never idle."""

    @property
    def heard_at(self) -> float:
        return float("inf")

    @heard_at.setter
    def heard_at(self, _: float) -> None: ...


async def _begin(websocket: WebSocket, session: Session) -> None:
    """Starts the agent. Raises `SessionLost`, without the text of foreign errors, if that fails."""
    name = await result_of(partial(session.call, harness_name, None))
    try:
        await result_of(partial(session.reset, {}))
    except OpenEnvError as error:
        raise SessionLost("the agent did not start: the log of the server says why") from error
    facts = {"session_id": session.id, "harness": name}
    await websocket.send_json({"type": "session_started", "data": facts})


async def _converse(websocket: WebSocket, session: Session, frame: str | bytes, most_bytes: int) -> bool:
    """Answers one frame of the client. Returns whether the conversation goes on."""
    refusal = None
    try:
        if len(frame) > most_bytes:
            limit = f"{most_bytes} bytes (max_message_mb, OPENENV_MAX_MESSAGE_MB)"
            refusal = f"the frame is over the limit of {limit}", WSErrorCode.VALIDATION_ERROR
        else:
            message = HarnessClientMessage.model_validate(from_json(frame))
    except ValidationError as error:
        refusal = "; ".join(each["msg"] for each in error.errors(include_url=False)), WSErrorCode.VALIDATION_ERROR
    except ValueError as error:
        refusal = f"the frame is not JSON: {error}", WSErrorCode.INVALID_JSON
    if refusal is not None:
        text = f'{refusal[0]}; send {{"type": "message", "content": "..."}}'
        await _send(websocket, HarnessProtocolError(data={"message": text, "code": refusal[1]}))
        return True
    loop, events = asyncio.get_running_loop(), asyncio.Queue[HarnessEvent | None]()
    turn = AgentTurn(message.content, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
    call = asyncio.ensure_future(result_of(partial(session.call, play_turn, turn)))
    call.add_done_callback(lambda _: loop.call_soon(events.put_nowait, None))
    try:
        while (event := await events.get()) is not None:
            await _send(websocket, event)
        metadata = (await call).metadata
    except OpenEnvError as error:
        logger.warning("a turn of session %s failed", session.id, exc_info=error, extra=log_extra(session.id))
        metadata = {"error_type": "harness_crashed"}
    finally:
        call.cancel()
    if "error_type" not in metadata:
        return True
    facts = {"message": f"{_FAILURES[metadata['error_type']]}: the log of the server says why", "recoverable": False}
    await _send(websocket, HarnessEvent(type=HarnessEventType.ERROR, data=facts))
    return False


async def _send(websocket: WebSocket, frame: BaseModel) -> None:
    await websocket.send_text(frame.model_dump_json())
