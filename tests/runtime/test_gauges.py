"""What is counted of sessions, and that counting leaves nothing behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from openenv.errors import StepFailed
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionGauges, SessionManager
from openenv.telemetry.metrics import METER, Gauge, Meter, Phase
from openenv.types import Action

from ..asynchronous import Gate, Witness, open_session, outcome, until
from ..environments import AsyncPlain, Gated, InlinePlain, Plain

pytestmark = pytest.mark.usefixtures("no_threads_left")

STATES = (Gauge.STARTING, Gauge.LIVE, Gauge.EXECUTING, Gauge.DETACHED, Gauge.CLOSING)


@pytest.fixture(autouse=True)
def counting(monkeypatch):
    monkeypatch.setattr("openenv.runtime.manager.TICK_S", 0.01)
    METER.start()


class Since:
    """What the process has counted since this was made."""

    def __init__(self):
        self._before = METER.reading()

    def value(self, gauge):
        return METER.reading().value(gauge) - self._before.value(gauge)

    def states(self):
        return {gauge.value: self.value(gauge) for gauge in STATES if self.value(gauge)}

    def ended(self, phase):
        counts = (sum(reading.histogram(phase).counts) for reading in (METER.reading(), self._before))
        return next(counts) - next(counts)

    def seconds(self, phase):
        return METER.reading().histogram(phase).seconds - self._before.histogram(phase).seconds


@pytest.fixture
def since():
    return Since()


async def test_sessions_are_told_by_their_state(since):
    making, stepping, closing = Gate(), Gate(), Gate()
    made = iter([Gated(), Gated(stepping=stepping), Gated(closing=closing)])
    slow = [making]

    def factory():
        return next(made, None) or Gated(making=slow.pop())

    manager = SessionManager(factory, Limits(4))
    sessions = [(await open_session(manager))[0] for _ in range(3)]
    step = asyncio.create_task(outcome(lambda done: sessions[1].step(Action(), done)))
    sessions[2].close()
    Witness().asks(manager)
    waiting = Witness()
    manager.open(manager.create(waiting.opened, waiting.lost), wait_s=60)
    for gate in (making, stepping, closing):
        await gate.reached()
    manager.gauges.publish()
    assert since.states() == {"starting": 1, "live": 1, "executing": 1, "closing": 1}
    values = [since.value(gauge) for gauge in (Gauge.QUEUED, Gauge.RUNNING, Gauge.CONSTRUCTING, Gauge.HELD_BACK)]
    assert values == [1, 1, 1, 0]
    for gate in (making, stepping, closing):
        gate.open()
    await step
    await manager.aclose()
    assert since.states() == {}
    assert since.value(Gauge.QUEUED) == 0


async def test_what_gates_hold_back_is_told(since):
    stepping, making = Gate(), Gate()
    made = iter([Gated(stepping=stepping), Plain()])
    manager = SessionManager(
        lambda: next(made, None) or Gated(making=making), Limits(4, max_executing=1, max_constructing=1)
    )
    sessions = [(await open_session(manager))[0] for _ in range(2)]
    steps = [asyncio.create_task(outcome(lambda done, s=session: s.step(Action(), done))) for session in sessions]
    await stepping.reached()
    for _ in range(2):
        Witness().asks(manager)
    await making.reached()
    manager.gauges.publish()
    values = [since.value(gauge) for gauge in (Gauge.RUNNING, Gauge.HELD_BACK, Gauge.CONSTRUCTING, Gauge.EXECUTING)]
    assert values == [1, 1, 1, 2]
    stepping.open()
    making.open()
    for step in steps:
        await step
    await manager.aclose()


async def test_it_looks_by_itself_while_there_are_sessions_and_not_longer(since):
    manager = SessionManager(InlinePlain, Limits(2))
    assert manager.gauges._timer is None
    session, _ = await open_session(manager)
    assert manager.gauges._timer is not None
    await until(lambda: since.states() == {"live": 1})
    session.close()
    assert manager.gauges._timer is None
    assert since.states() == {}


async def test_it_goes_on_for_those_who_only_wait(since):
    manager = SessionManager(InlinePlain, Limits(1))
    first, _ = await open_session(manager)
    waiting = Witness()
    second = manager.create(waiting.opened, waiting.lost)
    manager.open(second, wait_s=60)
    await until(lambda: since.value(Gauge.QUEUED) == 1)
    first.close()
    await until(lambda: since.value(Gauge.QUEUED) == 0)
    assert manager.gauges._timer is not None
    second.close()
    assert manager.gauges._timer is None


async def test_several_managers_of_a_process_add_up(since):
    managers = [SessionManager(InlinePlain, Limits(2)) for _ in range(2)]
    for manager in managers:
        await open_session(manager)
        manager.gauges.publish()
    assert since.states() == {"live": 2}
    await managers[0].aclose()
    assert since.states() == {"live": 1}
    await managers[1].aclose()


async def test_an_event_loop_that_is_late_is_found_out():
    meter = Meter()
    meter.start()
    gauges = SessionGauges(dict, meter)
    loop = asyncio.get_running_loop()
    gauges.begin(loop)
    gate = Gate()
    gate.open()
    loop.call_soon(lambda: [gate.wait() for _ in range(100_000)])
    await until(lambda: meter.reading().value(Gauge.LOOP_LAG_NS) > 1_000_000)
    gauges.end()
    assert meter.reading().value(Gauge.LOOP_LAG_NS) == 0


async def test_it_looks_no_more_when_it_has_ended():
    meter = Meter()
    meter.start()
    looks: list[None] = []

    def look():
        looks.append(None)
        return {}

    others: list[None] = []

    def look_too():
        others.append(None)
        return {}

    gauges, going_on = SessionGauges(look, meter), SessionGauges(look_too, meter)
    for each in (gauges, going_on):
        each.begin(asyncio.get_running_loop())
    await until(lambda: len(looks) == 2)
    gauges.end()
    count = len(looks)
    await until(lambda: len(others) > count + 2)
    going_on.end()
    assert len(looks) == count


async def test_nothing_is_looked_at_where_metrics_are_off():
    gauges = SessionGauges(dict, Meter())
    gauges.begin(asyncio.get_running_loop())
    assert gauges._timer is None


class Brittle(Plain):
    """Its steps fail."""

    def step(self, action, timeout_s=None, **kwargs):
        raise ValueError("not now")


@pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain])
async def test_phases_are_timed(since, cls):
    manager = SessionManager(cls, Limits(2))
    session, _ = await open_session(manager)
    await outcome(lambda done: session.reset({}, done))
    for _ in range(3):
        await outcome(lambda done: session.step(Action(), done))
    await outcome(session.read_state)
    assert [since.ended(phase) for phase in (Phase.QUEUE, Phase.CONSTRUCT, Phase.RESET, Phase.STEP)] == [1, 1, 1, 3]
    await manager.aclose()


async def test_a_step_that_fails_is_timed_too(since):
    manager = SessionManager(Brittle, Limits(2))
    session, _ = await open_session(manager)
    _, error = await outcome(lambda done: session.step(Action(), done))
    assert isinstance(error, StepFailed)
    assert since.ended(Phase.STEP) == 1
    await manager.aclose()


async def test_time_in_the_queue_is_counted(since):
    begun = time.monotonic()
    manager = SessionManager(InlinePlain, Limits(1))
    first, _ = await open_session(manager)
    waiting = Witness()
    manager.open(manager.create(waiting.opened, waiting.lost), wait_s=60)
    await asyncio.sleep(0.05)  # what is measured here is time
    first.close()
    await waiting.heard()
    took = time.monotonic() - begun
    assert since.ended(Phase.QUEUE) == 2
    assert 0.05 <= since.seconds(Phase.QUEUE) <= took
    await manager.aclose()
