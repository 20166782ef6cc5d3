"""A session without its client, a call that is stopped, and a call that waits for its permit."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import LastSeen, SessionState
from openenv.telemetry.metrics import METER, Gauge
from openenv.types import Action

from ..asynchronous import Gate, open_session, outcome, until
from ..environments import AsyncPlain, Gated, InlinePlain, Plain

pytestmark = pytest.mark.usefixtures("no_threads_left")


def manager_of(factory, **limits):
    return SessionManager(factory, Limits(**{"max_sessions": 4, **limits}))


class Waiting(AsyncPlain):
    """Its steps wait to be cancelled."""

    begun = cancelled = 0

    async def step_async(self, action, timeout_s=None):
        type(self).begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            type(self).cancelled += 1
            raise


class TestDetached:
    @pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain])
    async def test_it_takes_no_call_until_its_client_is_there_again(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        session.detach()
        assert (session.state, session.idle_since) == (SessionState.DETACHED, None)
        _, error = await outcome(partial(session.step, Action()))
        assert "detached" in str(error)
        session.attach()
        assert session.state is SessionState.LIVE
        observation, _ = await outcome(partial(session.step, Action()))
        assert observation.reward == 1.0
        await manager.aclose()

    async def test_a_call_goes_on_and_the_session_is_detached_after_it(self):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate))
        session, _ = await open_session(manager)
        call = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        session.detach()
        assert session.state is SessionState.EXECUTING
        gate.open()
        observation, _ = await call
        assert observation.reward == 1.0
        assert session.state is SessionState.DETACHED
        await manager.aclose()
        assert session.state is SessionState.GONE

    async def test_one_whose_client_comes_back_during_the_call_is_live_after_it(self):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate))
        session, _ = await open_session(manager)
        call = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        session.detach()
        session.attach()
        gate.open()
        await call
        assert session.state is SessionState.LIVE
        await manager.aclose()

    async def test_one_that_was_still_opening_is_detached_when_it_is_open(self):
        gate = Gate()
        manager = manager_of(partial(Gated, making=gate))
        opening = asyncio.ensure_future(open_session(manager))
        await gate.reached()
        (session,) = manager.sessions
        session.detach()
        gate.open()
        await opening
        assert session.state is SessionState.DETACHED
        await manager.aclose()


async def test_a_sign_of_life_of_its_client_is_as_good_as_a_call():
    manager = manager_of(InlinePlain)
    session, _ = await open_session(manager)
    session.life = LastSeen()
    session.life.heard_at = session.used_at + 50
    assert session.idle_since == session.used_at + 50
    session.life.heard_at = session.used_at - 50
    assert session.idle_since == session.used_at
    await manager.aclose()


class TestStop:
    async def test_a_call_on_the_loop_is_cancelled_and_the_session_goes_on(self):
        manager = manager_of(Waiting)
        session, _ = await open_session(manager)
        begun, before = Waiting.begun, Waiting.cancelled
        call = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await until(lambda: Waiting.begun > begun)
        assert session.stop() is True
        _, error = await call
        assert isinstance(error.__cause__, asyncio.CancelledError)
        assert Waiting.cancelled == before + 1
        assert session.state is SessionState.LIVE
        await manager.aclose()

    async def test_a_call_on_a_thread_takes_the_session_along(self):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate), max_sessions=1)
        session, _ = await open_session(manager)
        stuck = METER.reading().cells[Gauge.STUCK_THREADS.cell]
        call = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        assert session.stop() is False
        assert session.state is SessionState.GONE
        assert METER.reading().cells[Gauge.STUCK_THREADS.cell] == stuck + 1
        assert manager.held == 0  # its thread is still at it
        gate.open()
        await call
        await until(lambda: METER.reading().cells[Gauge.STUCK_THREADS.cell] == stuck)
        await manager.aclose()

    async def test_where_nothing_runs_nothing_happens(self):
        manager = manager_of(Plain)
        session, _ = await open_session(manager)
        assert session.stop() is True
        assert session.cancel() is False
        assert session.state is SessionState.LIVE
        await manager.aclose()


class TestPermits:
    async def test_so_many_calls_execute_at_a_time_and_the_others_in_their_order(self):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate), max_executing=1)
        sessions = [(await open_session(manager))[0] for _ in range(3)]
        ended = []

        async def step(number):
            await outcome(partial(sessions[number].step, Action()))
            ended.append(number)

        calls = [asyncio.ensure_future(step(number)) for number in range(3)]
        await gate.reached()
        assert [session.state for session in sessions] == [SessionState.EXECUTING] * 3
        assert (manager.gate.inside, manager.gate.waiting) == (1, 2)
        gate.open()
        await asyncio.gather(*calls)
        assert ended == [0, 1, 2]
        assert manager.gate.inside == 0
        await manager.aclose()

    @pytest.mark.parametrize("end", ["stop", "cancel", "close"])
    async def test_a_call_that_waits_for_its_permit_can_be_given_up(self, end):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate), max_executing=1)
        (first, _), (second, _) = await open_session(manager), await open_session(manager)
        running = asyncio.ensure_future(outcome(partial(first.step, Action())))
        await gate.reached()
        waiting = asyncio.ensure_future(outcome(partial(second.step, Action())))
        await until(lambda: manager.gate.waiting == 1)
        getattr(second, end)()
        _, error = await waiting
        assert isinstance(error.__cause__, asyncio.CancelledError)
        assert manager.gate.waiting == 0
        if end == "close":
            await until(lambda: second.state is SessionState.GONE)
        else:
            assert second.state is SessionState.LIVE
        gate.open()
        await running
        assert manager.gate.inside == 0
        await manager.aclose()

    async def test_calls_that_end_at_once_leave_no_permit_behind(self):
        manager = manager_of(InlinePlain, max_executing=1)
        sessions = [(await open_session(manager))[0] for _ in range(3)]
        for _ in range(5):
            for session in sessions:
                _, error = await outcome(partial(session.step, Action()))
                assert error is None
        assert manager.gate.inside == 0
        await manager.aclose()
