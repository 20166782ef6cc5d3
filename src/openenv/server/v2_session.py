"""One session of protocol v2: its token, its numbered calls, and the reply that is kept for a repeat."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import (
    Cancelled,
    InvalidAction,
    OpenEnvError,
    SequenceError,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyCalls,
    UsageError,
)
from ..protocol.codecs import Body
from ..protocol.errors import UNSEEDED
from ..protocol.messages import ForkOp, McpOp, Op, ResetOp, RestoreOp, StateOp, StepOp, TasksOp
from ..protocol.server import ServerProtocolV2
from ..runtime.executor import Done, Snapshot
from ..runtime.session import Session
from ..telemetry.metrics import METER, Phase
from ..telemetry.tracing import ConnectionTracer
from .mcp_methods import call_mcp_method
from .v1 import oversized_reply

if TYPE_CHECKING:
    from .session_table import SessionTable


class StateCopyRequest:
    """A copy of a session's state, when its turn comes among the calls of that session.

    Args:
        taken: Called once: with the copy, to be used up or discarded, or with why there is none.
    """

    __slots__ = ("_taken",)

    def __init__(self, taken: Callable[[Snapshot | None, OpenEnvError | None], None]):
        self._taken: Callable[[Snapshot | None, OpenEnvError | None], None] | None = taken

    def give(self, seed: Snapshot | None, error: OpenEnvError | None) -> None:
        """There is a copy, or there will be none. What comes after the first word is dropped."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken(seed, error)
        elif seed is not None:
            seed.discard()


SessionRequest = ResetOp | StepOp | StateOp | ForkOp | RestoreOp | TasksOp | McpOp
"""What is asked of one session."""


class ReplySink(Protocol):
    """Where replies go: a connection, or a batch on it.

    Attributes:
        due: When what it asks for must be answered, in monotonic seconds, if a call does not say; None for never.
    """

    due: float | None

    @property
    def id(self) -> int | None:
        """Id of the request, where the calls in it have none of their own."""

    def answer(self, key: int, session: str | None, body: Body) -> None:
        """Takes the reply to what was asked under `key`: the id of a request, or the place in a batch."""


class _NullSink:
    """Drops the replies to calls that are answered already."""

    __slots__ = ()
    due: float | None = None
    id: int | None = None

    def answer(self, key: int, session: str | None, body: Body) -> None:
        pass


NULL_SINK: ReplySink = _NullSink()


def request_name(sink: ReplySink, key: int) -> str:
    """What a call is named by in logs and traces: the id of its request, with its place where that is a batch."""
    return str(key) if sink.id is None else f"{sink.id}.{key}"


class SessionCall:
    """One call that is running or waits for its turn.

    Args:
        message: What to do; None: the opening, behind which calls wait as behind any other; a `StateCopyRequest`: to
            have its state copied for another session.
        seq: Its number in the session; 0 for one that is not counted.
        sink: Who asked first, under `key`.

    Attributes:
        others: Who asked for the same call again.
        due: When it must be answered, in monotonic seconds; None for never.
        early_reply: The reply that was given before the call has ended: it was cancelled, or its time was over.
    """

    __slots__ = ("due", "early_reply", "key", "message", "others", "seq", "sink")

    def __init__(self, message: SessionRequest | StateCopyRequest | None, seq: int, sink: ReplySink, key: int):
        self.message = message
        self.seq = seq
        self.sink = sink
        self.key = key
        self.others: list[tuple[ReplySink, int]] = _NO_OTHERS
        self.due: float | None = None
        self.early_reply: Body | None = None

    def join(self, sink: ReplySink, key: int) -> None:
        """One more waits for the reply."""
        self.others = [*self.others, (sink, key)]

    def answer(self, session: str, body: Body) -> None:
        """Sends the reply to all who asked."""
        sink, self.sink = self.sink, NULL_SINK
        sink.answer(self.key, session, body)
        if self.others:
            others, self.others = self.others, _NO_OTHERS
            for other, key in others:
                other.answer(key, session, body)

    def forget_sinks(self) -> None:
        """Forgets all who asked: their connection is gone."""
        self.sink, self.others = NULL_SINK, _NO_OTHERS

    def concerns(self, sink: ReplySink, key: int | None) -> bool:
        """Whether a sink waits for it, under a certain key or any."""
        waiting = ((self.sink, self.key), *self.others)
        return any(who is sink and key in (None, what) for who, what in waiting)


# Shared, never changed: a list for each call would be a good part of its cost.
_NO_OTHERS: list[tuple[ReplySink, int]] = []


_NOT_EXECUTED = "waited for its turn for all of its deadline_s, and was not executed"


class V2Session:
    """One session of a connection; kept as the session's `user`.

    Reset, step and restore are counted by the client, from 1. A number executes once: repeated, it gets the result of
    the call that is running, or the reply that was stored. A call that was counted stays counted, also when its
    action is not valid or it is cancelled before its turn.

    Args:
        table: The sessions of the connection it belongs to.
        sink, key: Who opens the session.

    Attributes:
        session: The session of the environment; set after both are made.
        table: The sessions of the connection it belongs to now.
        token: What another connection must show to take the session over.
        awaits: Whose state its running call waits for; None as a rule.
        forked_from: The session whose state it began with; None for one that began anew.
        slot: When its calls are looked at (`timers.DeadlineTarget`).
        accepted: Number of the last call that was taken.
        completed: Number of the last call that was answered; `last` is that answer.
    """

    __slots__ = (
        "_advancing",
        "_ends_after_call",
        "_protocol",
        "_queue",
        "_running",
        "accepted",
        "awaits",
        "completed",
        "forked_from",
        "last",
        "session",
        "slot",
        "table",
        "token",
    )

    session: Session

    def __init__(self, table: SessionTable, sink: ReplySink, key: int, token: str | None):
        self.table = table
        self.token = token or secrets.token_urlsafe(16)
        self.slot = 0
        self.awaits: V2Session | None = None
        self.forked_from: str | None = None
        self.accepted = self.completed = 0
        self.last: Body | None = None
        self._protocol = table.protocol
        # The opening is a call like others: what comes after it waits for its end.
        self._running: SessionCall | None = SessionCall(None, 0, sink, key)
        self._queue: deque[SessionCall] | tuple[()] = ()  # made when needed: an empty deque has 600 bytes
        self._advancing = False
        self._ends_after_call = False

    # What the session tells.

    def opened(self, error: OpenEnvError | None) -> None:
        """There is a session, or there will be none."""
        opening = self._running
        assert opening is not None
        if error is None:
            self._running = None
            self.table.opened()
            opening.answer(self.session.id, self.table.open_reply(self))
            self._advance()
        else:
            # One that moved to another connection while it opened has no request to answer.
            self.table.released(self, error if opening.sink is NULL_SINK else None)
            self._dismiss(error)

    def lost(self, error: OpenEnvError) -> None:
        """The session was ended by the server."""
        self.table.released(self, error)
        self._dismiss(error if isinstance(error, SessionLost) else SessionLost(error.message))

    # What a connection asks.

    @property
    def opening(self) -> bool:
        """Whether the session is not there yet."""
        return self._running is not None and self._running.message is None

    def open_again(self, sink: ReplySink, key: int) -> None:
        """Answers a repeated `open`."""
        if self._running is not None and self._running.message is None:
            self._join(self._running, sink, key)
        else:
            sink.answer(key, self.session.id, self.table.open_reply(self))

    def take(self, message: SessionRequest, sink: ReplySink, key: int) -> None:
        """Executes a call, now or when those before it have ended."""
        seq, due = 0, None
        if (
            type(message) is StepOp
            or type(message) is ResetOp
            or type(message) is RestoreOp
            or type(message) is McpOp
        ):
            seq = message.seq
            if seq != self.accepted + 1:
                self._take_another(message, sink, key)
                return
            due = sink.due if message.deadline_s is None else time.monotonic() + message.deadline_s
        call = SessionCall(message, seq, sink, key)
        call.due = due
        if self._running is None and not self._queue:
            self.accepted = seq or self.accepted
            self._run(call)
            if due is not None and self._running is call:
                self.table.deadlines.watch(self, due)
        elif len(self._queue) < self.table.max_in_flight:
            self.accepted = seq or self.accepted
            self._queue = self._queue or deque()
            self._queue.append(call)
            if due is not None:
                self.table.deadlines.watch(self, due)
        else:
            self._refuse(sink, key, self._too_many())

    def copy_state(self, copy_request: StateCopyRequest) -> None:
        """Gives a copy of its state, when what was asked of it before has ended."""
        if self._running is None and not self._queue:
            self._run(SessionCall(copy_request, 0, NULL_SINK, 0))
        else:
            self._queue = self._queue or deque()
            self._queue.append(SessionCall(copy_request, 0, NULL_SINK, 0))

    def cancel(self, sink: ReplySink, key: int | None = None) -> bool:
        """Gives up what a sink waits for, all of it if `key` is None. False if it waits for nothing here."""
        concerned = [call for call in self._undecided() if call.concerns(sink, key)]
        for call in concerned:
            if call.message is None:
                self.close(Cancelled("the request to open the session was cancelled"))
            else:
                cancelled = Cancelled("the call was cancelled by its client")
                METER.failed(cancelled)
                self._give_up(call, self._protocol.error(cancelled))
                if call is self._running and not self._waits_no_longer(call):
                    self.session.cancel()
        return bool(concerned)

    def look(self, now: float) -> None:
        """Answers the calls whose time is over, and stops the one that is running."""
        for call in self._undecided():
            if call.due is None:
                continue
            if call.due > now:
                self.table.deadlines.watch(self, call.due)
            elif call is not self._running:
                self._give_up(call, self._late(call, _NOT_EXECUTED))
            else:
                ends = self.session.timeout_outcome
                self._give_up(call, self._late(call, f"did not end within its deadline_s, {ends}"))
                if not self._waits_no_longer(call) and not self.session.stop():
                    stuck = "a call did not end within its deadline_s, and its thread cannot be stopped"
                    what = f"session {self.session.id}: {stuck}: it was left behind, open another session"
                    self.lost(SessionLost(what))

    def close(self, error: OpenEnvError) -> None:
        """Ends the session; calls that are not answered yet are answered with the error."""
        self.table.released(self, None)
        self._dismiss(error)
        self.session.close()

    def detach(self) -> None:
        """The connection is gone. A call that is running goes on, for it to be repeated; the others are forgotten."""
        self._forget_waiting()
        if self._running is not None:
            self._running.forget_sinks()
        self.session.detach()

    def leave(self) -> None:
        """Ends the session to which no client came back in time, after a running call with a deadline."""
        running = self._running
        if running is not None and running.due is not None and running.early_reply is None:
            self._ends_after_call = True
        else:
            self.end()

    def end(self) -> None:
        """Ends the session without an answer to any call."""
        self.table.released(self, None)
        self._rest()
        self.session.close()

    def move(self, table: SessionTable) -> None:
        """Another connection has the session from here on. A call that is running goes on, for it to be repeated."""
        lost = SessionLost(f"session {self.session.id} was attached elsewhere: another connection has it now")
        self.table.released(self, lost)
        running, waiting = self._running, self._queue
        self._dismiss(lost)
        self._running, self._queue = running, waiting
        self._forget_waiting()
        self._ends_after_call = False
        before = self._protocol
        self.table, self._protocol = table, table.protocol
        if self._protocol is not before:  # what was answered is written again, for the client that reads it now
            translate = self._protocol.codec.body
            if self.last is not None:
                self.last = translate(_reply_fields(before, self.last))
            for call in self._unanswered():
                if call.early_reply is not None:
                    call.early_reply = translate(_reply_fields(before, call.early_reply))
        self.session.attach()
        if running is not None and running.due is not None:
            table.deadlines.watch(self, running.due)

    def recall(self) -> dict[str, Any] | None:
        """The fields of the stored reply."""
        return None if self.last is None else _reply_fields(self._protocol, self.last)

    def _take_another(self, message: ResetOp | StepOp | RestoreOp | McpOp, sink: ReplySink, key: int) -> None:
        """Answers what is not simply the next call."""
        seq = message.seq
        if seq == self.completed and self.last is not None:
            sink.answer(key, self.session.id, self.last)
        elif self.completed < seq <= self.accepted:
            self._join(next(call for call in self._unanswered() if call.seq == seq), sink, key)
        else:
            order = f"call {seq} of session {self.session.id} is neither the last one nor the next, which is"
            self._refuse(sink, key, SequenceError(f"{order} {self.accepted + 1}"))

    def _join(self, call: SessionCall, sink: ReplySink, key: int) -> None:
        if call.early_reply is not None:
            sink.answer(key, self.session.id, call.early_reply)
        elif len(call.others) < self.table.max_in_flight:
            call.join(sink, key)
        else:
            self._refuse(sink, key, self._too_many())

    def _run(self, call: SessionCall) -> None:
        self._running = call
        message = call.message
        trail = self.table.trail
        done = self._finished if trail is None or not call.seq else self._traced(call, trail)
        if type(message) is StepOp:
            try:
                action = self._protocol.action(message.action)
            except InvalidAction as error:
                done(None, error)
            else:
                self.session.step(action, done)
        elif type(message) is ResetOp:
            self.session.reset(message.kwargs, done)
        elif type(message) is StateOp:
            self.session.read_state(done)
        else:
            self._run_rarely(call, done)

    def _run_rarely(self, call: SessionCall, done: Done) -> None:
        message = call.message
        if type(message) is McpOp:
            call_mcp_method(self.session, message.method, message.params, done)
        elif type(message) is ForkOp:
            sink, call.sink = call.sink, NULL_SINK  # whom the new session answers
            self.table.fork(self, message, sink, call.key, partial(self._ended, call))
        elif type(message) is RestoreOp:
            self._restore(call, message)
        elif type(message) is StateCopyRequest:
            copy_request = message

            def saved(copy: Any, error: BaseException | None) -> None:
                assert error is None or isinstance(error, OpenEnvError)  # a session translates all others
                copy_request.give(copy, error)
                self._ended(call)

            self.session.save(saved)
        elif type(message) is TasksOp:
            self.table.ask_tasks(self, message, partial(self._answered, call))

    def _restore(self, call: SessionCall, message: RestoreOp) -> None:
        """Goes on from the state of another session, when that can be had."""
        try:
            source = self.table.source_of(self, message)
        except OpenEnvError as error:
            self._answered(call, self._failed(call, error))
            return

        def taken(seed: Snapshot | None, error: OpenEnvError | None) -> None:
            if self._running is not call:  # it was given up
                if seed is not None:
                    seed.discard()
                return
            self.awaits = None
            if seed is None:
                assert error is not None
                # As what it is, it would be taken for the end of this session.
                there = f"session {source.session.id!r} has no state to go on from: {error.message}"
                gone = UsageError(there) if isinstance(error, SessionLost) else error
                self._answered(call, self._failed(call, gone))
            else:
                self.session.load(seed, source.session, restored)

        def restored(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._answered(call, self._protocol.ok({}))
            else:
                assert isinstance(error, OpenEnvError)  # a session translates all others
                if self._running is call:
                    self._answered(call, self._failed(call, error))

        self.awaits = source
        source.copy_state(StateCopyRequest(taken))

    def _answered(self, call: SessionCall, body: Body) -> None:
        """A call that is neither reset nor step nor state has its reply."""
        if self._running is call:  # else the session ends, and its calls are answered
            self._conclude(call, call.early_reply or body)

    def _ended(self, call: SessionCall) -> None:
        """A call that needs no reply has ended."""
        if self._running is call:
            self._running = None
            if self._queue:
                self._advance()
            if self._ends_after_call and self._running is None:
                self.end()

    def _traced(self, call: SessionCall, trail: ConnectionTracer) -> Done:
        """`_finished`, with a span from here to there."""
        message, episode = call.message, self.session.episode
        if type(message) is RestoreOp:
            return self._finished
        if type(message) is ResetOp:
            episode = message.kwargs.get("episode_id")
        assert isinstance(message, Op)  # calls without a number are not traced
        name = str(message.__struct_config__.tag)
        return trail.call(name, self.session.id, episode, request_name(call.sink, call.key), self._finished)

    def _finished(self, result: Any, error: BaseException | None) -> None:
        call = self._running
        if call is None:  # the session ends, and its calls are answered
            return
        if call.early_reply is not None:
            self._conclude(call, call.early_reply)
            return
        try:
            if error is not None:
                assert isinstance(error, OpenEnvError)  # a session translates all others
                body = self._failed(call, error)
            elif not call.seq:
                body = self._protocol.state(result)
            elif type(call.message) is McpOp:
                body = self._protocol.mcp(result)
            elif type(call.message) is ResetOp and not self.session.takes_seed_of(call.message.kwargs):
                body = self._protocol.observation(result, UNSEEDED)
            elif METER.on and not call.seq & METER.SAMPLE:
                body = METER.timed(Phase.SERIALIZE, self._protocol.observation, result)
            else:
                body = self._protocol.observation(result)
            if error is None and len(body.fields) > self.table.max_reply_bytes:
                raise oversized_reply(len(body.fields), self.table.max_reply_bytes)
        except StepFailed as failure:
            self.session.refused(failure)
            body = self._failed(call, failure)
        self._conclude(call, body)

    def _failed(self, call: SessionCall, error: OpenEnvError) -> Body:
        return self.table.refusal(self.session.id, error, request_name(call.sink, call.key))

    def _conclude(self, call: SessionCall, body: Body) -> None:
        """The running call has come to its end."""
        self._running = None
        if call.seq:
            self.completed = call.seq
            self.last = body
        if call.others or call.early_reply is not None:
            call.answer(self.session.id, body)
        else:
            call.sink.answer(call.key, self.session.id, body)
        if self._queue:
            self._advance()
        if self._ends_after_call and self._running is None:
            self.end()

    def _give_up(self, call: SessionCall, body: Body) -> None:
        """Answers a call before it has ended, or begun."""
        call.early_reply = body
        call.answer(self.session.id, body)

    def _waits_no_longer(self, call: SessionCall) -> bool:
        """Lets a call that was given up end, if all that it does is to wait for another session."""
        if self.awaits is None or call.early_reply is None:
            return False
        self.awaits = None
        self._conclude(call, call.early_reply)
        return True

    def _late(self, call: SessionCall, what: str) -> Body:
        name = f"call {call.seq}" if call.seq else "a call"
        return self._failed(call, StepTimeout(f"{name} of session {self.session.id} {what}"))

    def _advance(self) -> None:
        """Runs what waits, until a call stays running."""
        if self._advancing:  # a call that ends before `_run` returns leads back here and not deeper
            return
        self._advancing = True
        while self._queue and self._running is None:
            call = self._queue.popleft()
            if call.early_reply is None and call.due is not None and call.due <= time.monotonic():
                # The timer is late: the loop was busy.
                call.early_reply = self._late(call, _NOT_EXECUTED)
            if call.early_reply is not None:
                self._conclude(call, call.early_reply)
            else:
                self._run(call)
        self._queue = self._queue or ()
        self._advancing = False

    def _undecided(self) -> list[SessionCall]:
        """The calls that were not answered yet. The running one last: those behind it must not begin when it ends."""
        calls = [call for call in self._unanswered() if call.early_reply is None]
        return sorted(calls, key=lambda call: call is self._running)

    def _unanswered(self) -> list[SessionCall]:
        return [*self._queue] if self._running is None else [self._running, *self._queue]

    def _dismiss(self, error: OpenEnvError) -> None:
        """Answers all calls there are with an error."""
        calls = [call for call in self._unanswered() if call.early_reply is None]
        self._rest()
        if calls:
            body = self.table.refusal(self.session.id, error)
            for call in calls:
                call.answer(self.session.id, body)

    def _rest(self) -> None:
        """Has nothing to do any more."""
        copy_requests = [call.message for call in self._unanswered() if type(call.message) is StateCopyRequest]
        self._running = None
        self._queue = ()
        for copy_request in copy_requests:
            copy_request.give(None, SessionLost(f"session {self.session.id} has ended"))
        if self.slot:
            self.table.deadlines.forget(self)

    def _forget_waiting(self) -> None:
        """Forgets what waits for its turn, as if it had not been taken, except for what was answered already.

        That has used its number, unless it comes after one that is forgotten.
        """
        copy_requests = [call.message for call in self._queue if type(call.message) is StateCopyRequest]
        answered = takewhile(lambda call: call.early_reply is not None or not call.seq, self._queue)
        self._queue = deque(call for call in answered if call.seq) or ()
        last = self._queue[-1] if self._queue else self._running
        self.accepted = (0 if last is None else last.seq) or self.completed
        for copy_request in copy_requests:  # the callback may ask for another one at once
            copy_request.give(None, SessionLost(f"session {self.session.id} has lost its connection"))

    def _refuse(self, sink: ReplySink, key: int, error: OpenEnvError) -> None:
        sink.answer(key, self.session.id, self.table.refusal(self.session.id, error, request_name(sink, key)))

    def _too_many(self) -> TooManyCalls:
        limit = f"{self.table.max_in_flight} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
        crowd = f"more than {limit} calls of session {self.session.id} wait"
        return TooManyCalls(f"{crowd}: take replies, then send more")


def _reply_fields(protocol: ServerProtocolV2, body: Body) -> dict[str, Any]:
    """What a stored reply says."""
    fields: dict[str, Any] = protocol.codec.decode(protocol.reply(1, body))
    del fields["id"]
    return fields
