from __future__ import annotations

import asyncio
from functools import partial

import pytest

from openenv.errors import Draining, FactoryFailed, ServerFull, StepFailed
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager, close_session, opened_session, result_of
from openenv.runtime.session import SessionState
from openenv.types import Action

from ..asynchronous import PATIENCE_S, Gate, open_session, until
from ..environments import AsyncPlain, Gated, InlinePlain, MixedPlain, Plain

pytestmark = pytest.mark.usefixtures("no_threads_left")

EVERY_KIND = pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain, MixedPlain])


async def inside(manager):
    async with opened_session(manager) as session:
        return session.state


class TestOpenedSession:
    @EVERY_KIND
    async def test_it_is_live_for_the_length_of_the_block(self, cls):
        manager = SessionManager(cls, Limits(1))
        async with opened_session(manager) as session:
            assert session.state is SessionState.LIVE
            assert manager.active == 1
        await until(lambda: manager.active == 0)
        assert session.state is SessionState.GONE

    async def test_it_is_closed_when_the_block_fails(self):
        manager = SessionManager(InlinePlain, Limits(1))
        with pytest.raises(LookupError):
            async with opened_session(manager):
                raise LookupError
        assert manager.active == 0

    async def test_it_may_be_closed_within(self):
        manager = SessionManager(InlinePlain, Limits(1))
        async with opened_session(manager) as session:
            session.close()
        assert manager.active == 0

    async def test_it_raises_what_refused_it(self):
        manager = SessionManager(InlinePlain, Limits(1))
        async with opened_session(manager):
            with pytest.raises(ServerFull):
                await inside(manager)
        assert manager.active == 0

    @EVERY_KIND
    async def test_it_raises_what_the_constructor_failed_with(self, cls):
        class Broken(cls):
            def __init__(self):
                raise LookupError("no board")

        manager = SessionManager(Broken, Limits(1))
        with pytest.raises(FactoryFailed, match="no board"):
            await inside(manager)
        await until(lambda: manager.active == 0)

    async def test_giving_up_while_it_waits_for_a_slot(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=1000))
        async with opened_session(manager):
            second = asyncio.create_task(inside(manager))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        assert manager.active == 0
        assert await inside(manager) is SessionState.LIVE

    async def test_giving_up_while_it_is_made(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, making=gate), Limits(1))
        first = asyncio.create_task(inside(manager))
        await gate.reached()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        await until(lambda: manager.active == 0)

    async def test_the_server_stops_while_it_waits_for_a_slot(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=1000))
        async with opened_session(manager):
            second = asyncio.create_task(inside(manager))
            await asyncio.sleep(0)
            await manager.aclose()
            with pytest.raises(Draining):
                await asyncio.wait_for(second, PATIENCE_S)

    async def test_the_server_stops_while_it_is_made(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, making=gate), Limits(1))
        first = asyncio.create_task(inside(manager))
        await gate.reached()
        stopping = asyncio.create_task(manager.aclose())
        await asyncio.sleep(0)
        gate.open()
        await stopping
        with pytest.raises(Draining):
            await asyncio.wait_for(first, PATIENCE_S)


class TestResultOf:
    @EVERY_KIND
    async def test_a_result(self, cls):
        manager = SessionManager(cls, Limits(1))
        async with opened_session(manager) as session:
            observation = await result_of(partial(session.step, Action()))
            assert observation.reward == 1.0
        await manager.aclose()

    async def test_a_failure(self):
        class Failing(InlinePlain):
            def step(self, action):
                raise LookupError("no such column")

        manager = SessionManager(Failing, Limits(1))
        async with opened_session(manager) as session:
            with pytest.raises(StepFailed, match="no such column"):
                await result_of(partial(session.step, Action()))

    async def test_a_result_that_nobody_waits_for_any_more(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, stepping=gate), Limits(1))
        async with opened_session(manager) as session:
            step = asyncio.create_task(result_of(partial(session.step, Action())))
            await gate.reached()
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            gate.open()
            await until(lambda: session.state is SessionState.LIVE)
            assert (await result_of(session.read_state)).step_count == 1
        await manager.aclose()


class TestCloseSession:
    @EVERY_KIND
    async def test_nothing_is_left_when_it_returns(self, cls):
        manager = SessionManager(cls, Limits(1))
        session, _ = await open_session(manager)
        await close_session(session)
        assert (session.state, manager.active) == (SessionState.GONE, 0)
        await close_session(session)

    async def test_two_may_wait_for_the_same_end(self):
        gate = Gate()
        manager = SessionManager(partial(Gated, closing=gate), Limits(1))
        session, _ = await open_session(manager)
        both = asyncio.gather(close_session(session), close_session(session))
        await gate.reached()
        gate.open()
        await asyncio.wait_for(both, PATIENCE_S)
        assert manager.active == 0
