"""One connection of protocol v1: a session, and the channel between it and a client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .._exceptions import from_signal
from ..errors import InvalidMessage, MessageTooLarge, OpenEnvError, StepFailed
from ..protocol.server import ServerProtocol
from ..runtime.calls import CallQueue
from ..runtime.executor import Done
from ..runtime.manager import close_session
from ..runtime.session import LastSeen, OnOpened, Session
from ..telemetry.logs import log_extra
from ..telemetry.metrics import METER, Phase
from . import mcp_methods
from .auth import Principal, Scope, forbidden_call
from .shared_sessions import AttachedSession

if TYPE_CHECKING:
    from .server import EnvironmentServer

logger = logging.getLogger("openenv.server")

# Placeholder for the running frame while the session opens, and after its end.
_NO_FRAME = b""

CLOSE_NORMAL = 1000
CLOSE_SLOW_READER = 1008
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL_ERROR = 1011


class Channel(Protocol):
    """Sends frames to one client. No method waits or fails: frames for a client that is gone are dropped."""

    def send(self, frame: bytes) -> None:
        """Sends one frame: text, or binary if the protocol is msgpack."""

    def close(self, code: int) -> None:
        """Closes after all frames have been sent."""

    def pause(self) -> None:
        """Asks for no more frames; some may still come."""

    def resume(self) -> None:
        """Asks for frames again."""


def oversized_reply(size: int, limit: int) -> StepFailed:
    """The error that replaces an oversized reply."""
    return StepFailed(
        f"the reply has {size} bytes, over the limit of {limit} bytes (max_reply_mb, OPENENV_MAX_REPLY_MB): "
        "return less from the environment, or raise both this limit and the client's max_message_size_mb"
    )


def oversized_message(size: int | None, limit: int, advice: str = "") -> MessageTooLarge:
    """The error for a message over the limit; `size` is None if it is not known."""
    found = "a message" if size is None else f"a message of {size} bytes"
    return MessageTooLarge(
        f"{found} is over the limit of {limit} bytes (max_message_mb, OPENENV_MAX_MESSAGE_MB){advice}"
    )


def log_error(error: OpenEnvError, session: str | None, episode: str | None, request: Any) -> None:
    """Counts and logs an error that a client gets for a call of a session."""
    METER.failed(error)
    # A client chooses the id of a session, which may contain line breaks.
    name = "-" if not session else session if session.isprintable() else repr(session)
    what, extra = f"{type(error).__name__}: {error.message:.2000s}", log_extra(session, episode, request)
    # A traceback helps when the environment's code failed. It is noise when the client made an error.
    logger.warning("session %.64s: %s", name, what, exc_info=error.__cause__, extra=extra)


@dataclass(slots=True, eq=False, repr=False)
class V1Connection(CallQueue[bytes | OpenEnvError]):
    """The server's end of one connection, from its acceptance.

    The queue has frames, and errors that answer a frame in its place. All wait for the session to open.

    Args:
        server: Opens the session. The channel is paused while `max_in_flight` frames, or the bytes of one message of
            the largest size, wait for the running call.

    Raises:
        UsageError: The manager serves another event loop.

    Attributes:
        channel: Sends frames to the client.
        principal: The client of the connection.
        life: When the client last sent something.
    """

    server: InitVar[EnvironmentServer]
    channel: Channel
    principal: Principal
    life: LastSeen = field(default_factory=LastSeen)
    _protocol: ServerProtocol = field(init=False)
    _session: Session = field(init=False)
    _encode: Callable[[Any], bytes] = field(init=False)
    _max_in_flight: int = field(init=False)
    _max_bytes: int = field(init=False)
    _max_reply_bytes: int = field(init=False)
    _restricted: bool = field(init=False)
    # Bytes of the waiting frames.
    _kept_bytes: int = 0
    # Requests read so far; the number serves as an id, which v1 lacks.
    _requests: int = 0
    _paused: bool = False
    _ended: bool = False

    def __post_init__(self, server: EnvironmentServer) -> None:
        self.running = _NO_FRAME
        settings, principal = server.settings, self.principal
        self._protocol = server.protocol
        self._encode = server.protocol.observation
        self._max_in_flight = settings.max_in_flight
        self._max_bytes = settings.max_message_bytes
        self._max_reply_bytes = settings.max_reply_bytes
        self._restricted = principal.scope is not Scope.CONTROL
        opened: OnOpened = self._opened
        if principal.trail is not None:
            opened = principal.trail.opening(lambda: self._session.id, None, opened)
        session: Any
        enter: Callable[[Any], object]
        if principal.session is None:
            session, enter = server.manager.create(opened, self._lost), server.manager.open
        else:
            session = AttachedSession(server.shared_sessions, principal, opened, self._lost)
            enter = AttachedSession.enter
        self._session = session
        session.life, session.holder, session.peer = self.life, principal.holder, principal.peer
        enter(session)

    @property
    def session_id(self) -> str:
        return self._session.id

    def receive(self, frame: bytes) -> None:
        """Handles one text frame. Its reply follows the replies to all earlier frames."""
        if self.running is not None or self._waiting:
            self._keep(frame)
        else:
            self._handle(frame)

    def _handle(self, frame: bytes) -> None:
        self._requests += 1
        if len(frame) > self._max_bytes:
            self.oversized(len(frame))
            return
        try:
            message = self._protocol.receive(frame)
            if self._restricted and (
                forbidden := forbidden_call(self.principal.scope, message["type"], message.get("data"))
            ):
                raise forbidden
        except OpenEnvError as error:
            self._refuse(error)
            return
        except BaseException as error:  # a validator of the action type may raise anything
            if from_signal(error):
                raise
            failure = StepFailed(f"the action could not be validated: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._refuse(failure)
            return
        self.running = frame
        if message["type"] == "step":
            self._encode = self._protocol.observation
            self._session.step(
                message["data"], self._answer if self.principal.trail is None else self._traced(message)
            )
        elif message["type"] == "reset":
            arguments = message.get("data", {})
            seeded = self._session.takes_seed_of(arguments)
            self._encode = self._protocol.observation if seeded else self._protocol.unseeded
            answer = self._answer if self.principal.trail is None else self._traced(message)
            self._session.reset(arguments, answer)
        elif message["type"] == "state":
            self._encode = self._protocol.state
            self._session.read_state(self._answer)
        elif message["type"] == "mcp":
            self._encode = self._protocol.mcp
            mcp_methods.handle_mcp_frame(self._session, message["data"], self._answer)
        else:
            self._finish(CLOSE_NORMAL)

    def receive_binary(self, frame: bytes) -> None:
        """Answers a binary frame with an error: v1 has only text frames."""
        refusal = InvalidMessage(f"a binary frame of {len(frame)} bytes: protocol v1 speaks JSON in text frames")
        if self.running is not None or self._waiting:
            self._keep(refusal)
        elif not self._ended:
            self._report(refusal)

    def oversized(self, size: int | None) -> None:
        """The client sent a frame over the limit: ends the connection."""
        self._lost(oversized_message(size, self._max_bytes), CLOSE_TOO_BIG)

    def disconnected(self) -> None:
        """The client has disconnected or closed the connection. May be called repeatedly."""
        self._ended = True
        self.running, self._waiting = _NO_FRAME, ()  # frames that arrive from now on are dropped
        self._session.close()

    def failed(self) -> None:
        """Ends the connection after an unexpected error of the server."""
        self._finish(CLOSE_INTERNAL_ERROR)

    def stop(self) -> None:
        """The server stops now."""
        self.disconnected()

    def announce(self, grace_s: float) -> None:
        """The server stops; v1 has no message for that."""

    async def aclose(self) -> None:
        """Ends the connection and waits until its environment is closed."""
        self.disconnected()
        await close_session(self._session)

    def _traced(self, message: Any) -> Done:
        """Wraps `_answer` in a tracing span."""
        trail = self.principal.trail
        assert trail is not None
        kind, session, episode = message["type"], self._session, self._session.episode
        if kind == "reset":
            episode = message.get("data", {}).get("episode_id")
        return trail.call(kind, session.id, episode, self._requests, self._answer)

    def _opened(self, error: OpenEnvError | None) -> None:
        if error is None:
            self._end()
        else:
            self._lost(error)

    def _lost(self, error: OpenEnvError, code: int = CLOSE_NORMAL) -> None:
        """Sends the client the reason why it has no session, and closes."""
        if not self._ended:
            self._report(error)
            self._finish(code)

    def _finish(self, code: int) -> None:
        self.disconnected()
        self.channel.close(code)

    def _answer(self, result: Any, error: BaseException | None) -> None:
        """Sends the reply of the call in flight."""
        if self._ended:
            return
        if error is None:
            try:
                if METER.on and not self._requests & METER.SAMPLE:
                    frame = METER.timed(Phase.SERIALIZE, self._encode, result)
                else:
                    frame = self._encode(result)
                if len(frame) > self._max_reply_bytes:
                    raise oversized_reply(len(frame), self._max_reply_bytes)
                self.channel.send(frame)
            except StepFailed as failure:
                self._session.refused(failure)
                self._report(failure)
        else:
            assert isinstance(error, OpenEnvError)  # a session translates all others
            self._report(error)
        self.running = None
        if self._waiting:
            self._advance()

    def _begin(self, frame: bytes | OpenEnvError) -> None:
        if not isinstance(frame, OpenEnvError):
            self._kept_bytes -= len(frame)
        if (  # a paused channel resumes when the queue is below half of its limits
            self._paused
            and len(self._waiting) <= self._max_in_flight // 2
            and self._kept_bytes <= self._max_bytes // 2
        ):
            self._paused = False
            self.channel.resume()
        if isinstance(frame, OpenEnvError):
            self._refuse(frame)
        else:
            self._handle(frame)

    def _refuse(self, error: OpenEnvError) -> None:
        """Answers a frame that is not a call, then handles the next frame."""
        self._report(error)
        if not self._ended:
            self._end()

    def _keep(self, frame: bytes | OpenEnvError) -> None:
        if self._ended:
            return
        if not isinstance(frame, OpenEnvError):
            self._kept_bytes += len(frame)
        self._wait(frame)
        full = len(self._waiting) >= self._max_in_flight or self._kept_bytes >= self._max_bytes
        if full and not self._paused:
            self._paused = True
            self.channel.pause()

    def _report(self, error: OpenEnvError) -> None:
        log_error(error, self._session.id, self._session.episode, self._requests)
        self.channel.send(self._protocol.error(error))
