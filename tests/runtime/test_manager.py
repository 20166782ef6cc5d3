"""Who gets a session, and what becomes of all of them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openenv.errors import (
    ConcurrencyConfigurationError,
    Draining,
    FactoryFailed,
    OpenEnvError,
    QueueTimeout,
    ServerFull,
    SessionLost,
    UnknownSession,
    UsageError,
)
from openenv.runtime import manager as manager_module
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import SessionState
from openenv.types import Action

from ..asynchronous import PATIENCE_S, Gate, Witness, forgotten, open_session, outcome, until
from ..environments import AsyncPlain, Diary, Exclusive, Gated, InlinePlain, MixedPlain, Plain

pytestmark = pytest.mark.usefixtures("no_threads_left")

EVERY_KIND = pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain, MixedPlain])
LONG_S = 1000.0


async def closed(manager, *sessions):
    """Closes sessions and waits until their slots are free."""
    left = manager.active - len(sessions)
    for session in sessions:
        session.close()
    await until(lambda: manager.active == left)


class Sealed:
    """Its methods tell nobody what they take, as those of compiled classes."""

    reset = step = dict.update


class TestCapacity:
    @EVERY_KIND
    async def test_the_limit_is_exact(self, cls):
        manager = SessionManager(cls, Limits(3))
        sessions = [(await open_session(manager))[0] for _ in range(3)]
        with pytest.raises(ServerFull) as caught:
            await open_session(manager)
        assert (caught.value.active_sessions, caught.value.max_sessions) == (3, 3)
        assert manager.active == 3
        assert manager.sessions == sessions
        await closed(manager, sessions[1])
        another, _ = await open_session(manager)
        assert manager.sessions == [sessions[0], sessions[2], another]
        await manager.aclose()

    async def test_it_holds_when_all_ask_at_once(self):
        manager = SessionManager(Plain, Limits(5))
        witnesses = [Witness() for _ in range(12)]
        for witness in witnesses:
            witness.asks(manager)
        for witness in witnesses:
            await witness.heard()
        refused = [witness.verdicts[0] for witness in witnesses if witness.verdicts != [None]]
        assert [type(error) for error in refused] == [ServerFull] * 7
        assert manager.active == 5
        await manager.aclose()

    async def test_a_session_counts_while_its_environment_is_made_and_until_it_is_closed(self):
        making, closing = Gate(), Gate()
        manager = SessionManager(partial(Gated, making=making, closing=closing), Limits(1))
        witness = Witness()
        session = witness.asks(manager)
        await making.reached()
        assert manager.active == 1
        with pytest.raises(ServerFull):
            await open_session(manager)
        making.open()
        await witness.heard()
        session.close()
        await closing.reached()
        assert (manager.active, session.state) == (1, SessionState.CLOSING)
        closing.open()
        await until(lambda: manager.active == 0)

    async def test_a_refused_session_is_over(self):
        manager = SessionManager(InlinePlain, Limits(1))
        await open_session(manager)
        witness = Witness()
        session = witness.asks(manager)
        assert [type(error) for error in witness.verdicts] == [ServerFull]
        assert session.state is SessionState.GONE
        session.close()
        assert (manager.active, witness.losses) == (1, [])
        await manager.aclose()


class TestWaiting:
    async def test_first_come_first_served(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        holder, _ = await open_session(manager)
        served: list[int] = []
        queue = [manager.create(lambda error, number=number: served.append(number)) for number in range(4)]
        for session in queue:
            manager.open(session)
        assert served == []
        holder.close()
        for session in queue:
            assert session.state is SessionState.LIVE
            session.close()
        assert served == [0, 1, 2, 3]
        assert manager.active == 0

    async def test_one_that_gives_up_is_passed_over(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        holder, _ = await open_session(manager)
        first, second = Witness(), Witness()
        quitter = first.asks(manager)
        patient = second.asks(manager)
        quitter.close()
        assert quitter.state is SessionState.GONE
        holder.close()
        assert (first.verdicts, second.verdicts) == ([], [None])
        assert patient.state is SessionState.LIVE
        await manager.aclose()

    async def test_one_that_gave_up_leaves_nothing_behind(self):
        """A queue with an hour of patience must not remember for an hour who has left it."""

        class Listener:
            def opened(self, error):
                """Never called."""

        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        await open_session(manager)
        listener = Listener()
        session = manager.create(listener.opened)
        manager.open(session)
        session.close()
        reference = weakref.ref(listener)
        del listener, session
        assert forgotten(reference)
        await manager.aclose()

    async def test_one_that_waited_long_enough_is_refused(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=0.01))
        holder, _ = await open_session(manager)
        witness = Witness()
        session = witness.asks(manager)
        assert witness.verdicts == []
        await witness.heard()
        (error,) = witness.verdicts
        assert type(error) is QueueTimeout
        assert (error.active_sessions, error.max_sessions) == (1, 1)
        assert "queue_timeout_s" in error.message
        assert session.state is SessionState.GONE
        await closed(manager, holder)
        await open_session(manager)
        await manager.aclose()

    async def test_one_that_was_served_is_not_refused_later(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=0.01))
        holder, _ = await open_session(manager)
        witness, later = Witness(), Witness()
        session = witness.asks(manager)
        later.asks(manager)
        holder.close()
        await later.heard()  # whose patience ends after the other's
        assert [type(error) for error in later.verdicts] == [QueueTimeout]
        assert (witness.verdicts, session.state) == ([None], SessionState.LIVE)
        await manager.aclose()

    async def test_without_a_queue_one_waits_for_a_slot_that_is_about_to_be_free(self):
        closing = Gate()
        manager = SessionManager(partial(Gated, closing=closing), Limits(1))
        session, _ = await open_session(manager)
        session.close()
        await closing.reached()
        heir = Witness()
        heir.asks(manager)
        with pytest.raises(ServerFull):  # that slot has an heir
            await open_session(manager)
        assert heir.verdicts == []
        closing.open()
        await heir.heard()
        assert heir.verdicts == [None]
        await manager.aclose()

    async def test_a_factory_that_fails_for_everybody_who_waits(self):
        """Each failure frees the slot for the next: the way there must not grow with the queue."""
        works = True

        class Fickle(InlinePlain):
            def __init__(self):
                super().__init__()
                if not works:
                    raise LookupError("the disk is full")

        manager = SessionManager(Fickle, Limits(1, queue_timeout_s=LONG_S))
        holder, _ = await open_session(manager)
        heard: list[OpenEnvError | None] = []
        for _ in range(500):
            manager.open(manager.create(heard.append))
        works = False
        holder.close()
        await until(lambda: len(heard) == 500)
        assert {type(error) for error in heard} == {FactoryFailed}
        assert manager.active == 0

    async def test_a_queue_of_people_who_leave_at_once(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        holder, _ = await open_session(manager)
        served = []

        def ask():
            session = manager.create(lambda error: (served.append(error), session.close()))
            manager.open(session)

        for _ in range(500):
            ask()
        holder.close()
        await until(lambda: len(served) == 500)
        assert set(served) == {None}
        assert manager.active == 0


class TestFactories:
    @EVERY_KIND
    @pytest.mark.parametrize("declared", [True, False])
    async def test_a_constructor_that_raises(self, cls, declared):
        class Broken(cls):
            def __init__(self):
                raise LookupError("no board")

        manager = SessionManager(Broken if declared else lambda: Broken(), Limits(2))
        with pytest.raises(FactoryFailed, match=r"LookupError: no board \(.*test_manager\.py:\d+\)") as caught:
            await open_session(manager)
        assert caught.value.factory_name == manager.maker.name == ("Broken" if declared else "<lambda>")
        assert isinstance(caught.value.__cause__, LookupError)
        await until(lambda: manager.active == 0)

    @EVERY_KIND
    async def test_a_constructor_that_raises_without_words(self, cls):
        class Broken(cls):
            def __init__(self):
                raise SystemExit

        manager = SessionManager(Broken, Limits(2))
        with pytest.raises(FactoryFailed, match="SystemExit"):
            await open_session(manager)
        await until(lambda: manager.active == 0)

    @pytest.mark.parametrize("failure", [UnknownSession("s-1"), Draining("elsewhere")])
    async def test_a_constructor_that_raises_an_error_of_our_tree(self, failure):
        """An environment that is itself a client, say: the caller's session could not be made all the same."""

        class Broken(InlinePlain):
            def __init__(self):
                raise failure

        manager = SessionManager(Broken, Limits(1))
        with pytest.raises(FactoryFailed) as caught:
            await open_session(manager)
        assert caught.value.__cause__ is failure

    @pytest.mark.parametrize("made", [None, 3, object()])
    async def test_a_factory_that_makes_no_environment(self, made):
        manager = SessionManager(lambda: made, Limits(1))
        with pytest.raises(FactoryFailed):
            await open_session(manager)
        await until(lambda: manager.active == 0)

    async def test_a_failure_leaves_the_next_one_its_slot(self):
        attempts = []

        class Second(Plain):
            def __init__(self):
                super().__init__()
                attempts.append(1)
                if len(attempts) == 1:
                    raise LookupError

        manager = SessionManager(Second, Limits(1))
        with pytest.raises(FactoryFailed):
            await open_session(manager)
        await open_session(manager)
        assert manager.active == 1
        await manager.aclose()

    @EVERY_KIND
    async def test_a_function_whose_class_is_unknown(self, cls):
        """The instance tells where it belongs."""
        notes: list[tuple[str, int]] = []

        class Diarist(Diary, cls):
            pass

        manager = SessionManager(lambda: Diarist(notes), Limits(2))
        session, _ = await open_session(manager)
        observation, error = await outcome(partial(session.step, Action()))
        assert (observation.reward, error) == (1.0, None)
        await manager.aclose()
        threads = dict(notes)
        on_the_loop = threads["step"] == threading.get_ident()
        assert on_the_loop == (cls in (InlinePlain, AsyncPlain))
        assert [method for method, _ in notes] == ["init", "step", "close"]

    async def test_closing_while_a_function_makes_what_belongs_elsewhere(self):
        gate, made = Gate(), []

        class Inline(Gated, InlinePlain):
            pass

        def make():
            made.append(Inline(making=gate))
            return made[-1]

        manager, witness = SessionManager(make, Limits(1)), Witness()
        session = witness.asks(manager)
        await gate.reached()
        session.close()
        gate.open()
        await until(lambda: manager.active == 0)
        assert (witness.verdicts, made[0].closings) == ([], 1)

    @pytest.mark.parametrize("limit", [1, 2])
    async def test_instances_that_cannot_live_together(self, limit):
        made = []

        def make():
            made.append(Exclusive())
            return made[-1]

        manager = SessionManager(make, Limits(limit))
        if limit == 1:
            await open_session(manager)
        else:
            with pytest.raises(ConcurrencyConfigurationError, match="Exclusive"):
                await open_session(manager)
        await manager.aclose()
        assert made[0].closings == 1

    async def test_an_unknown_execution(self):
        class Strange(Plain):
            execution = "fibre"

        with pytest.raises(UsageError, match="fibre"):
            SessionManager(Strange, Limits(1))
        manager = SessionManager(lambda: Strange(), Limits(1))
        with pytest.raises(OpenEnvError, match="fibre"):
            await open_session(manager)
        await until(lambda: manager.active == 0)

    @pytest.mark.parametrize(
        ("factory", "name"),
        [
            (Plain, "Plain"),
            (partial(Gated, stepping=None), "Gated"),
            (type("Maker", (), {"__call__": Plain})(), "Maker"),
        ],
        ids=["class", "partial", "object"],
    )
    def test_the_name_of_a_factory(self, factory, name):
        assert SessionManager(factory, Limits(1)).maker.name == name

    @pytest.mark.parametrize("cls", [Plain, AsyncPlain])
    async def test_a_machine_without_a_thread_to_give(self, cls, monkeypatch):
        def refuse(self):
            raise RuntimeError("can't start new thread")

        manager = SessionManager(cls, Limits(1))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OpenEnvError, match="can't start new thread"):
                await open_session(manager)
        await until(lambda: manager.active == 0)
        await open_session(manager)
        await manager.aclose()

    async def test_a_machine_without_a_thread_to_give_to_an_instance_that_moves_to_the_loop(self, monkeypatch):
        real, starts = threading.Thread.start, []

        def refuse_the_second(self):
            starts.append(self)
            if len(starts) == 2:
                raise RuntimeError("can't start new thread")
            real(self)

        manager = SessionManager(lambda: AsyncPlain(), Limits(1))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_the_second)
            with pytest.raises(OpenEnvError, match="can't start new thread"):
                await open_session(manager)
            await until(lambda: manager.active == 0)
        await open_session(manager)
        await manager.aclose()

    async def test_further_helpers_are_no_must(self, monkeypatch):
        def refuse(self):
            raise RuntimeError("can't start new thread")

        manager = SessionManager(AsyncPlain, Limits(8))
        await open_session(manager)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        witnesses = [Witness() for _ in range(4)]
        for witness in witnesses:
            witness.asks(manager)
        for witness in witnesses:
            await witness.heard()
            assert witness.verdicts == [None]
        await manager.aclose()

    async def test_an_instance_whose_methods_cannot_be_read_gives_its_slot_back(self):
        manager = SessionManager(lambda: Sealed(), Limits(1))
        for _ in range(2):
            with pytest.raises(FactoryFailed, match="made a Sealed with methods that cannot be read: ValueError"):
                await open_session(manager)
            await until(lambda: manager.active == 0)
        await manager.aclose()


class TestIdle:
    @EVERY_KIND
    async def test_an_idle_session_is_closed_and_told_why(self, cls):
        manager = SessionManager(cls, Limits(2, idle_timeout_s=0.01))
        session, witness = await open_session(manager)
        await witness.heard()
        (reason,) = witness.losses
        assert type(reason) is SessionLost
        assert session.id in reason.message
        assert "idle_timeout_s" in reason.message
        await until(lambda: manager.active == 0)

    async def test_a_session_with_a_call_in_flight_is_not(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, stepping=gate), Limits(2, idle_timeout_s=0.01))
        witness, answers = Witness(), []
        # Its call comes with the news that it is open: it is not idle before.
        busy = manager.create(lambda _: busy.step(Action(), lambda *answer: answers.append(answer)), witness.lost)
        manager.open(busy)
        await gate.reached()
        _, idle = await open_session(manager)
        await idle.heard()  # opened later, and its lease is over
        assert (busy.state, witness.losses) == (SessionState.EXECUTING, [])
        gate.open()
        await witness.heard()  # now it is idle itself
        ((observation, error),) = answers
        assert (observation.reward, error) == (1.0, None)
        assert [type(reason) for reason in witness.losses] == [SessionLost]
        await until(lambda: manager.active == 0)

    async def test_a_session_that_is_being_made_is_not(self):
        gate = Gate()
        factories = [partial(Gated, making=gate), Plain]
        manager, slow = SessionManager(lambda: factories.pop(0)(), Limits(2, idle_timeout_s=0.01)), Witness()
        starting = slow.asks(manager)
        await gate.reached()
        _, idle = await open_session(manager)
        await idle.heard()
        assert (starting.state, slow.verdicts, slow.losses) == (SessionState.STARTING, [], [])
        gate.open()
        await slow.heard()
        await manager.aclose()

    async def test_its_slot_goes_to_who_waits(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S, idle_timeout_s=0.01))
        _, first = await open_session(manager)
        second = Witness()
        second.asks(manager)
        await second.heard()
        assert ([type(e) for e in first.losses], second.verdicts) == ([SessionLost], [None])
        await second.heard()  # and is given back in turn
        assert [type(e) for e in second.losses] == [SessionLost]
        assert manager.active == 0

    async def test_without_a_limit_no_session_is(self):
        manager = SessionManager(InlinePlain, Limits(2))
        session, witness = await open_session(manager)
        limited = SessionManager(InlinePlain, Limits(2, idle_timeout_s=0.01))
        _, other = await open_session(limited)
        await other.heard()
        assert (session.state, witness.losses) == (SessionState.LIVE, [])
        await manager.aclose()

    def test_it_works_on_the_next_loop_too(self):
        """Whether the sessions of the last loop were closed or not."""
        manager = SessionManager(InlinePlain, Limits(4, idle_timeout_s=0.01))

        async def leave_one_open():
            await open_session(manager)

        async def idle():
            _, witness = await open_session(manager)
            await witness.heard()
            return witness.losses

        asyncio.run(leave_one_open())
        (reason,) = asyncio.run(idle())
        assert type(reason) is SessionLost


class TestAclose:
    @EVERY_KIND
    async def test_it_leaves_nothing(self, cls):
        before = asyncio.all_tasks()
        made = []

        def factory() -> cls:
            made.append(cls())
            return made[-1]

        factory.__annotations__["return"] = cls
        manager = SessionManager(factory, Limits(4, idle_timeout_s=LONG_S))
        opened = [await open_session(manager) for _ in range(3)]
        await outcome(partial(opened[0][0].step, Action()))
        await manager.aclose()
        assert (manager.active, manager.sessions) == (0, [])
        assert [environment.closings for environment in made] == [1, 1, 1]
        assert {session.state for session, _ in opened} == {SessionState.GONE}
        assert [type(e) for _, witness in opened for e in witness.losses] == [Draining] * 3
        await until(lambda: asyncio.all_tasks() <= before)

    async def test_without_sessions_it_returns_at_once(self):
        manager = SessionManager(Plain, Limits(1))
        await manager.aclose()
        await manager.aclose()

    async def test_it_waits_for_a_call_in_flight(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, stepping=gate), Limits(1))
        session, _ = await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        stopping = asyncio.create_task(manager.aclose())
        await asyncio.sleep(0)
        assert not stopping.done()
        gate.open()
        await asyncio.wait_for(stopping, PATIENCE_S)
        observation, error = await step
        assert (observation.reward, error) == (1.0, None)

    async def test_it_does_not_wait_for_a_thread_that_hangs(self, monkeypatch, caplog):
        gate = Gate()
        manager = SessionManager(partial(Gated, stepping=gate), Limits(2))
        (stuck, _), (idle, _) = await open_session(manager), await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(stuck.step, Action())))
        await gate.reached()
        closing = asyncio.create_task(manager.aclose())
        await until(lambda: idle.state is SessionState.GONE)
        assert not closing.done()
        monkeypatch.setattr(manager_module, "SHUTDOWN_S", 0.05)  # for the one that hangs; the idle one had its time
        await asyncio.wait_for(manager.aclose(), PATIENCE_S)
        assert stuck.id in caplog.text
        assert idle.id not in caplog.text
        gate.open()
        await closing
        await step
        await until(lambda: manager.active == 0)

    async def test_it_cancels_a_call_on_the_loop(self):
        began = asyncio.Event()

        class Endless(AsyncPlain):
            async def step_async(self, action, timeout_s=None):
                began.set()
                await asyncio.Event().wait()

        manager = SessionManager(Endless, Limits(1))
        session, _ = await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await began.wait()
        await asyncio.wait_for(manager.aclose(), PATIENCE_S)
        assert isinstance((await step)[1], OpenEnvError)

    async def test_it_waits_for_a_constructor(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, making=gate), Limits(1))
        witness = Witness()
        session = witness.asks(manager)
        await gate.reached()
        stopping = asyncio.create_task(manager.aclose())
        await witness.heard()
        gate.open()
        await asyncio.wait_for(stopping, PATIENCE_S)
        assert [type(error) for error in witness.errors] == [Draining]
        assert None not in witness.verdicts
        assert session.state is SessionState.GONE

    async def test_who_waits_is_told(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        await open_session(manager)
        witness = Witness()
        session = witness.asks(manager)
        await manager.aclose()
        assert [type(error) for error in witness.errors] == [Draining]
        assert None not in witness.verdicts
        assert session.state is SessionState.GONE

    async def test_a_newcomer_is_sent_elsewhere(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, closing=gate), Limits(4))
        await open_session(manager)
        stopping = asyncio.create_task(manager.aclose())
        await gate.reached()
        with pytest.raises(Draining):
            await open_session(manager)
        gate.open()
        await asyncio.wait_for(stopping, PATIENCE_S)

    async def test_two_may_wait_for_it(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, closing=gate), Limits(1))
        await open_session(manager)
        both = asyncio.gather(manager.aclose(), manager.aclose())
        await gate.reached()
        gate.open()
        await asyncio.wait_for(both, PATIENCE_S)
        assert manager.active == 0

    async def test_who_gives_up_waiting_for_it_does_not_stop_it(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, closing=gate), Limits(1))
        await open_session(manager)
        stopping = asyncio.create_task(manager.aclose())
        await gate.reached()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        gate.open()
        await until(lambda: manager.active == 0)

    async def test_who_gives_up_waiting_for_it_does_not_harm_another_who_waits(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, closing=gate), Limits(4))
        await open_session(manager)
        first, second = asyncio.create_task(manager.aclose()), asyncio.create_task(manager.aclose())
        await gate.reached()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(Draining):
            await open_session(manager)
        gate.open()
        await asyncio.wait_for(second, PATIENCE_S)

    async def test_it_can_be_used_again(self):
        manager = SessionManager(Plain, Limits(1))
        for _ in range(2):
            session, _ = await open_session(manager)
            assert (await outcome(partial(session.step, Action())))[1] is None
            await manager.aclose()


class TestLoops:
    def test_two_loops_at_one_time_are_refused(self):
        manager = SessionManager(InlinePlain, Limits(4))
        with asyncio.Runner() as first, asyncio.Runner() as second:
            session, _ = first.run(open_session(manager))
            with pytest.raises(UsageError, match="another event loop"):
                second.run(open_session(manager))
            assert (manager.active, session.state) == (1, SessionState.LIVE)
            first.run(manager.aclose())

    def test_who_waits_holds_the_loop_too(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S))
        with asyncio.Runner() as first, asyncio.Runner() as second:

            async def fill():
                await open_session(manager)
                Witness().asks(manager)

            first.run(fill())
            with pytest.raises(UsageError):
                second.run(open_session(manager))
            first.run(manager.aclose())

    @EVERY_KIND
    def test_one_loop_after_the_other(self, cls):
        manager = SessionManager(cls, Limits(1))

        async def episode():
            session, _ = await open_session(manager)
            observation, error = await outcome(partial(session.step, Action()))
            await closed(manager, session)
            return observation.reward, error

        assert [asyncio.run(episode()) for _ in range(2)] == [(1.0, None)] * 2

    def test_a_loop_that_ended_with_sessions_open_does_not_block_the_next(self):
        manager = SessionManager(InlinePlain, Limits(1))

        async def leave_open():
            await open_session(manager)

        asyncio.run(leave_open())
        asyncio.run(leave_open())
        assert manager.active == 1

    def test_what_a_loop_that_ended_left_open_is_closed_by_the_next(self):
        made: list[Plain] = []

        def make():
            made.append(Plain())
            return made[-1]

        manager = SessionManager(make, Limits(1))

        async def leave_open():
            await open_session(manager)

        async def leave_nothing():
            await open_session(manager)
            await manager.aclose()
            await until(lambda: made[0].closings == 1)

        asyncio.run(leave_open())
        asyncio.run(leave_nothing())
        assert [environment.closings for environment in made] == [1, 1]


class House(RuleBasedStateMachine):
    """Sessions open, work and close in any order; the books are right after every step."""

    class Fake(InlinePlain):
        """Lives in `alive` from its constructor to its close."""

        alive: set = set()
        failing = False

        def __init__(self):
            super().__init__()
            if self.failing:
                raise LookupError("no board")
            self.alive.add(self)

        def close(self):
            self.alive.remove(self)

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.cls = type("Counted", (self.Fake,), {"alive": set(), "failing": False})
        self.live: list = []  # (session, witness), in the order in which they came in
        self.queue: list = []
        self.over: list = []
        self.lived: list = []  # those of them that were live once

    @initialize(most=st.integers(1, 3), queued=st.booleans())
    def build(self, most, queued):
        self.most, self.queued = most, queued
        limits = Limits(most, queue_timeout_s=LONG_S if queued else 0.0)
        self.manager = SessionManager(self.cls, limits)

    def teardown(self):
        self.runner.run(self.finish())
        self.runner.close()
        assert not self.cls.alive

    async def finish(self):
        if hasattr(self, "manager"):
            await asyncio.wait_for(self.manager.aclose(), PATIENCE_S)

    def run(self, function, *arguments):
        async def call():
            return function(*arguments)

        return self.runner.run(call())

    @rule()
    def open(self):
        witness = self.run(Witness)
        session = self.run(witness.asks, self.manager)
        if len(self.live) == self.most and not self.queued:
            assert [type(error) for error in witness.verdicts] == [ServerFull]
            self.over.append((session, witness))
        elif len(self.live) == self.most:
            assert witness.verdicts == []
            self.queue.append((session, witness))
        else:
            self.comes_in(session, witness)

    def comes_in(self, session, witness):
        if self.cls.failing:
            assert [type(error) for error in witness.verdicts] == [FactoryFailed]
            self.over.append((session, witness))
        else:
            assert witness.verdicts == [None]
            self.live.append((session, witness))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data):
        guest = data.draw(st.sampled_from(self.live))
        self.run(guest[0].close)
        self.live.remove(guest)
        self.over.append(guest)
        self.lived.append(guest)
        while self.queue and len(self.live) < self.most:
            self.comes_in(*self.queue.pop(0))

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave_the_queue(self, data):
        guest = data.draw(st.sampled_from(self.queue))
        self.run(guest[0].close)
        self.queue.remove(guest)
        self.over.append(guest)
        assert guest[1].verdicts == []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step(self, data):
        session, _ = data.draw(st.sampled_from(self.live))
        before = session.steps
        observation, error = self.runner.run(outcome(partial(session.step, Action())))
        assert (observation.reward, error, session.steps) == (before + 1.0, None, before + 1)

    @precondition(lambda self: self.lived)
    @rule(data=st.data())
    def step_when_it_is_over(self, data):
        session, _ = data.draw(st.sampled_from(self.lived))
        result, error = self.runner.run(outcome(partial(session.step, Action())))
        assert result is None
        assert type(error) is SessionLost

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def close_again(self, data):
        self.run(data.draw(st.sampled_from(self.over))[0].close)

    @rule(failing=st.booleans())
    def break_or_mend_the_factory(self, failing):
        self.cls.failing = failing

    @precondition(lambda self: self.live or self.queue)
    @rule()
    def stop(self):
        self.runner.run(self.finish())
        for _, witness in [*self.live, *self.queue]:
            assert [type(error) for error in witness.errors] == [Draining]
        self.over += [*self.live, *self.queue]
        self.lived += self.live
        self.live, self.queue = [], []

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "manager"):
            return
        assert self.manager.active == len(self.live) == len(self.cls.alive) <= self.most
        assert self.manager.sessions == [session for session, _ in self.live]
        assert all(session.state is SessionState.LIVE for session, _ in self.live)
        assert all(session.state is SessionState.STARTING for session, _ in self.queue)
        assert all(session.state is SessionState.GONE for session, _ in self.over)
        assert all(len(witness.verdicts) <= 1 for _, witness in [*self.live, *self.over])


TestHouse = pytest.mark.slow(House.TestCase)
TestHouse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
