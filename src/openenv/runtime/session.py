"""One session: its environment, its state, its calls, and their records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import errors
from ..batched import Autoreset
from ..recording import Source, Tap
from ..telemetry.logs import log_extra
from ..telemetry.metrics import METER, Gauge, Phase
from .admission import ConcurrencyGate
from .executor import PASSED_ERRORS, Done, Executor, Operation, Snapshot, describe_error, load, save
from .profile import EnvironmentProfile, Execution

if TYPE_CHECKING:
    from .manager import SessionManager


logger = logging.getLogger("openenv.sessions")


class LastSeen:
    """When a client last sent something; its sessions share it.

    Attributes:
        heard_at: Monotonic seconds.
    """

    __slots__ = ("heard_at",)

    def __init__(self) -> None:
        self.heard_at = time.monotonic()


class SessionState(Enum):
    """The states of a session, in this order. From DETACHED, a session returns to LIVE."""

    STARTING = "starting"
    LIVE = "live"
    EXECUTING = "executing"
    DETACHED = "detached"
    CLOSING = "closing"
    GONE = "gone"


# Looking a member up on its Enum class costs more than the rest of a transition.
_STARTING, _LIVE, _EXECUTING = SessionState.STARTING, SessionState.LIVE, SessionState.EXECUTING
_DETACHED, _CLOSING, _GONE = SessionState.DETACHED, SessionState.CLOSING, SessionState.GONE
_RESET, _STEP = Phase.RESET, Phase.STEP
_LOOP = Execution.LOOP

OnOpened = Callable[[errors.OpenEnvError | None], None]
"""Called with None when a session is LIVE, or with the error."""

OnLost = Callable[[errors.OpenEnvError], None]
"""Called with the reason when a session ends, unless its user ended it."""


class Origin(NamedTuple):
    """The origin of a forked session.

    Attributes:
        source: The session that its first state is copied from: a session of the same manager that executes no call,
            and gets none until `freed` is called.
        freed: Must be called once, when the source may continue.
    """

    source: Session
    freed: Callable[[], None]


class Progress(NamedTuple):
    """The progress of a session.

    Attributes:
        episode: The id that its user gave the episode; None if it has none.
        steps: Number of steps begun.
        place: The same progress in the form that records use.
    """

    episode: str | None
    steps: int
    place: Source


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """A session, from the request for it to the end of its environment's `close`.

    Args:
        id: Its id.
        _manager: Is notified of its state transitions.
        _opened: Called once, when it is open or could not be opened, unless it is closed before.
        _on_lost: Called with the reason, if its user did not end it.
        _tap: Records every reset and step, and the reply that its client gets; None if it is not recorded.

    Attributes:
        state: Its state.
        profile: How to call its environment; set when it is LIVE.
        executor: Where its environment runs; None while it waits for a slot and when it is GONE.
        created_at: Monotonic seconds.
        used_at: When its last call ended or its running call began, in monotonic seconds.
        episode: The id that its user gave the episode; None if it has none.
        steps: Number of steps begun.
        detached: Whether its client's connection is lost. Its state is DETACHED then, unless a call is in flight.
        life: When the client's connection last sent something; None if that is not tracked.
        holder: Number of the API key that it was opened with; 0 for none.
        peer: The address of its client, as text.
        owned_batch: The autoreset mode of a session that owns a whole batch; None for one that plays one episode.
        origin: The source of its state; None after the source was asked, and for a session that is not a fork.
        outlives_loop: Whether it belongs to no connection, and so outlives its event loop if its environment does.
        gone: Set when the session has ended completely; None until a caller waits for that.
        making: Whether its environment is being made.
        stuck: Whether its call, constructor or close is overdue.
        abandoned: Whether it is GONE though that call has not returned.
        user: Data of its opener; the runtime does not use it.
    """

    id: str
    _manager: SessionManager
    _opened: OnOpened
    _on_lost: OnLost | None = None
    _tap: Tap | None = None
    state: SessionState = _STARTING
    profile: EnvironmentProfile = field(init=False)
    executor: Executor | None = None
    created_at: float = field(init=False)
    used_at: float = field(init=False)
    episode: str | None = None
    steps: int = 0
    detached: bool = False
    life: LastSeen | None = None
    holder: int = 0
    peer: str = ""
    owned_batch: Autoreset | None = None
    origin: Origin | None = None
    outlives_loop: bool = False
    gone: asyncio.Event | None = None
    making: bool = False
    stuck: bool = False
    abandoned: bool = False
    user: Any = None
    _gate: ConcurrencyGate | None = field(init=False)
    _done: Done | None = None
    # A call that waits for the gate.
    _held_back: Callable[[], None] | None = None
    # Whether the call in flight has given its permit back before its end.
    _left_gate_early: bool = False
    # The phase in which the call in flight is counted.
    _phase: Phase | None = None

    def __post_init__(self) -> None:
        self.created_at = self.used_at = time.monotonic()
        self._gate = self._manager.gate

    @property
    def idle_since(self) -> float | None:
        """Monotonic time of the last call's end, or of the client's last frame if later; None unless it is LIVE."""
        if self.state is not _LIVE:
            return None
        return self.used_at if self.life is None else max(self.used_at, self.life.heard_at)

    def takes_seed_of(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the environment accepts the seed in the arguments of a reset. True if they have no seed."""
        return self.profile.seedable or arguments.get("seed") is None

    # The calls of the session's user. Only one at a time: begin the next one after `done`.

    def reset(self, arguments: dict[str, Any], done: Done) -> None:
        """Starts an episode; `done` gets the observation."""
        if self._takes_calls(done):
            episode = arguments.get("episode_id")
            self.episode = None if episode is None else str(episode)
            self._phase = _RESET
            if self._tap is not None:
                self._tap.reset(arguments)
                done = self._recorded(done, self._tap)
            self._submit(self.profile.reset, arguments, done)

    def step(self, action: Any, done: Done) -> None:
        """Executes one action; `done` gets the observation."""
        if self.state is _LIVE and self.executor is not None:
            # `_submit`, written out: this is the path of every step.
            self.steps += 1
            self.state = _EXECUTING
            if self._tap is not None:
                self._tap.do(action)
                done = self._recorded(done, self._tap)
            self._done = done
            if METER.on:
                self._phase = _STEP
                self.used_at = time.monotonic()
            if self._gate is None:
                self.executor.submit(self.profile.step, action, self._finished)
            else:
                self._enter_gate(self._gate, self.profile.step, action)
        else:
            self._takes_calls(done)

    def step_with(self, action: Any, arguments: dict[str, Any], done: Done) -> None:
        """Executes one action with further arguments. The environment's `step` gets those that it accepts."""
        if self._takes_calls(done):
            self.steps += 1
            self._phase = _STEP
            if self._tap is not None:
                self._tap.do(action, arguments)
                done = self._recorded(done, self._tap)
            self._submit(self.profile.step_with, (action, arguments), done)

    def read_state(self, done: Done) -> None:
        """Reads the environment's state."""
        if self._takes_calls(done):
            self._submit(self.profile.state, None, done)

    def call(self, operation: Operation, argument: Any, done: Done) -> None:
        """Runs any other operation on the environment, on its executor."""
        if self._takes_calls(done):
            as_action = None if self._tap is None else getattr(argument, "as_action", None)
            if self._tap is not None and as_action is not None and (action := as_action()) is not None:
                self._tap.do(action, argument.step_arguments)
                done = self._recorded(done, self._tap, argument.as_observation)
            self._submit(operation, argument, done)

    def refused(self, error: Exception) -> None:
        """Call it in `done` if the result could not be sent: records the error that the client got instead."""
        if self._tap is not None:
            self._tap.settle(error)

    def save(self, done: Done) -> None:
        """Copies the environment's state; `done` gets a `Snapshot`, which must be used or discarded.

        Another session may request the copy, so this also works in the state DETACHED.
        """
        if self.state is _DETACHED or self._takes_calls(done):
            self._submit(save, None, done)

    def load(self, snapshot: Snapshot, source: Session, done: Done) -> None:
        """Continues from the state of another session, which made the snapshot."""
        progress = source.progress  # read now: the source may continue before the load has ended

        def loaded(_: Any, error: BaseException | None) -> None:
            if error is None:
                self.continue_from(progress)
            else:
                snapshot.discard()
            done(None, error)

        if self._takes_calls(done):
            self._submit(load, snapshot, loaded)
        else:
            snapshot.discard()

    @property
    def progress(self) -> Progress:
        """Its progress, for another session that continues from there."""
        place = Source(self.id, self.episode or self.id, self.steps) if self._tap is None else self._tap.place
        return Progress(self.episode, self.steps, place)

    def continue_from(self, progress: Progress) -> None:
        """Takes over the progress of another session, whose state the environment has loaded."""
        self.episode, self.steps, place = progress
        if self._tap is not None:
            self._tap.continue_from(place)

    @property
    def timeout_outcome(self) -> str:
        """The effect of a deadline on the call, as a clause that follows "it did not end in time"."""
        if self._held_back is not None or self.executor is None or self.executor.stoppable:
            return "and was stopped"
        return (
            "and a thread cannot be stopped: it is left behind, and its session has ended (--isolation process, "
            "OPENENV_ISOLATION, stops such calls)"
        )

    def bind(self) -> None:
        """Moves the session to the running event loop, if its former event loop has ended.

        A session that cannot continue there ends, and its user gets the reason.

        Raises:
            UsageError: The session is used on another event loop.
        """
        self._manager.bind()

    def cancel(self) -> bool:
        """Stops the call in flight. Returns whether its executor can do that; `done` is called in either case."""
        executor = self.executor
        if self.state is not _EXECUTING or executor is None:
            return False
        if self._tap is not None:
            self._tap.ended(None, errors.Cancelled("the call was cancelled by its client"))
        if self._held_back is None:
            executor.cancel()
            return executor.stoppable
        gate, waiting, self._held_back = self._gate, self._held_back, None
        assert gate is not None
        gate.withdraw(waiting)
        self._phase = None
        self._finished(None, asyncio.CancelledError())
        return True

    def stop(self) -> bool:
        """Ends the call in flight at its deadline. False: it cannot be stopped, and the session ends.

        Then its thread is abandoned and its slot becomes free, unless `max_abandoned_threads` is reached.
        """
        if self._tap is not None:
            self._tap.ended(None, errors.StepTimeout(f"the call did not end within its time, {self.timeout_outcome}"))
        if self.state is not _EXECUTING or self.cancel():
            return True
        self._leave_gate_early()
        self.state = _CLOSING
        self._manager.on_closing(self)
        self._manager.ending.overdue(self)
        return False

    def detach(self) -> None:
        """The connection of its client is lost. A call in flight continues."""
        self.detached = True
        if self.state is _LIVE:
            self.state = _DETACHED

    def attach(self) -> None:
        """Its client has reconnected."""
        self.detached = False
        if self.state is _DETACHED:
            self.state = _LIVE
            self.used_at = time.monotonic()

    def close(self) -> None:
        """Ends the session, after the call in flight if there is one. May be called at any time, repeatedly."""
        state = self.state
        if state is _CLOSING or state is _GONE:
            return
        if self._tap is not None:
            self._tap.ended(None, errors.SessionLost(f"session {self.id} was closed during the call"))
            self._tap.settle()
        if self._held_back is not None:
            self.cancel()
            state = self.state
        self.state = _CLOSING
        self._manager.on_closing(self)
        executor = self.executor
        if executor is None:  # it still waits for a slot
            self._closed(None, None)
        elif state is _EXECUTING:
            executor.cancel()
            if not executor.stoppable:
                self._leave_gate_early()
        elif state is _LIVE or state is _DETACHED:
            executor.close(self._closed)
        else:  # STARTING: closed as soon as its environment is made, or its construction is stopped
            executor.cancel()

    def end(self, error: errors.OpenEnvError) -> None:
        """Ends the session and gives its user the reason."""
        if self._tap is not None:
            self._tap.ended(None, error)
        if self.state is _STARTING and self.executor is None:
            self.fail(error)
        elif self.state is _STARTING:
            opened = self._opened
            self.close()
            opened(error)
        else:
            if self._on_lost is not None and self.state is not _CLOSING and self.state is not _GONE:
                self._on_lost(error)
            self.close()

    def finish(self, error: errors.OpenEnvError) -> None:
        """Like `end`, but first answers the call in flight and the waiting calls."""
        done = self._done
        if self.state is not _EXECUTING or done is None:
            self.end(error)
            return

        def last(result: Any, failure: BaseException | None) -> None:
            done(result, failure)
            self.finish(error)

        self._done = last

    # Called by the manager.

    def start(self, executor: Executor, factory: Callable[[], Any], snapshot: Snapshot | None = None) -> None:
        """Makes the environment, and loads the snapshot into it if there is one."""
        self.executor = executor
        began = time.monotonic()

        def made(environment: Any, error: BaseException | None) -> None:
            if METER.on:
                METER.observe(Phase.CONSTRUCT, time.monotonic() - began)
            maker = self._manager.maker
            if snapshot is None or error is not None:
                maker.made(self, environment, error)
            else:
                executor.submit(load, snapshot, lambda _, failure: maker.made(self, environment, failure))

        executor.start(factory, made)

    def record_with(self, tap: Any) -> None:
        """Replaces its tap before it is opened. `tap`: a `Tap`, or an object with its methods; None: no records."""
        self._tap = tap

    def ungate(self) -> None:
        """Its calls do not count for `max_executing`: they wait for one another, and are executed together."""
        self._gate = None

    def live(self, executor: Executor, profile: EnvironmentProfile) -> None:
        """The environment was made."""
        self.executor, self.profile = executor, profile
        if self.state is _CLOSING or self.state is _GONE:
            executor.close(self._closed)
            return
        self.state = _DETACHED if self.detached else _LIVE
        self.used_at = time.monotonic()
        self._opened(None)

    def mark_stuck(self) -> None:
        """Its call, constructor or close has not returned in time."""
        self.stuck = True
        METER.add(Gauge.STUCK_THREADS, 1)

    def abandon(self) -> None:
        """Abandons the call that has not returned. If it returns later, the environment is closed on its executor."""
        self.abandoned = True
        if self._done is not None and not self._left_gate_early:
            self._leave_gate_early()
        self._end()

    def fail(self, error: errors.OpenEnvError) -> None:
        """The session could not be opened: the constructor raised, or no slot came free."""
        wanted, opened = self.state is _STARTING, self._opened
        if wanted:
            self.state = _CLOSING
            self._manager.on_closing(self)
        if self.executor is not None:
            self.executor.close(self._closed)
        elif wanted:
            self._closed(None, None)
        if wanted:
            opened(error)

    def _takes_calls(self, done: Done) -> bool:
        if self.state is _LIVE:
            return True
        done(None, errors.SessionLost(f"session {self.id} takes no call: it is {self.state.value}"))
        return False

    def _submit(self, operation: Operation, argument: Any, done: Done) -> None:
        self.state = _EXECUTING
        self._done = done
        self.used_at = time.monotonic()
        assert self.executor is not None
        if self._tap is not None:
            self._tap.settle()  # the call may change the objects that the last one returned
        if self._gate is None:
            self.executor.submit(operation, argument, self._finished)
        else:
            self._enter_gate(self._gate, operation, argument)

    def _recorded(self, done: Done, tap: Tap, read: Callable[[Any], Any] | None = None) -> Done:
        """Records the outcome of the call after `done`, so that no step waits for its own record.

        Args:
            done: The callback of the call.
            tap: The tap of the session.
            read: Makes an observation of the result; None if the result is an observation.
        """

        def ended(result: Any, error: BaseException | None) -> None:
            if error is not None:
                tap.ended(result, error)
                done(result, error)
                return
            tap.returned(result if read is None else read(result))
            done(result, None)
            # Asynchronous environments run between their calls, and may change the objects that they returned.
            if self.profile.execution is _LOOP:
                tap.settle()
            else:
                self._manager.deferred_records.add(tap)

        return ended

    def _enter_gate(self, gate: ConcurrencyGate, operation: Operation, argument: Any) -> None:
        """Executes a call as soon as the gate admits it."""

        def begin() -> None:
            self._held_back = None
            self.used_at = time.monotonic()
            assert self.executor is not None
            self.executor.submit(operation, argument, passed)

        def passed(result: Any, error: BaseException | None) -> None:
            outside, self._left_gate_early = self._left_gate_early, False
            self._finished(result, error)
            if not outside:
                gate.leave()

        self._held_back = begin
        gate.enter(begin)

    def _leave_gate_early(self) -> None:
        """Returns the permit of a call that cannot be stopped: if it hangs, it must not block others."""
        if self._gate is not None:
            self._left_gate_early = True
            self._gate.leave()

    def _finished(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        assert done is not None
        began, self.used_at = self.used_at, time.monotonic()
        if self._phase is not None:
            if METER.on:
                # `METER.observe`, written out: this is the path of every step.
                cells, cell, nanoseconds = METER.cells, self._phase.cell, int((self.used_at - began) * 1e9)
                cells[cell] += nanoseconds
                cells[cell + 1 + nanoseconds.bit_length()] += 1
            self._phase = None
        if self.state is _EXECUTING:
            self.state = _DETACHED if self.detached else _LIVE
        elif self.executor is not None:  # closed during the call
            self.executor.close(self._closed)
        # Our other errors, raised by an environment, are not about this session: the environment may be a client
        # itself and have lost its own connection.
        if error is not None and not isinstance(error, PASSED_ERRORS):
            failed = errors.StepFailed(describe_error(error))
            failed.__cause__ = error
            error = failed
        done(result, error)

    def _closed(self, _: Any, error: BaseException | None) -> None:
        self.executor = None
        if error is not None:
            extra = log_extra(self.id, self.episode)
            logger.warning("session %s: close() of its environment failed", self.id, exc_info=error, extra=extra)
        if self.stuck:
            METER.add(Gauge.STUCK_THREADS, -1)
        if self.abandoned:
            self._manager.on_returned(self)
        else:
            self._end()
        self.stuck = False

    def _end(self) -> None:
        self.state = _GONE
        self._manager.on_gone(self)
        # Breaks the reference cycle with its user, because the garbage collector seldom runs.
        self._opened, self._on_lost, self.user = lambda _: None, None, None
        if self.gone is not None:
            self.gone.set()
