"""Sessions by name, waiting by wish, draining, and slots that other processes have a part in."""

from __future__ import annotations

import asyncio

import pytest

from openenv.errors import Draining, QueueTimeout, ServerFull, UsageError
from openenv.runtime.admission import Limits, LocalSlots, SlotOutcome
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import SessionState
from openenv.types import Action

from ..asynchronous import Gate, Witness, open_session, outcome, until
from ..environments import AsyncPlain, Gated, InlinePlain

pytestmark = pytest.mark.usefixtures("no_threads_left")


class OneTooLate(LocalSlots):
    """Slots of which another process takes the last one between a look and the grasp."""

    def take(self, since_ns, holder=0):
        if self.held == self.limit - 1:
            super().take(since_ns)
            return SlotOutcome.NONE
        return super().take(since_ns, holder)


class TestNames:
    async def test_a_session_is_found_by_its_name(self):
        manager = SessionManager(InlinePlain, Limits(1))
        witness, queued = Witness(), Witness()
        session = manager.create(witness.opened, session_id="mine")
        manager.open(session)
        waiting = manager.create(queued.opened, session_id="later")
        manager.open(waiting, wait_s=1000)
        assert manager.find("mine") is session
        assert manager.find("later") is waiting
        assert manager.find("nobody's") is None
        await manager.aclose()
        assert manager.find("mine") is None

    async def test_a_name_in_use_is_refused_and_free_again_after_the_end(self):
        manager = SessionManager(InlinePlain, Limits(2))
        session = manager.create(Witness().opened, session_id="mine")
        manager.open(session)
        with pytest.raises(UsageError, match="'mine' is already open"):
            manager.create(Witness().opened, session_id="mine")
        session.close()
        manager.create(Witness().opened, session_id="mine")

    async def test_one_that_never_held_a_slot_takes_nothing_from_its_namesake(self):
        manager = SessionManager(InlinePlain, Limits(1))
        unopened = manager.create(Witness().opened, session_id="mine")
        session = manager.create(Witness().opened, session_id="mine")
        manager.open(session)
        unopened.close()
        assert manager.find("mine") is session
        assert manager.held == 1
        await manager.aclose()


class TestWaiting:
    async def test_a_newcomer_waits_as_long_as_it_wants(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=1000))
        await open_session(manager)
        witness = Witness()
        manager.open(manager.create(witness.opened), wait_s=0.01)
        await witness.heard()
        (error,) = witness.errors
        assert isinstance(error, QueueTimeout)
        assert "0.01 s (wait_s)" in error.message
        await manager.aclose()

    async def test_one_that_does_not_want_to_wait_is_refused_at_once(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=1000))
        await open_session(manager)
        witness = Witness()
        manager.open(manager.create(witness.opened), wait_s=0)
        assert [type(error) for error in witness.errors] == [ServerFull]
        await manager.aclose()


class TestDrain:
    async def test_it_opens_no_more_and_lets_the_rest_go_on(self):
        manager = SessionManager(InlinePlain, Limits(1))
        session, _ = await open_session(manager)
        waiting, late = Witness(), Witness()
        manager.open(manager.create(waiting.opened), wait_s=1000)
        manager.drain()
        late.asks(manager)
        assert [type(error) for error in waiting.errors + late.errors] == [Draining, Draining]
        observation, error = await outcome(lambda done: session.reset({}, done))
        assert error is None
        assert observation is not None
        await manager.aclose()


class TestCancel:
    async def test_an_asynchronous_call_is_stopped_and_the_session_lives_on(self):
        class Waiting(AsyncPlain):
            async def step_async(self, action, timeout_s=None, **kwargs):
                await asyncio.Event().wait()

        manager = SessionManager(Waiting, Limits(1))
        session, _ = await open_session(manager)
        results = []
        session.step(Action(), lambda *result: results.append(result))
        session.cancel()
        await until(lambda: bool(results))
        assert session.state is SessionState.LIVE
        assert isinstance(results[0][1].__cause__, asyncio.CancelledError)
        await manager.aclose()

    async def test_a_call_on_a_thread_goes_on_to_its_end(self):
        gate = Gate()
        manager = SessionManager(lambda: Gated(stepping=gate), Limits(1))
        session, _ = await open_session(manager)
        results = []
        session.step(Action(), lambda *result: results.append(result))
        await gate.reached()
        session.cancel()
        gate.open()
        await until(lambda: bool(results))
        assert results[0][1] is None
        await manager.aclose()

    async def test_without_a_call_nothing_happens(self):
        manager = SessionManager(AsyncPlain, Limits(1))
        session, _ = await open_session(manager)
        session.cancel()
        _, error = await outcome(lambda done: session.reset({}, done))
        assert error is None
        await manager.aclose()


class TestSharedSlots:
    async def test_what_others_hold_counts(self):
        slots = LocalSlots(2)
        manager = SessionManager(InlinePlain, Limits(2))
        manager.share(slots)
        slots.take(1)  # another process
        await open_session(manager)
        with pytest.raises(ServerFull) as caught:
            await open_session(manager)
        assert caught.value.active_sessions == manager.held == 2
        assert manager.active == 1
        await manager.aclose()
        assert slots.held == 1

    async def test_the_last_slot_may_be_gone_when_it_is_grasped(self):
        manager = SessionManager(InlinePlain, Limits(1))
        manager.share(OneTooLate(1))
        with pytest.raises(ServerFull):
            await open_session(manager)
        assert manager.active == 0

    async def test_a_slot_that_others_free_goes_to_who_waits(self):
        slots = LocalSlots(1)
        manager = SessionManager(InlinePlain, Limits(1))
        manager.share(slots)
        slots.take(1)
        witness = Witness()
        manager.open(manager.create(witness.opened), wait_s=1000)
        assert witness.verdicts == []
        slots.leave()
        slots.give()
        assert slots.on_free is not None
        slots.on_free()
        assert witness.verdicts == [None]
        await manager.aclose()
