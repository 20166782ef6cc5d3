"""One session of protocol v2: its token, its numbered calls, and the reply that it keeps for a repeated call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .. import errors
from ..errors import OpenEnvError, SessionLost, StepFailed
from ..protocol.codecs import Body
from ..protocol.errors import UNSEEDED
from ..protocol.messages import ForkOp, McpOp, Op, ResetOp, RestoreOp, StateOp, StepOp, TasksOp
from ..protocol.sequence import Asker, NumberedCall, Sequence, name_of
from ..protocol.server import ServerProtocolV2
from ..runtime.calls import CallQueue
from ..runtime.executor import Done, Snapshot
from ..runtime.session import Session, SessionState
from ..telemetry.metrics import METER, Phase
from ..telemetry.tracing import ConnectionTracer
from .mcp_methods import call_mcp_method
from .task_provider import ask_session
from .v1 import oversized_reply

if TYPE_CHECKING:
    from .session_table import SessionTable


SessionRequest = ResetOp | StepOp | StateOp | ForkOp | RestoreOp | TasksOp | McpOp
"""The requests of one session."""


_NOT_EXECUTED = "waited for its turn for all of its deadline_s, and was not executed"


class StateCopyRequest(Struct, eq=False):
    """A request for a copy of a session's state. It waits for its turn among the calls of that session.

    Args:
        taken: Called once: with the copy, which must be used or discarded, or with the error.
    """

    taken: Callable[[Snapshot | None, OpenEnvError | None], None] | None

    def give(self, seed: Snapshot | None, error: OpenEnvError | None) -> None:
        """Passes on the copy or the error; only the first call counts."""
        taken, self.taken = self.taken, None
        if taken is not None:
            taken(seed, error)
        elif seed is not None:
            seed.discard()


@dataclass(slots=True, eq=False, repr=False)
class V2Session(CallQueue[NumberedCall]):
    """One session of a connection; kept as the session's `user`.

    Reset, step, restore and mcp are numbered calls. Opening the session is also a call, for which later calls wait.
    So is a `StateCopyRequest` of another session.

    Args:
        asker: The request that opens the session.

    Attributes:
        table: The sessions of the connection it belongs to now.
        owns_batch: Whether its actions are those of all episodes of a batch.
        token: The secret with which another connection can attach to the session.
        session: The session of the environment; set after both are made.
        sequence: The numbers of its calls.
        awaits: The session whose state its running call waits to copy; usually None.
        forked_from: The id of the session that its first state was copied from; None if it is not a fork.
        slot: The slot of `Deadlines` in which `look` is called next; set by `Deadlines`, 0 for never.
    """

    table: SessionTable
    asker: InitVar[Asker]
    token: str
    owns_batch: bool = False
    session: Session = field(init=False)
    sequence: Sequence = field(default_factory=Sequence)
    awaits: V2Session | None = None
    forked_from: str | None = None
    slot: int = 0
    _protocol: ServerProtocolV2 = field(init=False)
    _read_action: Callable[[Any], Any] = field(init=False)
    _ends_after_call: bool = False

    def __post_init__(self, asker: Asker) -> None:
        self.running = NumberedCall(None, 0, asker)
        self.speak(self.table.protocol)

    def speak(self, protocol: ServerProtocolV2) -> None:
        """Reads calls and writes replies in another codec from now on."""
        self._protocol, self._read_action = protocol, protocol.action
        if self.owns_batch:
            assert protocol.batch_action is not None
            self._read_action = protocol.batch_action

    # Callbacks of the session.

    def opened(self, error: OpenEnvError | None) -> None:
        """The session is open, or could not be opened."""
        opening = self.running
        assert opening is not None
        if error is None:
            self.running = None
            self.table.opened()
            self._answer(opening, self.table.open_reply(self))
            if self._waiting:
                self._advance()
        else:
            # A session that moved to another connection while it opened has no request to answer.
            self.table.released(self, error if opening.asker is None else None)
            self._dismiss(error)

    def lost(self, error: OpenEnvError) -> None:
        """The server has ended the session."""
        self.table.released(self, error)
        self._dismiss(error if isinstance(error, SessionLost) else SessionLost(error.message))

    # Called by the connection.

    @property
    def opening(self) -> bool:
        """Whether the session is still being opened."""
        return self.running is not None and self.running.message is None

    def open_again(self, asker: Asker) -> None:
        """Answers a repeated `open` request."""
        if self.running is not None and self.running.message is None:
            self._join(self.running, asker)
        else:
            self._reply(asker, self.table.open_reply(self))

    def take(self, message: SessionRequest, asker: Asker, due: float | None) -> None:
        """Executes a call, now or after the calls before it.

        Args:
            message: The call.
            asker: The request that contains it.
            due: The default deadline (monotonic seconds) of a numbered call that sets none.
        """
        sequence = self.sequence
        if (
            type(message) is StepOp
            or type(message) is ResetOp
            or type(message) is RestoreOp
            or type(message) is McpOp
        ):
            seq = message.seq
            if seq != sequence.accepted + 1:
                self._repeat(seq, asker)
                return
            if message.deadline_s is not None:
                due = time.monotonic() + message.deadline_s
        else:
            seq, due = 0, None
        call = NumberedCall(message, seq, asker, due)
        if self.running is None and not self._waiting:
            sequence.accepted = seq or sequence.accepted
            self.running = call
            self._run(call)
        elif len(self._waiting) < self.table.settings.max_in_flight:
            sequence.accepted = seq or sequence.accepted
            self._wait(call)
        else:
            self.table.deny(asker, self.session.id, self._too_many())
            return
        if due is not None and (self.running is call or self._waiting):
            self.table.deadlines.watch(self, due)

    def cancel(self, request: int) -> bool:
        """Cancels the calls of a request. False if the request waits for no call here."""
        concerned = [call for call in self._undecided() if call.waits_for(request)]
        for call in concerned:
            if call.message is None:
                self.close(errors.Cancelled("the request to open the session was cancelled"))
            else:
                cancelled = errors.Cancelled("the call was cancelled by its client")
                METER.failed(cancelled)
                self._give_up(call, self._protocol.error(cancelled))
                if call is self.running and not self._waits_no_longer(call):
                    self.session.cancel()
        return bool(concerned)

    def look(self, now: float) -> None:
        """Answers the calls after their deadline, and stops the running one."""
        for call in self._undecided():
            if call.due is None:
                continue
            if call.due > now:
                self.table.deadlines.watch(self, call.due)
            elif call is not self.running:
                self._give_up(call, self._late(call, _NOT_EXECUTED))
            else:
                ends = self.session.timeout_outcome
                self._give_up(call, self._late(call, f"did not end within its deadline_s, {ends}"))
                if not self._waits_no_longer(call) and not self.session.stop():
                    stuck = "a call did not end within its deadline_s, and its thread cannot be stopped"
                    what = f"session {self.session.id}: {stuck}: it was left behind, open another session"
                    self.lost(SessionLost(what))

    def close(self, error: OpenEnvError) -> None:
        """Ends the session. Calls without a reply get the error."""
        self.table.released(self, None)
        self._dismiss(error)
        self.session.close()

    def detach(self) -> None:
        """The connection is lost. The running call continues, so that it can be repeated. Drops the waiting calls."""
        self._forget_waiting()
        if self.running is not None:
            self.running.take_askers()
        self.session.detach()

    def leave(self) -> None:
        """Ends the session because no client came back in time. A running call with a deadline ends first."""
        running = self.running
        if running is not None and running.due is not None and running.early_reply is None:
            self._ends_after_call = True
        else:
            self.end()

    def end(self) -> None:
        """Ends the session without answering its calls."""
        self.table.released(self, None)
        self._rest()
        self.session.close()

    def move(self, table: SessionTable) -> None:
        """Moves the session to another connection. The running call continues, so that the client can repeat it."""
        lost = SessionLost(f"session {self.session.id} was attached elsewhere: another connection has it now")
        self.table.released(self, lost)
        running, waiting = self.running, self._waiting
        self._dismiss(lost)
        self.running, self._waiting = running, waiting
        self._forget_waiting()
        self._ends_after_call = False
        before = self._protocol
        self.table = table
        self.speak(table.protocol)
        if self._protocol is not before:  # encode the stored replies again, in the codec of the new connection
            read, write = before.codec.fields, self._protocol.codec.body
            self.sequence.rewrite(lambda body: write(read(body)), self._unfinished())
        self.session.attach()
        if running is not None and running.due is not None:
            table.deadlines.watch(self, running.due)

    def resume_facts(self) -> dict[str, Any]:
        """The facts that a client needs to resume: the session's state, the last completed call, and its reply."""
        state = self.session.state
        if state is SessionState.DETACHED:
            state = SessionState.LIVE  # from now on
        facts = {"session": self.session.id, "state": state.value, "seq": self.sequence.completed}
        last = self.sequence.last
        return facts if last is None else {**facts, "last": self._protocol.codec.fields(last)}

    def _repeat(self, seq: int, asker: Asker) -> None:
        """Answers a call that does not have the next number."""
        found = self.sequence.find(seq, self._unfinished())
        if isinstance(found, NumberedCall):
            self._join(found, asker)
        elif found is not None:
            self._reply(asker, found)
        else:
            order = f"call {seq} of session {self.session.id} is neither the last one nor the next, which is"
            self.table.deny(asker, self.session.id, errors.SequenceError(f"{order} {self.sequence.accepted + 1}"))

    def _join(self, call: NumberedCall, asker: Asker) -> None:
        if call.early_reply is not None:
            self._reply(asker, call.early_reply)
        elif len(call.others) < self.table.settings.max_in_flight:
            call.join(asker)
        else:
            self.table.deny(asker, self.session.id, self._too_many())

    def _begin(self, call: NumberedCall) -> None:
        if call.early_reply is None and call.due is not None and call.due <= time.monotonic():
            # The timer is late because the event loop was busy.
            call.early_reply = self._late(call, _NOT_EXECUTED)
        if call.early_reply is not None:
            self._conclude(call, call.early_reply)
        else:
            self._run(call)

    def _run(self, call: NumberedCall) -> None:
        message = call.message
        trail = self.table.trail
        done = self._finished if trail is None or not call.seq else self._traced(call, trail)
        if type(message) is StepOp:
            try:
                action = self._read_action(message.action)
            except errors.InvalidAction as error:
                done(None, error)
            else:
                self.session.step(action, done)
        elif type(message) is ResetOp:
            self.session.reset(message.kwargs, done)
        elif type(message) is StateOp:
            self.session.read_state(done)
        else:
            self._run_rarely(call, done)

    def _run_rarely(self, call: NumberedCall, done: Done) -> None:
        message = call.message
        if type(message) is McpOp:
            call_mcp_method(self.session, message.method, message.params, done)
        elif type(message) is ForkOp:
            (asker,) = call.take_askers()  # the new session answers it
            self.table.fork(self, message, asker, partial(self._ended, call))
        elif type(message) is RestoreOp:
            try:
                source = self.table.source_of(self, message)
            except OpenEnvError as error:
                self._fail(call, error)
            else:
                self._restore(call, source)
        elif type(message) is StateCopyRequest:
            copy_request = message

            def saved(copy: Any, error: BaseException | None) -> None:
                assert error is None or isinstance(error, OpenEnvError)  # a session translates all others
                copy_request.give(copy, error)
                self._ended(call)

            self.session.save(saved)
        elif type(message) is TasksOp:
            ask_session(self.session, message, done)

    def _tasks_reply(self, answer: Any) -> Body:
        try:
            return self._protocol.ok({"result": answer})
        except ValueError as fault:
            raise StepFailed(f"the reply cannot be sent: {fault}") from fault

    def _restore(self, call: NumberedCall, source: V2Session) -> None:
        """Executes the running restore: continues from the state of another session, once that state is ready."""

        def taken(seed: Snapshot | None, error: OpenEnvError | None) -> None:
            if self.running is not call:  # it was cancelled, or its deadline has passed
                if seed is not None:
                    seed.discard()
                return
            self.awaits = None
            if seed is None:
                assert error is not None
                # The client would take the original error for the end of this session.
                there = f"session {source.session.id!r} has no state to restore: {error.message}"
                self._fail(call, errors.UsageError(there) if isinstance(error, SessionLost) else error)
            else:
                self.session.load(seed, source.session, restored)

        def restored(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._answered(call, self._protocol.ok({}))
            else:
                assert isinstance(error, OpenEnvError)  # a session translates all others
                self._fail(call, error)

        self.awaits = source
        source._wait(NumberedCall(StateCopyRequest(taken), 0, None))

    def _fail(self, call: NumberedCall, error: OpenEnvError) -> None:
        """A call ends with an error."""
        if self.running is call:
            self._answered(call, self._failed(call, error))

    def _answered(self, call: NumberedCall, body: Body) -> None:
        """Answers the running call, which is neither reset nor step nor state."""
        if self.running is call:  # otherwise the session is ending and has answered its calls
            self._conclude(call, call.early_reply or body)

    def _ended(self, call: NumberedCall) -> None:
        """A call that needs no reply has ended."""
        if self.running is call:
            self._end()
            if self._ends_after_call and self.running is None:
                self.end()

    def _traced(self, call: NumberedCall, trail: ConnectionTracer) -> Done:
        """Wraps `_finished` in a tracing span."""
        message, episode = call.message, self.session.episode
        if type(message) is RestoreOp:
            return self._finished
        if type(message) is ResetOp:
            episode = message.kwargs.get("episode_id")
        assert isinstance(message, Op)  # calls without a number are not traced
        name = str(message.__struct_config__.tag)
        return trail.call(name, self.session.id, episode, name_of(call.asker), self._finished)

    def _finished(self, result: Any, error: BaseException | None) -> None:
        call = self.running
        if call is None:  # the session is ending and has answered its calls
            return
        if call.early_reply is not None:
            self._conclude(call, call.early_reply)
            return
        try:
            if error is not None:
                assert isinstance(error, OpenEnvError)  # a session translates all others
                body = self._failed(call, error)
            elif not call.seq:
                body = self._protocol.state(result) if type(call.message) is StateOp else self._tasks_reply(result)
            elif type(call.message) is McpOp:
                body = self._protocol.mcp(result)
            elif type(call.message) is ResetOp and not self.session.takes_seed_of(call.message.kwargs):
                body = self._protocol.observation(result, notes=UNSEEDED)
            elif METER.on and not call.seq & METER.SAMPLE:
                body = METER.timed(Phase.SERIALIZE, self._protocol.observation, result)
            else:
                body = self._protocol.observation(result)
            if error is None and body.size > self.table.max_reply_bytes:
                raise oversized_reply(body.size, self.table.max_reply_bytes)
        except StepFailed as failure:
            self.session.refused(failure)
            body = self._failed(call, failure)
        self._conclude(call, body)

    def _failed(self, call: NumberedCall, error: OpenEnvError) -> Body:
        return self.table.refusal(self.session.id, error, name_of(call.asker))

    def _conclude(self, call: NumberedCall, body: Body) -> None:
        """Ends the running call with a reply."""
        self.running = None
        if call.seq:
            self.sequence.completed, self.sequence.last = call.seq, body
        if call.others or call.asker is None:
            self._answer(call, body)
        else:
            self.table.replies.answer(call.asker, self.session.id, body)
        if self._waiting:
            self._advance()
        if self._ends_after_call and self.running is None:
            self.end()

    def _answer(self, call: NumberedCall, body: Body) -> None:
        """Sends the reply to all requests that wait for it."""
        for asker in call.take_askers():
            self.table.replies.answer(asker, self.session.id, body)

    def _give_up(self, call: NumberedCall, body: Body) -> None:
        """Answers a call before it has ended, or before it has begun."""
        call.early_reply = body
        self._answer(call, body)

    def _waits_no_longer(self, call: NumberedCall) -> bool:
        """Ends a cancelled call if it only waits for another session. Returns whether it did."""
        if self.awaits is None or call.early_reply is None:
            return False
        self.awaits = None
        self._conclude(call, call.early_reply)
        return True

    def _late(self, call: NumberedCall, what: str) -> Body:
        name = f"call {call.seq}" if call.seq else "a call"
        return self._failed(call, errors.StepTimeout(f"{name} of session {self.session.id} {what}"))

    def _undecided(self) -> list[NumberedCall]:
        """The unanswered calls, the running one last, so that no waiting call begins when it ends."""
        calls = [call for call in self._unfinished() if call.early_reply is None]
        return sorted(calls, key=lambda call: call is self.running)

    def _dismiss(self, error: OpenEnvError) -> None:
        """Answers all calls with an error."""
        calls = [call for call in self._unfinished() if call.early_reply is None]
        self._rest()
        if calls:
            body = self.table.refusal(self.session.id, error)
            for call in calls:
                self._answer(call, body)

    def _rest(self) -> None:
        """Cleans up after the last call."""
        calls = self._unfinished()
        self.running, self._waiting = None, ()
        for call in calls:
            if type(call.message) is StateCopyRequest:
                call.message.give(None, SessionLost(f"session {self.session.id} has ended"))
        if self.slot:
            self.table.deadlines.forget(self)

    def _forget_waiting(self) -> None:
        """Drops the waiting calls as if they had never arrived, and takes back their numbers."""
        copy_requests = [call.message for call in self._waiting if type(call.message) is StateCopyRequest]
        self._waiting = deque(self.sequence.rewind(self.running, self._waiting)) or ()
        for copy_request in copy_requests:  # the callback may add another request at once
            copy_request.give(None, SessionLost(f"session {self.session.id} has lost its connection"))

    def _reply(self, asker: Asker, body: Body) -> None:
        self.table.replies.answer(asker, self.session.id, body)

    def _too_many(self) -> OpenEnvError:
        limit = f"{self.table.settings.max_in_flight} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
        crowd = f"more than {limit} calls of session {self.session.id} wait"
        return errors.TooManyCalls(f"{crowd}: receive replies before sending more")
