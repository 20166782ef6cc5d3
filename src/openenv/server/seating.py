"""The sessions of one v2 connection: how they come, what is asked of them, and how they go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from secrets import compare_digest
from typing import Any

from ..errors import (
    CapacityError,
    InvalidMessage,
    OpenEnvError,
    SessionLost,
    TooManyCalls,
    Unauthorized,
    UnknownSession,
    UsageError,
)
from ..protocol import messages
from ..protocol.codec import Body
from ..protocol.server_v2 import ServerProtocolV2
from ..sessions import Session, SessionManager, SessionState
from ..settings import ServerSettings
from .call import Asker
from .seat import Seat

__all__ = ["SESSION_REQUESTS", "Seating"]

logger = logging.getLogger("openenv.server")

# What most environments take to close.
CLOSING_S = 0.1
_ENDED = (SessionState.CLOSING, SessionState.GONE)


class Seating:
    """The seats of a connection.

    Args:
        manager: Where sessions are opened.
        protocol: How replies are written.
        settings: The limits.
        on_loss: Hears of sessions that ended though their client has not asked for it, and why.
    """

    __slots__ = ("_manager", "_max_opening", "_on_loss", "_opening", "_seats", "max_in_flight", "protocol")

    def __init__(
        self,
        manager: SessionManager,
        protocol: ServerProtocolV2,
        settings: ServerSettings,
        on_loss: Callable[[str, OpenEnvError], None],
    ):
        self.protocol = protocol
        self.max_in_flight = settings.max_in_flight
        self._manager = manager
        self._max_opening = settings.max_batch
        self._on_loss = on_loss
        self._opening = 0
        self._seats: dict[str, Seat] = {}

    @property
    def sessions(self) -> list[Session]:
        return [seat.session for seat in self._seats.values()]

    @property
    def remaining(self) -> list[Session]:
        """Those of which something is left, also where the client has closed them or the connection is gone."""
        seats = ((session, session.user) for session in self._manager.sessions)
        return [session for session, seat in seats if isinstance(seat, Seat) and seat.landlord is self]

    def cancel(self, asker: Asker, key: int | None) -> bool:
        """Gives up what an asker waits for, all of it if `key` is None. False if it waits for nothing."""
        found = False
        for seat in list(self._seats.values()):  # all of them: a batch waits for many
            found |= seat.cancel(asker, key)
        return found

    def abandon(self) -> None:
        """The connection has gone: decides what becomes of its sessions. They end."""
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            seat.leave()

    # What is asked, each by the connection itself or by a batch on it.

    def open(self, message: messages.Open, asker: Asker, key: int) -> None:
        if message.options:
            names = f"{', '.join(message.options)!r:.200}"
            self._deny(asker, key, message.session, UsageError(f"this server has no options for open: drop {names}"))
            return
        if message.session is not None and message.session in self._seats:
            self._seats[message.session].open_again(asker, key)
            return
        taken = None if message.session is None else self._manager.find(message.session)
        if taken is not None and taken.state in _ENDED:
            closing = f"session {taken.id!r} is still closing: open it again in a moment, or choose another id"
            self._deny(asker, key, taken.id, CapacityError(closing, retry_after_s=CLOSING_S))
        elif taken is not None:
            self._deny(asker, key, taken.id, self._unreachable(taken.id))
        elif self._opening >= self._max_opening:
            crowd = f"{self._opening} sessions of this connection (max_batch, OPENENV_MAX_BATCH) are being opened"
            self._deny(asker, key, message.session, TooManyCalls(f"{crowd}: wait for one of them"))
        else:
            self._begin(message, asker, key)

    def attach(self, message: messages.Attach, asker: Asker, key: int) -> None:
        session = self._manager.find(message.session)
        seat = None if session is None or session.state in _ENDED else session.user
        if session is None or not isinstance(seat, Seat):
            self._deny(asker, key, message.session, UnknownSession(message.session))
        elif not compare_digest(seat.token.encode(), message.token.encode("utf-8", "replace")):
            wrong = f"not the token of session {session.id}: attach with the one that open answered"
            self._deny(asker, key, message.session, Unauthorized(wrong))
        else:
            self._take_over(seat, asker, key)

    def call(self, message: messages.Reset | messages.Step | messages.State, asker: Asker, key: int) -> None:
        seat = self._seats.get(message.session)
        if seat is None:
            self._deny(asker, key, message.session, self._unreachable(message.session))
        else:
            seat.take(message, asker, key)

    def close(self, message: messages.Close, asker: Asker, key: int) -> None:
        seat = self._seats.get(message.session)
        if seat is not None:
            seat.close(SessionLost(f"session {message.session} was closed by its client"))
        elif (session := self._manager.find(message.session)) is not None and session.state not in _ENDED:
            self._deny(asker, key, message.session, self._unreachable(message.session))
            return
        asker.answer(key, message.session, self.protocol.ok({}))

    def refuse(self, message: messages.Refused, asker: Asker, key: int) -> None:
        self._deny(asker, key, message.session, message.error)

    # What seats ask of their landlord.

    def seated(self) -> None:
        self._opening -= 1

    def welcome(self, seat: Seat) -> Body:
        manager = self._manager
        slot = {"active_sessions": manager.held, "max_sessions": manager.limits.max_sessions}
        return self.protocol.ok(
            {"session": seat.session.id, "token": seat.token, "seq": seat.completed, "slot": slot}
        )

    def refusal(self, session: str | None, error: OpenEnvError) -> Body:
        # What a client calls a session may be anything, lines of a log as well.
        name = "-" if not session else session if session.isprintable() else repr(session)
        # The traceback is of use when the environment's own code failed, and noise when a client erred.
        logger.warning(
            "session %.64s: %s: %.2000s", name, type(error).__name__, error.message, exc_info=error.__cause__
        )
        return self.protocol.error(error)

    def vacated(self, seat: Seat, loss: OpenEnvError | None) -> None:
        self._opening -= seat.opening
        if self._seats.pop(seat.session.id, None) is not None and loss is not None:
            self._on_loss(seat.session.id, loss)

    def _take_over(self, seat: Seat, asker: Asker, key: int) -> None:
        try:
            # Before anything changes: what one codec can say, numbers of any length for one, the other may not.
            reply = self.protocol.ok(_whereabouts(seat))
        except (ValueError, InvalidMessage) as error:
            unsayable = f"the last reply of session {seat.session.id} {error}"
            advice = "attach with the subprotocol that it was opened with"
            self._deny(asker, key, seat.session.id, UsageError(f"{unsayable}: {advice}"))
            return
        if seat.landlord is not self:
            seat.move(self)
            self._seats[seat.session.id] = seat
            self._opening += seat.opening
        asker.answer(key, seat.session.id, reply)

    def _begin(self, message: messages.Open, asker: Asker, key: int) -> None:
        seat = Seat(self, asker, key)
        seat.session = session = self._manager.create(seat.opened, seat.lost, message.session)
        session.user = seat
        self._seats[session.id] = seat
        self._opening += 1
        try:
            self._manager.open(session, message.wait_s)
        except UsageError as error:  # the server has sessions on another event loop
            self.vacated(seat, None)
            self._deny(asker, key, session.id, error)

    def _deny(self, asker: Asker, key: int, session: str | None, error: OpenEnvError) -> None:
        asker.answer(key, session, self.refusal(session, error))

    def _unreachable(self, session_id: str) -> OpenEnvError:
        """Why a session that is not of this connection gets no call."""
        session = self._manager.find(session_id)
        if session is None or session.state in _ENDED:
            return UnknownSession(session_id)
        return Unauthorized(f"session {session_id!r} belongs to another connection: attach to it with its token")


def _whereabouts(seat: Seat) -> dict[str, Any]:
    """What a client needs to go on with a session: its state, the last call that has ended, and its reply."""
    facts = {"session": seat.session.id, "state": seat.session.state.value, "seq": seat.completed}
    last = seat.recall()
    return facts if last is None else {**facts, "last": last}


SESSION_REQUESTS: dict[type[Any], Callable[[Seating, Any, Asker, int], None]] = {
    messages.Open: Seating.open,
    messages.Attach: Seating.attach,
    messages.Reset: Seating.call,
    messages.Step: Seating.call,
    messages.State: Seating.call,
    messages.Close: Seating.close,
    messages.Refused: Seating.refuse,
}
"""Who handles which request about a session; a batch holds no others."""
