"""Calls that do not return: their slots come back, as long as the limit of what is left behind allows."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from openenv.errors import ServerFull
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import SessionState
from openenv.telemetry.metrics import METER, Gauge
from openenv.types import Action

from ..asynchronous import Gate, Witness, open_session, outcome, until
from ..environments import AsyncPlain, Exclusive, Gated

pytestmark = pytest.mark.usefixtures("no_threads_left")

SOON_S = 0.05


class GatedAsync(AsyncPlain):
    """Waits at gates in its constructor and in `close`, on threads; and in `step`, where it cannot be cancelled."""

    def __init__(self, making=None, stepping=None, closing=None):
        super().__init__()
        self.stepping, self.closing = stepping, closing
        if making is not None:
            making.wait()

    async def step_async(self, action, timeout_s=None):
        while self.stepping is not None:
            try:
                await asyncio.to_thread(self.stepping.wait)
                break
            except asyncio.CancelledError:
                pass
        return await super().step_async(action, timeout_s)

    def close(self):
        if self.closing is not None:
            self.closing.wait()
        super().close()


def manager_of(factory, limit=1, **limits):
    return SessionManager(factory, Limits(limit, **limits))


def stuck():
    return METER.reading().cells[Gauge.STUCK_THREADS.cell]


async def stepping(manager, gate):
    """A session whose call stands at the gate, and the call."""
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await gate.reached()
    return session, call


class AtGates:
    """Makes environments: the first one waits at the gate, the others do not."""

    def __init__(self, cls, **gates):
        self.cls, self.gates = cls, gates

    def __call__(self):
        gates, self.gates = self.gates, {}
        return self.cls(**gates)


async def test_a_default_class_has_its_one_slot_again_when_the_time_of_a_hung_step_is_over():
    class Hanging(Exclusive, Gated):
        """One session at a time, as a class that says nothing."""

    gate, before = Gate(), stuck()
    manager = manager_of(AtGates(Hanging, stepping=gate))
    session, call = await stepping(manager, gate)
    assert session.stop() is False
    assert (session.state, manager.held, manager.active) == (SessionState.GONE, 0, 0)
    assert stuck() == before + 1
    other, _ = await open_session(manager)
    observation, _ = await outcome(partial(other.step, Action()))
    assert observation.reward == 1.0
    gate.open()
    await call
    await until(lambda: stuck() == before)
    assert manager.held == 1
    await manager.aclose()


async def test_what_comes_back_closes_its_environment_where_it_ran():
    gate = Gate()
    made = []

    def make():
        made.append(Gated(stepping=gate))
        return made[-1]

    make.__annotations__["return"] = Gated
    manager = manager_of(make)
    session, call = await stepping(manager, gate)
    session.stop()
    assert made[0].closings == 0
    gate.open()
    await call
    await until(lambda: made[0].closings == 1)


async def test_beyond_the_limit_a_slot_stays_taken_until_the_call_returns(caplog):
    gate = Gate()
    manager = manager_of(AtGates(Gated, stepping=gate), max_abandoned_threads=0)
    session, call = await stepping(manager, gate)
    session.stop()
    assert (session.state, manager.held, manager.stuck) == (SessionState.CLOSING, 1, 1)
    assert "max_abandoned_threads" in caplog.text
    with pytest.raises(ServerFull, match="1 of them by calls that do not return"):  # at once, and not after a wait
        await open_session(manager)
    gate.open()
    await call
    await until(lambda: session.state is SessionState.GONE)
    assert (manager.held, manager.stuck) == (0, 0)


async def test_one_that_returns_makes_room_for_the_next_that_hangs():
    gates = [Gate(), Gate()]
    waiting = iter(gates)
    manager = manager_of(lambda: Gated(stepping=next(waiting)), 2, max_abandoned_threads=1)
    (first, call), (second, other) = [await stepping(manager, gate) for gate in gates]
    first.stop()
    second.stop()
    assert (manager.held, manager.stuck) == (1, 1)
    gates[0].open()
    await call
    await until(lambda: (manager.held, manager.stuck) == (0, 0))
    assert second.state is SessionState.GONE
    gates[1].open()
    await other


@pytest.mark.parametrize("cls", [Gated, GatedAsync])
@pytest.mark.parametrize("where", ["making", "stepping", "closing"])
async def test_an_environment_that_hangs_after_its_client_has_left(cls, where):
    gate, before = Gate(), stuck()
    limits = {"abandon_after_s": SOON_S, "max_constructing": 1, "max_executing": 1}
    manager = manager_of(AtGates(cls, **{where: gate}), **limits)
    witness = Witness()
    session = witness.asks(manager)
    call = None
    if where != "making":
        await witness.heard()
    if where == "stepping":
        call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    if where == "closing":
        session.close()
    await gate.reached()
    session.close()
    assert session.state is SessionState.CLOSING
    await until(lambda: session.state is SessionState.GONE)
    assert (manager.held, stuck()) == (0, before + 1)
    # Neither the permit to make environments nor the one to execute calls is lost.
    other, _ = await open_session(manager)
    observation, _ = await outcome(partial(other.step, Action()))
    assert observation.reward == 1.0
    gate.open()
    if call is not None:
        await call
    await until(lambda: stuck() == before)
    await manager.aclose()


async def test_constructors_that_hang_do_not_keep_others_from_being_made():
    gate, before = Gate(), stuck()
    factory = AtGates(lambda: GatedAsync(making=gate))
    manager = manager_of(GatedAsync, 40, abandon_after_s=SOON_S, max_abandoned_threads=40)
    manager.maker.factory = factory
    sessions = [Witness().asks(manager) for _ in range(20)]  # more than there are threads to help
    await gate.reached()
    for session in sessions:
        session.close()
    await until(lambda: manager.held == 0)
    factory.cls = GatedAsync
    session, _ = await open_session(manager)
    assert session.state is SessionState.LIVE
    gate.open()
    await until(lambda: stuck() == before)
    await manager.aclose()


async def test_nothing_is_watched_when_all_sessions_are_gone():
    manager = manager_of(AsyncPlain)
    session, _ = await open_session(manager)
    session.close()
    await until(lambda: session.state is SessionState.GONE)
    assert manager.ending._timer is None
