"""What protocol v2 keeps of one session: whose it is, which calls it has taken, and what was answered last."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any, Protocol

from ..errors import (
    Cancelled,
    InvalidAction,
    OpenEnvError,
    SequenceError,
    SessionLost,
    StepFailed,
    TooManyCalls,
    UsageError,
)
from ..protocol.codec import Body
from ..protocol.messages import Reset, State, Step
from ..protocol.server_v2 import ServerProtocolV2
from ..sessions import Session
from .call import NOBODY, Asker, Call

__all__ = ["Landlord", "Seat"]


class Landlord(Protocol):
    """Who has the seats: a connection.

    Attributes:
        protocol: How its replies are written.
        max_in_flight: Calls of one session that may wait for their turn.
    """

    protocol: ServerProtocolV2
    max_in_flight: int

    def seated(self) -> None:
        """One of its sessions is open now."""

    def welcome(self, seat: Seat) -> Body:
        """The reply to `open`."""

    def refusal(self, session: str | None, error: OpenEnvError) -> Body:
        """The reply that says why not."""

    def vacated(self, seat: Seat, loss: OpenEnvError | None) -> None:
        """The seat is no longer its own. `loss`: why, if its client has not asked for that and must be told."""


class Seat:
    """One session of a connection; kept as the session's `user`.

    Reset and step are counted by the client, from 1. A number executes once: repeated, it gets the result of the
    call that is running, or the reply that was stored. A call that was counted stays counted whatever becomes of
    it, also when its action is not valid or it is cancelled before its turn.

    Args:
        landlord: The connection it belongs to.
        asker, key: Who opens the session.

    Attributes:
        session: The record of the environment; set by whoever makes both.
        landlord: The connection it belongs to now.
        token: What another connection must show to take the session over.
        accepted: Number of the last call that was taken.
        completed: Number of the last call that was answered; `last` is that answer.
    """

    __slots__ = (
        "_advancing",
        "_protocol",
        "_queue",
        "_running",
        "accepted",
        "completed",
        "landlord",
        "last",
        "session",
        "token",
    )

    session: Session

    def __init__(self, landlord: Landlord, asker: Asker, key: int):
        self.landlord = landlord
        self.token = secrets.token_urlsafe(16)
        self.accepted = self.completed = 0
        self.last: Body | None = None
        self._protocol = landlord.protocol
        # The opening is a call like others: what comes after it waits for its end.
        self._running: Call | None = Call(None, 0, asker, key)
        self._queue: deque[Call] | tuple[()] = ()  # made when needed: an empty deque has 600 bytes
        self._advancing = False

    # What the session tells.

    def opened(self, error: OpenEnvError | None) -> None:
        """There is a session, or there will be none."""
        opening = self._running
        assert opening is not None
        if error is None:
            self._running = None
            self.landlord.seated()
            opening.answer(self.session.id, self.landlord.welcome(self))
            self._advance()
        else:
            # One that moved to another connection while it opened has nobody who asks.
            self.landlord.vacated(self, error if opening.asker is NOBODY else None)
            self._dismiss(error)

    def lost(self, error: OpenEnvError) -> None:
        """The session was ended by the server."""
        self.landlord.vacated(self, error)
        self._dismiss(error if isinstance(error, SessionLost) else SessionLost(error.message))

    # What a connection asks.

    @property
    def opening(self) -> bool:
        """Whether the session is not there yet."""
        return self._running is not None and self._running.message is None

    def open_again(self, asker: Asker, key: int) -> None:
        """Answers a repeated `open`."""
        if self._running is not None and self._running.message is None:
            self._join(self._running, asker, key)
        else:
            asker.answer(key, self.session.id, self.landlord.welcome(self))

    def take(self, message: Reset | Step | State, asker: Asker, key: int) -> None:
        """Executes a call, now or when those before it have ended."""
        seq = 0
        if type(message) is Step or type(message) is Reset:
            seq = message.seq
            if seq != self.accepted + 1 or message.deadline_s is not None:
                self._take_another(message, asker, key)
                return
        call = Call(message, seq, asker, key)
        if self._running is None and not self._queue:
            self.accepted = seq or self.accepted
            self._run(call)
        elif len(self._queue) < self.landlord.max_in_flight:
            self.accepted = seq or self.accepted
            self._queue = self._queue or deque()
            self._queue.append(call)
        else:
            self._refuse(asker, key, self._too_many())

    def cancel(self, asker: Asker, key: int | None = None) -> bool:
        """Gives up what an asker waits for, all of it if `key` is None. False if it waits for nothing here."""
        found = False
        for call in list(self._queue):  # an answer may bring the next call, where the client is in this process
            if call.concerns(asker, key):
                call.cancelled = found = True
                call.answer(self.session.id, self._cancelled())
        running = self._running
        if running is None or not running.concerns(asker, key):
            return found
        if running.message is None:
            self.close(Cancelled("the request to open the session was cancelled"))
        else:
            running.cancelled = True
            self.session.cancel()
        return True

    def close(self, error: OpenEnvError) -> None:
        """Ends the session; calls that are not answered yet are answered with the error."""
        self.landlord.vacated(self, None)
        self._dismiss(error)
        self.session.close()

    def leave(self) -> None:
        """Ends the session; nobody is there to be answered."""
        self._running = None
        self._queue = ()
        self.session.close()

    def move(self, landlord: Landlord) -> None:
        """Another connection has the session from here on. A call that is running goes on, for it to be repeated."""
        lost = SessionLost(f"session {self.session.id} was attached elsewhere: another connection has it now")
        last = self.recall()
        self.landlord.vacated(self, lost)
        running = self._running
        self._dismiss(lost)
        self._running = running
        self.accepted = (running.seq if running is not None else 0) or self.completed
        self.landlord, self._protocol = landlord, landlord.protocol
        if last is not None:
            self.last = self._protocol.codec.body(last)

    def recall(self) -> dict[str, Any] | None:
        """The fields of the stored reply."""
        if self.last is None:
            return None
        fields: dict[str, Any] = self._protocol.codec.decode(self._protocol.reply(1, self.last))
        del fields["id"]
        return fields

    def _take_another(self, message: Reset | Step, asker: Asker, key: int) -> None:
        """Answers what is not simply the next call."""
        seq = message.seq
        if message.deadline_s is not None:
            late = "deadline_s is for later versions of the server: leave it out, and bound the wait yourself"
            self._refuse(asker, key, UsageError(late))
        elif seq == self.completed and self.last is not None:
            asker.answer(key, self.session.id, self.last)
        elif self.completed < seq <= self.accepted:
            self._join(next(call for call in self._unanswered() if call.seq == seq), asker, key)
        else:
            order = f"call {seq} of session {self.session.id} is neither the last one nor the next, which is"
            self._refuse(asker, key, SequenceError(f"{order} {self.accepted + 1}"))

    def _join(self, call: Call, asker: Asker, key: int) -> None:
        if len(call.others) < self.landlord.max_in_flight:
            call.join(asker, key)
        else:
            self._refuse(asker, key, self._too_many())

    def _run(self, call: Call) -> None:
        self._running = call
        message = call.message
        if type(message) is Step:
            try:
                action = self._protocol.action(message.action)
            except InvalidAction as error:
                self._conclude(call, self.landlord.refusal(self.session.id, error))
            else:
                self.session.step(action, self._finished)
        elif type(message) is Reset:
            self.session.reset(message.kwargs, self._finished)
        else:
            self.session.read_state(self._finished)

    def _finished(self, result: Any, error: BaseException | None) -> None:
        call = self._running
        if call is None:  # the session ends, and everybody was told
            return
        if error is None:
            try:
                body = self._protocol.observation(result) if call.seq else self._protocol.state(result)
            except StepFailed as failure:
                body = self.landlord.refusal(self.session.id, failure)
        elif call.cancelled and isinstance(error.__cause__, asyncio.CancelledError):
            body = self._cancelled()
        else:
            assert isinstance(error, OpenEnvError)  # a session translates all others
            body = self.landlord.refusal(self.session.id, error)
        self._conclude(call, body)

    def _conclude(self, call: Call, body: Body) -> None:
        """The running call has come to its end."""
        self._running = None
        if call.seq:
            self.completed = call.seq
            self.last = body
        if call.others:
            call.answer(self.session.id, body)
        else:
            call.asker.answer(call.key, self.session.id, body)
        if self._queue:
            self._advance()

    def _advance(self) -> None:
        """Runs what waits, until a call stays running."""
        if self._advancing:  # a call that ends before `_run` returns leads back here and not deeper
            return
        self._advancing = True
        while self._queue and self._running is None:
            call = self._queue.popleft()
            if call.cancelled:
                self._conclude(call, self._cancelled())
            else:
                self._run(call)
        self._queue = self._queue or ()
        self._advancing = False

    def _unanswered(self) -> list[Call]:
        return [*self._queue] if self._running is None else [self._running, *self._queue]

    def _dismiss(self, error: OpenEnvError) -> None:
        """Answers all calls there are with an error."""
        calls = self._unanswered()
        self._running = None
        self._queue = ()
        if calls:
            body = self.landlord.refusal(self.session.id, error)
            for call in calls:
                call.answer(self.session.id, body)

    def _refuse(self, asker: Asker, key: int, error: OpenEnvError) -> None:
        asker.answer(key, self.session.id, self.landlord.refusal(self.session.id, error))

    def _cancelled(self) -> Body:
        return self._protocol.error(Cancelled("the call was cancelled by its client"))

    def _too_many(self) -> TooManyCalls:
        limit = f"{self.landlord.max_in_flight} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
        crowd = f"more than {limit} calls of session {self.session.id} wait"
        return TooManyCalls(f"{crowd}: take replies, then send more")
