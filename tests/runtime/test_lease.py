from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.runtime.admission import Limits, expired_sessions, sweep_period_s
from openenv.runtime.manager import SessionManager, close_session, opened_session
from openenv.runtime.session import LastSeen, Session, SessionState
from openenv.types import Action

from ..asynchronous import Witness, outcome
from ..environments import AsyncPlain, InlinePlain


class Lease(NamedTuple):
    idle_since: float | None


@pytest.mark.parametrize(
    ("idle_since", "now", "gone"),
    [(100.0, 109.0, False), (100.0, 110.0, True), (100.0, 500.0, True), (100.0, 100.0, False)],
)
def test_an_idle_session(idle_since, now, gone):
    lease = Lease(idle_since)
    assert expired_sessions([lease], 10.0, now) == ([lease] if gone else [])


def test_a_session_with_a_call_in_flight_never_expires():
    assert expired_sessions([Lease(None)], 0.001, 1e12) == []


def test_none_of_none():
    assert expired_sessions([], 10.0, 0.0) == []


# Whole seconds: their differences are exact.
leases = st.lists(st.builds(Lease, st.none() | st.integers(0, 1000).map(float)))


@given(leases, st.integers(1, 100), st.integers(0, 2000))
def test_exactly_those_whose_time_is_over(leases, timeout, now):
    over = [lease for lease in leases if lease.idle_since is not None and now - lease.idle_since >= timeout]
    assert expired_sessions(leases, float(timeout), float(now)) == over


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_the_look_comes_soon_enough(timeout):
    assert 0 < sweep_period_s(timeout) <= timeout / 4


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Whoever waits for a time finds that it has come: an hour passes in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector.select = partial(self._pass, self._selector.select)

    def time(self) -> float:
        return self.now

    def _pass(self, select, timeout):
        ready = select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


@pytest.fixture
def simulated(monkeypatch):
    loop = SimulatedLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    yield loop
    loop.close()


class TestTenMinutes:
    """Sessions of a connection, over ten simulated minutes without a call."""

    LIMIT_S, HEARTBEAT_S = 60.0, 20.0

    async def idle(self, heartbeats: bool, seconds: float) -> tuple[Session, Witness]:
        manager = SessionManager(InlinePlain, Limits(2, idle_timeout_s=self.LIMIT_S))
        witness, life = Witness(), LastSeen()
        session = witness.asks(manager)
        session.life = life
        for _ in range(int(seconds / self.HEARTBEAT_S)):
            await asyncio.sleep(self.HEARTBEAT_S)
            if heartbeats:
                life.heard_at = time.monotonic()
        return session, witness

    def test_with_heartbeats_nothing_is_lost(self, simulated):
        session, witness = simulated.run_until_complete(self.idle(heartbeats=True, seconds=600))
        assert (session.state, witness.losses) == (SessionState.LIVE, [])

        async def step() -> None:
            _, error = await outcome(lambda done: session.reset({}, done))
            assert error is None
            session.close()

        simulated.run_until_complete(step())

    def test_without_them_it_ends_on_time(self, simulated):
        session, witness = simulated.run_until_complete(self.idle(heartbeats=False, seconds=self.LIMIT_S - 1))
        assert session.state is SessionState.LIVE
        simulated.run_until_complete(asyncio.sleep(self.LIMIT_S / 4 + self.HEARTBEAT_S))
        assert session.state is SessionState.GONE
        assert "idle for 60 s (idle_timeout_s)" in witness.losses[0].message

    def test_a_call_of_ten_minutes_is_never_cut(self, simulated):
        class Slow(AsyncPlain):
            async def step_async(self, action, timeout_s=None, **kwargs):
                await asyncio.sleep(600)
                return await super().step_async(action)

        async def play() -> list:
            answers: list = []
            async with opened_session(SessionManager(Slow, Limits(2, idle_timeout_s=60.0))) as session:
                session.step(Action(), lambda *answer: answers.append(answer))
                await asyncio.sleep(599)
                assert session.state is SessionState.EXECUTING
                await asyncio.sleep(2)
            await close_session(session)
            return answers

        ((observation, error),) = simulated.run_until_complete(play())
        assert error is None
        assert observation is not None
