"""The sessions of one v2 connection: open, attach, fork, call, close."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import compare_digest, token_urlsafe
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Raw

from .. import errors
from ..batched import Autoreset
from ..errors import OpenEnvError, SessionLost, UsageError
from ..protocol import messages
from ..protocol.codecs import Body
from ..protocol.errors import error_facts
from ..protocol.sequence import Asker, name_of
from ..protocol.server import ServerProtocolV2
from ..runtime.manager import SessionManager
from ..runtime.session import LastSeen, OnOpened, Origin, Session, SessionState
from ..settings import ServerSettings
from ..telemetry.metrics import METER
from ..telemetry.tracing import ConnectionTracer
from .auth import Principal, Scope, forbidden_call
from .timers import Deadlines
from .v1 import log_error
from .v2_session import SessionRequest, V2Session

if TYPE_CHECKING:
    from .v2 import ReplySender

# Seconds within which most environments close.
CLOSING_S = 0.1
_ENDED = (SessionState.CLOSING, SessionState.GONE)


@dataclass(slots=True, eq=False)
class SessionTable:
    """The sessions of a connection.

    Attributes:
        manager: Opens sessions.
        protocol: Writes replies.
        settings: The limits.
        deadlines: Watches the deadlines of calls.
        principal: The client of the connection.
        replies: Sends replies and events to the client.
        life: When the client last sent a frame on the connection.
        v2_sessions: The sessions, by their ids.
        restricted: Whether the client's key lacks the scope control.
        trail: Traces calls; None if they are not traced.
    """

    manager: SessionManager
    protocol: ServerProtocolV2
    settings: ServerSettings
    deadlines: Deadlines
    principal: Principal
    replies: ReplySender
    life: LastSeen = field(default_factory=LastSeen)
    v2_sessions: dict[str, V2Session] = field(default_factory=dict)
    max_reply_bytes: int = field(init=False)
    restricted: bool = field(init=False)
    trail: ConnectionTracer | None = field(init=False)
    _opening: int = 0
    _leaving: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.max_reply_bytes = self.settings.max_reply_bytes
        self.restricted = self.principal.scope is not Scope.CONTROL
        self.trail = self.principal.trail

    @property
    def sessions(self) -> list[Session]:
        return [v2_session.session for v2_session in self.v2_sessions.values()]

    @property
    def remaining(self) -> list[Session]:
        """The sessions that have not ended completely, including closing and detached ones."""
        users = (session.user for session in self.manager.sessions)
        return [user.session for user in users if isinstance(user, V2Session) and user.table is self]

    def cancel(self, request: int) -> bool:
        """Cancels the calls of a request: all of them for a batch. False if the request waits for no call."""
        found = False
        for v2_session in list(self.v2_sessions.values()):  # all of them: a batch waits for many
            found |= v2_session.cancel(request)
        return found

    def abandon(self) -> None:
        """The connection is lost. Its sessions wait `resume_window_s` for their client to come back."""
        for v2_session in list(self.v2_sessions.values()):
            if self.settings.resume_window_s:
                v2_session.detach()
            else:
                v2_session.end()
        if self.v2_sessions:
            self._leaving = asyncio.get_running_loop().call_later(self.settings.resume_window_s, self._leave)

    def end(self) -> None:
        """Ends the sessions of a client that will not come back."""
        for v2_session in list(self.v2_sessions.values()):
            v2_session.end()

    def _leave(self) -> None:
        """The client did not come back in time."""
        self._leaving = None
        for v2_session in list(self.v2_sessions.values()):
            v2_session.leave()

    def use_protocol(self, protocol: ServerProtocolV2) -> None:
        """Writes replies with another codec. Its `fields` also reads the stored replies."""
        self.protocol = self.replies.protocol = protocol
        for v2_session in self.v2_sessions.values():
            v2_session.speak(protocol)

    # Requests, each from the connection itself or from a batch on it.

    def open(self, message: messages.OpenOp, asker: Asker) -> None:
        owned_batch = None if not message.options else self._owned_batch(message.options)
        if not self._is_there(message.session, message.token, asker):
            self._begin(message, asker, owned_batch=owned_batch)

    def _owned_batch(self, options: dict[str, Any]) -> Autoreset | None:
        """The autoreset mode of a session that owns a batch; None if its options ask for one episode.

        Raises:
            UsageError: There is no such option or mode here.
        """
        spec = self.manager.maker.batch
        unknown = options.keys() - ({"batch", "autoreset"} if spec is not None else ())
        if unknown or spec is None:
            names = f"{', '.join(sorted(unknown))!r:.200}"
            here = (
                "of this environment"
                if spec is not None
                else "here, since its environment plays one episode a session"
            )
            raise UsageError(f"open has no such option {here}: remove {names}")
        if type(options.get("batch")) is not bool or ("autoreset" in options and not options["batch"]):
            raise UsageError(
                "the options of open must be batch = true, perhaps with autoreset; or none for one episode"
            )
        if not options["batch"]:
            return None
        from ..runtime.batch import checked_autoreset  # noqa: PLC0415 - only batches need numpy

        mode: Autoreset = checked_autoreset(spec, options.get("autoreset"))
        return mode

    def _is_there(self, name: str | None, token: str | None, asker: Asker) -> bool:
        """Whether a session with that id is open. If so, this answers its client.

        Raises:
            OpenEnvError: The session belongs to another client, or cannot be opened now.
        """
        if name is not None and name in self.v2_sessions:
            self.v2_sessions[name].open_again(asker)
            return True
        taken = None if name is None else self.manager.find(name)
        if taken is not None and taken.state in _ENDED:
            closing = f"session {taken.id!r} is still closing: open it again in a moment, or choose another id"
            raise errors.CapacityError(closing, retry_after_s=CLOSING_S)
        if taken is not None:
            if not isinstance(taken.user, V2Session) or not _token_matches(taken.user, token):
                raise self._unreachable(taken.id)
            self._take_over(taken.user, asker, again=True)
            return True
        if self._opening >= self.settings.max_batch:
            crowd = f"{self._opening} sessions of this connection (max_batch, OPENENV_MAX_BATCH) are being opened"
            raise errors.TooManyCalls(f"{crowd}: wait for one of them")
        return False

    def attach(self, message: messages.AttachOp, asker: Asker) -> None:
        session = self.manager.find(message.session)
        v2_session = None if session is None or session.state in _ENDED else session.user
        if session is None or not isinstance(v2_session, V2Session):
            raise self._unknown(message.session)
        if not _token_matches(v2_session, message.token):
            raise errors.Unauthorized(
                f"wrong token for session {session.id}: attach with the token in the reply to open"
            )
        self._take_over(v2_session, asker)

    def call(self, message: SessionRequest | messages.CallToolOp, asker: Asker, due: float | None) -> None:
        """Passes a call to its session. `due`: the default deadline in monotonic seconds."""
        if isinstance(message, messages.CallToolOp):
            action = {"type": "call_tool", "tool_name": message.tool, "arguments": message.arguments}
            raw = Raw(self.protocol.codec.encode(action))
            message = messages.StepOp(
                session=message.session, seq=message.seq, action=raw, deadline_s=message.deadline_s
            )
        v2_session = self.v2_sessions.get(message.session)
        if v2_session is None:
            self.deny(asker, message.session, self._unreachable(message.session))
        elif self.restricted and (forbidden := self._forbidden(message)) is not None:
            self.deny(asker, message.session, forbidden)
        else:
            v2_session.take(message, asker, due)

    def request(self, message: Any, asker: Asker) -> None:
        """Executes another request about a session, one of `SESSION_REQUESTS`."""
        try:
            SESSION_REQUESTS[type(message)](self, message, asker)
        except OpenEnvError as error:
            self.deny(asker, message.session, error)

    def close(self, message: messages.CloseOp, asker: Asker) -> None:
        v2_session = self.v2_sessions.get(message.session)
        if v2_session is not None:
            v2_session.close(SessionLost(f"session {message.session} was closed by its client"))
        elif (session := self.manager.find(message.session)) is not None and session.state not in _ENDED:
            raise self._unreachable(message.session)
        self.replies.answer(asker, message.session, self.protocol.ok({}))

    def refuse(self, message: messages.RefusedOp, asker: Asker) -> None:
        raise message.error

    # Called by the sessions.

    def opened(self) -> None:
        self._opening -= 1

    def open_reply(self, v2_session: V2Session) -> Body:
        manager = self.manager
        slot = {"active_sessions": manager.held, "max_sessions": manager.limits.max_sessions}
        return self.protocol.ok(
            {
                "session": v2_session.session.id,
                "token": v2_session.token,
                "seq": v2_session.sequence.completed,
                "slot": slot,
            }
        )

    def fork(self, v2_session: V2Session, message: messages.ForkOp, asker: Asker, freed: Callable[[], None]) -> None:
        known = None if message.new is None else self.manager.find(message.new)
        try:
            if known is not None and getattr(known.user, "forked_from", None) != v2_session.session.id:
                other = f"session {message.new!r} is already open, and is not a fork of {v2_session.session.id!r}"
                raise UsageError(f"{other}: choose another id")
            if not self._is_there(message.new, message.token, asker):
                self._begin(message, asker, Origin(v2_session.session, freed))
                return
        except OpenEnvError as error:
            self.deny(asker, message.new, error)
        freed()

    def source_of(self, v2_session: V2Session, message: messages.RestoreOp) -> V2Session:
        name, source = message.source, self.v2_sessions.get(message.source)
        if source is None:  # another connection has it
            session = self.manager.find(name)
            if session is None or session.state in _ENDED or not isinstance(session.user, V2Session):
                here = "it has ended, never existed, or is on another server or worker process"
                raise UsageError(f"there is no session {name!r} to restore from: {here}; fork a session instead")
            source = session.user
            if not _token_matches(source, message.token):
                other = f"session {name!r} belongs to another connection"
                raise errors.Forbidden(f"{other}: restore from it with its token")
        behind: V2Session | None = source
        while behind is not None:
            if behind is v2_session:
                circle = f"session {v2_session.session.id!r} cannot wait for the state of {name!r}"
                raise UsageError(f"{circle}, which waits for it in turn: restore one after the other")
            behind = behind.awaits
        return source

    def refusal(self, session: str | None, error: OpenEnvError, request: str | None = None) -> Body:
        v2_session = None if session is None else self.v2_sessions.get(session)
        log_error(error, session, None if v2_session is None else v2_session.session.episode, request)
        return self.protocol.error(error)

    def released(self, v2_session: V2Session, loss: OpenEnvError | None) -> None:
        self._opening -= v2_session.opening
        session = v2_session.session.id
        known = self.v2_sessions.pop(session, None) is not None
        if known and loss is not None and not self.replies.ended:
            lost = loss if isinstance(loss, SessionLost) else SessionLost(loss.message)
            METER.failed(lost)
            facts = error_facts(lost)
            fields = {"session": session, "reason": facts["message"], "error": facts}
            self.replies.send(self.protocol.event("session_lost", fields))
        if self._leaving is not None and not self.v2_sessions:
            self._leaving.cancel()
            self._leaving = None

    def _forbidden(self, message: SessionRequest) -> OpenEnvError | None:
        """The error if the client's key does not permit the call; such a call is refused, and uses no number."""
        action = None
        if type(message) is messages.StepOp:
            with contextlib.suppress(errors.InvalidAction):
                action = self.protocol.action(message.action)
        return forbidden_call(self.principal.scope, str(type(message).__struct_config__.tag), action)

    def _take_over(self, v2_session: V2Session, asker: Asker, again: bool = False) -> None:
        """Moves a session to this connection. `again`: its client repeats `open` and does not attach."""
        try:
            # Fails before anything changes: one codec can encode values that the other cannot (large integers).
            reply = self.protocol.ok(v2_session.resume_facts())
        except (ValueError, errors.InvalidMessage) as error:
            unsayable = f"the last reply of session {v2_session.session.id} {error}"
            advice = "attach with the subprotocol that it was opened with"
            raise UsageError(f"{unsayable}: {advice}") from None
        if v2_session.table is not self:
            v2_session.move(self)
            self.v2_sessions[v2_session.session.id] = v2_session
            self._opening += v2_session.opening
            self._settle(v2_session.session)
        if again:
            v2_session.open_again(asker)
        else:
            self.replies.answer(asker, v2_session.session.id, reply)

    def _settle(self, session: Session) -> None:
        """Assigns a session to this connection. It still counts for the key that opened it."""
        session.life, session.peer = self.life, self.principal.peer

    def _begin(
        self,
        message: messages.OpenOp | messages.ForkOp,
        asker: Asker,
        origin: Origin | None = None,
        owned_batch: Autoreset | None = None,
    ) -> None:
        """Opens a session.

        Args:
            message: The request.
            asker: Where it comes from.
            origin: The session that its first state is copied from.
            owned_batch: The autoreset mode in which it owns a batch; None for one episode.
        """
        if origin is not None:
            owned_batch = origin.source.owned_batch
        v2_session = V2Session(self, asker, message.token or token_urlsafe(16), owned_batch is not None)
        opened: OnOpened = v2_session.opened
        if self.trail is not None:
            opened = self.trail.opening(lambda: v2_session.session.id, name_of(asker), opened)
        name = message.new if isinstance(message, messages.ForkOp) else message.session
        v2_session.session = session = self.manager.create(opened, v2_session.lost, name)
        session.user = v2_session
        if owned_batch is not None:
            self.manager.own_batch(session, owned_batch)
        if origin is not None:
            v2_session.forked_from, session.origin = origin.source.id, origin
        session.holder = self.principal.holder
        self._settle(session)
        self.v2_sessions[session.id] = v2_session
        self._opening += 1
        try:
            self.manager.open(session, message.wait_s)
        except UsageError as error:  # the server has sessions on another event loop
            self.released(v2_session, None)
            self.deny(asker, session.id, error)

    def deny(self, asker: Asker, session: str | None, error: OpenEnvError) -> None:
        self.replies.answer(asker, session, self.refusal(session, error, name_of(asker)))

    def _unknown(self, session_id: str) -> errors.UnknownSession:
        if self.principal.worker_ended:
            return errors.UnknownSession.of_ended_worker(session_id)
        return errors.UnknownSession(session_id)

    def _unreachable(self, session_id: str) -> OpenEnvError:
        """The error for a call of a session that does not belong to this connection."""
        session = self.manager.find(session_id)
        if session is None or session.state in _ENDED:
            return self._unknown(session_id)
        return errors.Unauthorized(
            f"session {session_id!r} belongs to another connection: attach to it with its token"
        )


def _token_matches(v2_session: V2Session, token: str | None) -> bool:
    return token is not None and compare_digest(v2_session.token.encode(), token.encode("utf-8", "replace"))


SESSION_CALLS = frozenset({*get_args(SessionRequest), messages.CallToolOp})
"""Requests that a session executes (`SessionTable.call`)."""

SESSION_REQUESTS: dict[type[Any], Callable[[SessionTable, Any, Asker], None]] = {
    messages.OpenOp: SessionTable.open,
    messages.AttachOp: SessionTable.attach,
    messages.CloseOp: SessionTable.close,
    messages.RefusedOp: SessionTable.refuse,
}
"""The other requests about a session. A batch holds these and calls, and no others."""
