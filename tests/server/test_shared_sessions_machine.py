"""Whatever is done with a session by name, in any order: a call begins once at most, and is answered once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from openenv.environment import Environment
from openenv.errors import Cancelled, SessionLost, StepFailed, TooManyCalls, UnknownSession
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import LastSeen, Session, SessionState
from openenv.server.auth import ANONYMOUS
from openenv.server.shared_sessions import AttachedSession, PendingCall, SharedSessions
from openenv.types import Action, Observation, State

MAX_WAITING = 3
PATIENCE_S = 20


class Numbered(Action):
    number: int
    wait: bool = False


class Journal:
    """What the environment of one example has done.

    Attributes:
        begun: Numbers of the steps, in the order in which they began.
        gate: Of the step that waits; None while none does.
        overlaps: Steps that began while another one was not over.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gate: Any = None
        self.overlaps = 0
        self._inside = False

    def enter(self, number: int) -> None:
        self.overlaps += self._inside
        self._inside = True
        self.begun.append(number)

    def leave(self) -> None:
        self._inside = False
        self.gate = None


class OnThread(Environment[Numbered, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    journal: Journal

    def reset(self, seed: int | None = None) -> Observation:
        return Observation()

    def step(self, action: Numbered) -> Observation:
        self.journal.enter(action.number)
        try:
            if action.wait:
                gate = self.journal.gate = threading.Event()
                assert gate.wait(PATIENCE_S)
            return Observation(reward=float(action.number))
        finally:
            self.journal.leave()

    @property
    def state(self) -> State:
        return State()


class OnLoop(OnThread):
    async def reset_async(self, seed: int | None = None) -> Observation:
        return Observation()

    async def step_async(self, action: Numbered) -> Observation:
        self.journal.enter(action.number)
        try:
            if action.wait:
                gate = self.journal.gate = asyncio.Event()
                await gate.wait()
            return Observation(reward=float(action.number))
        finally:
            self.journal.leave()


class Inline(OnThread):
    execution = "inline"

    def step(self, action: Numbered) -> Observation:
        return super().step(action.model_copy(update={"wait": False}))


class Call:
    """One that was asked for.

    Attributes:
        answers: All that its `done` heard.
        pending: As the session knows it; None if a guest asked.
        wanted: Whether whoever asked still wants to know.
        excluded: Whether it may not begin any more.
    """

    def __init__(self, number: int, wait: bool):
        self.action = Numbered(number=number, wait=wait)
        self.answers: list[tuple[Any, BaseException | None]] = []
        self.pending: PendingCall | None = None
        self.wanted = True
        self.excluded = False

    def start(self, session: Session, done: Any) -> None:
        session.step(self.action, done)

    def done(self, result: Any, error: BaseException | None) -> None:
        self.answers.append((result, error))


class Visit:
    """A connection that is attached."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.losses = 0
        self.attached: AttachedSession

    def lost(self, error: Exception) -> None:
        assert isinstance(error, SessionLost)
        self.losses += 1
        self.leave()

    def leave(self) -> None:
        """Hears nothing more; that its session was lost is the answer to what it had asked for."""
        if self.call is not None and not self.call.answers:
            self.call.wanted = False
        self.attached.close()


class Uses(RuleBasedStateMachine):
    environment: type[OnThread]

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.journal = Journal()
        kind = type(self.environment.__name__, (self.environment,), {"journal": self.journal})
        self.manager = SessionManager(kind, Limits(max_sessions=1))
        self.shared_sessions = SharedSessions(self.manager, lambda: None, MAX_WAITING)
        self.shared = self.run(self.shared_sessions.open(ANONYMOUS))
        self.calls: list[Call] = []
        self.visits: list[Visit] = []
        self.left: list[tuple[Visit, int]] = []
        self.begun_at_departure: int | None = None

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        """Until nothing happens by itself: nothing runs, or it waits at its gate."""

        async def settled() -> None:
            limit = time.monotonic() + PATIENCE_S
            while not self._is_quiet():
                assert time.monotonic() < limit, f"{self.shared.session.state} {self.journal.begun}"
                await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.run(settled())
        if self.shared.departed is not None and self.begun_at_departure is None:
            self.begun_at_departure = len(self.journal.begun)

    def _is_quiet(self) -> bool:
        gate, state = self.journal.gate, self.shared.session.state
        if gate is not None and gate.is_set():  # it leaves; also one that its session has left behind
            return False
        waits = gate is not None
        return waits if state is SessionState.EXECUTING else state is not SessionState.CLOSING or waits

    def new_call(self, wait: bool) -> Call:
        call = Call(len(self.calls), wait)
        self.calls.append(call)
        return call

    @property
    def pending(self) -> list[Call]:
        return [call for call in self.calls if call.pending is not None and call.pending.done is not None]

    def give_up(self, call: Call) -> None:
        """Nobody wants to know any more."""
        call.wanted = False
        call.excluded = call.action.number not in self.journal.begun

    def one_of(self, data: st.DataObject) -> Call:
        return data.draw(st.sampled_from(self.pending))

    # What is done with it.

    @rule(wait=st.booleans(), times=st.integers(1, 3))
    def call(self, wait: bool, times: int) -> None:
        ended = self.shared.ended
        for _ in range(times):
            call = self.new_call(wait)
            call.pending = self.shared.submit(call.start, call.done)
            assert not ended or isinstance(call.answers[0][1], UnknownSession)
        self.settle()

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), stop=st.booleans())
    def withdraw(self, data: st.DataObject, stop: bool) -> None:
        call = self.one_of(data)
        self.give_up(call)
        assert call.pending is not None
        self.shared.withdraw(call.pending, stop)
        self.settle()

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def run_out_of_time(self, data: st.DataObject) -> None:
        ask = self.one_of(data).pending
        assert ask is not None
        self.shared.stop(ask)
        self.settle()

    @precondition(lambda self: self.journal.gate is not None)
    @rule()
    def let_go_on(self) -> None:
        if self.journal.gate is not None:
            self.journal.gate.set()
        self.settle()

    @rule()
    def attach(self) -> None:
        visit = Visit()
        verdicts: list[Any] = []
        principal = ANONYMOUS._replace(session=self.shared.id)
        visit.attached = AttachedSession(self.shared_sessions, principal, verdicts.append, visit.lost)
        visit.attached.life = LastSeen()

        async def come() -> None:
            visit.attached.enter()

        self.run(come())
        assert len(verdicts) == 1
        assert isinstance(verdicts[0], UnknownSession) == self.shared.ended
        if not self.shared.ended:
            self.visits.append(visit)

    @precondition(lambda self: self.visits)
    @rule(data=st.data(), wait=st.booleans())
    def call_as_a_guest(self, data: st.DataObject, wait: bool) -> None:
        visit = data.draw(st.sampled_from(self.visits))
        if visit.losses or (visit.call is not None and not visit.call.answers):
            return  # one at a time, as connections do
        visit.call = call = self.new_call(wait)
        visit.attached.step(call.action, call.done)
        self.settle()

    @precondition(lambda self: self.visits)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        visit = data.draw(st.sampled_from(self.visits))
        self.visits.remove(visit)
        self.left.append((visit, visit.losses))
        if visit.call is not None and not visit.call.answers:
            self.give_up(visit.call)
        visit.leave()
        self.settle()

    @rule(lost=st.booleans())
    def end(self, lost: bool) -> None:
        if lost:
            self.shared.session.end(SessionLost("it was idle"))
        else:
            self.shared.depart("closed by its client")
        self.settle()

    @precondition(lambda self: self.shared.session.state is SessionState.GONE)
    @rule()
    def open_another(self) -> None:
        """There is one slot: so it has come back."""
        self.let_go_on()  # a step that was left behind: the journal is of one environment
        for visit in self.visits:
            assert visit.losses == 1
        self.visits.clear()
        self.shared = self.run(self.shared_sessions.open(ANONYMOUS))
        self.begun_at_departure = None

    # What holds at all times.

    @invariant()
    def nothing_is_answered_twice_or_to_nobody(self) -> None:
        for call in self.calls:
            assert len(call.answers) <= call.wanted, (call.action, call.answers)

    @invariant()
    def calls_begin_one_at_a_time_in_order_and_once(self) -> None:
        assert self.journal.overlaps == 0
        assert self.journal.begun == sorted(set(self.journal.begun))

    @invariant()
    def what_was_given_up_before_its_turn_does_not_begin(self) -> None:
        assert not any(call.excluded and call.action.number in self.journal.begun for call in self.calls)

    @invariant()
    def answers_say_what_was_done(self) -> None:
        for call in self.calls:
            for result, error in call.answers:
                begun = call.action.number in self.journal.begun
                assert isinstance(
                    error, (type(None), Cancelled, SessionLost, StepFailed, TooManyCalls, UnknownSession)
                )
                if error is None:
                    assert begun
                    assert result.reward == call.action.number
                elif isinstance(error, (Cancelled, TooManyCalls, UnknownSession)):
                    assert not begun

    @invariant()
    def nothing_begins_after_the_end(self) -> None:
        if self.begun_at_departure is not None:
            assert len(self.journal.begun) == self.begun_at_departure

    @invariant()
    def whoever_has_left_hears_nothing(self) -> None:
        assert all(visit.losses == losses for visit, losses in self.left)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        waiting, state = self.pending, self.shared.session.state
        if self.shared.departed is None:
            assert not waiting or state is SessionState.EXECUTING
        else:
            assert not waiting
            assert state in (SessionState.CLOSING, SessionState.GONE)

    @invariant()
    def no_more_than_may_wait(self) -> None:
        assert len(self.pending) <= MAX_WAITING + 1

    def teardown(self) -> None:
        if not hasattr(self, "shared"):
            return
        while self.journal.gate is not None:
            self.let_go_on()
        self.run(self.shared.close())
        self.settle()
        for call in self.calls:
            assert len(call.answers) == call.wanted, (call.action, call.answers)
        assert self.shared.session.state is SessionState.GONE
        assert self.manager.active == 0
        self.run(self.manager.aclose())
        self.loop.close()


@pytest.mark.parametrize("environment", [OnThread, OnLoop, Inline])
def test_calls_of_a_session_that_many_use(environment: type[OnThread]) -> None:
    class UsesOfOne(Uses):
        pass

    UsesOfOne.environment = environment
    quick = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(UsesOfOne, settings=quick)
