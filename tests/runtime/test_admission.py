from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.runtime.admission import (
    LATEST_S,
    SOONEST_S,
    Decision,
    Limits,
    LocalSlots,
    SlotOutcome,
    Turnover,
    decide,
    max_wait_s,
)

WAIT, REFUSE, CROWDED = Decision.WAIT, Decision.REFUSE, Decision.CROWDED


@pytest.mark.parametrize(
    ("held", "closing", "waiting", "decision"),
    [
        (2, 0, 0, REFUSE),
        (2, 1, 0, WAIT),  # its slot is about to be free
        (2, 1, 1, REFUSE),  # that slot is somebody else's already
        (2, 2, 1, WAIT),
        (1, 0, 0, WAIT),  # it came free a moment ago
        (1, 0, 1, REFUSE),  # and is on its way to somebody else
        (1, 1, 1, WAIT),
    ],
)
def test_without_a_queue(held, closing, waiting, decision):
    assert decide(Limits(max_sessions=2), held=held, closing=closing, waiting=waiting, queued=0) is decision


@pytest.mark.parametrize(("held", "waiting"), [(2, 0), (2, 99), (1, 1)])
def test_with_a_queue(held, waiting):
    assert (
        decide(Limits(max_sessions=2, queue_timeout_s=5), held=held, closing=0, waiting=waiting, queued=waiting)
        is WAIT
    )


def test_the_queue_has_an_end():
    limits = Limits(max_sessions=2, queue_timeout_s=5, queue_limit=3)
    assert decide(limits, held=2, closing=0, waiting=99, queued=2) is WAIT
    assert decide(limits, held=2, closing=0, waiting=99, queued=3) is CROWDED
    assert decide(Limits(max_sessions=2, queue_limit=0), held=2, closing=1, waiting=0, queued=0) is CROWDED
    assert decide(Limits(max_sessions=2, queue_limit=0), held=2, closing=0, waiting=0, queued=0) is REFUSE


def test_patience():
    assert max_wait_s(Limits(max_sessions=1, queue_timeout_s=0.5)) == 0.5
    assert max_wait_s(Limits(max_sessions=1)) > 0


limits = st.builds(
    Limits, max_sessions=st.integers(1, 5), queue_timeout_s=st.sampled_from([0.0, 1.0]), idle_timeout_s=st.none()
)


@given(limits, st.lists(st.sampled_from(["arrive", "close", "gone"]), max_size=60))
def test_a_day_at_the_door(limits, events):
    """Whatever happens in whichever order: never too many inside, and first come, first served."""
    slots = LocalSlots(limits.max_sessions)
    inside: list[int] = []
    queue: list[int] = []
    admitted: list[int] = []
    for newcomer, event in enumerate(events):
        if event == "arrive":
            if not queue and slots.take(newcomer) is SlotOutcome.TAKEN:
                inside.append(newcomer)
                admitted.append(newcomer)
            elif (
                decide(limits, held=slots.held, closing=slots.leaving, waiting=len(queue), queued=len(queue)) is WAIT
            ):
                queue.append(newcomer)
        elif event == "close" and slots.leaving < slots.held:
            slots.leave()
        elif event == "gone" and slots.leaving:
            inside.pop(0)
            slots.give()
            if queue and slots.take(queue[0]) is SlotOutcome.TAKEN:
                inside.append(queue.pop(0))
                admitted.append(inside[-1])
        assert len(inside) == slots.held <= limits.max_sessions
        if limits.queue_timeout_s == 0:
            assert len(queue) <= slots.leaving
    assert admitted == sorted(admitted)


def test_a_newcomer_says_how_long_it_waits():
    queue, none = Limits(max_sessions=2, queue_timeout_s=5), Limits(max_sessions=2)
    assert decide(none, wait_s=1, held=2, closing=0, waiting=0, queued=0) is WAIT
    assert decide(queue, wait_s=0, held=2, closing=0, waiting=0, queued=0) is REFUSE
    assert max_wait_s(queue, 1) == 1
    assert max_wait_s(none, 0) == max_wait_s(none)


class TestTurnover:
    def test_slots_come_free_as_fast_as_lately(self):
        turnover = Turnover()
        for second in range(10):
            turnover.freed(float(second))
        assert turnover.retry_after_s(10.0, waiting=0) == 1.0
        assert turnover.retry_after_s(10.0, waiting=4) == 5.0

    def test_a_standstill_makes_it_later(self):
        turnover = Turnover()
        turnover.freed(0.0)
        turnover.freed(1.0)
        assert turnover.retry_after_s(2.0, 0) < turnover.retry_after_s(20.0, 0) == 10.0

    def test_where_nothing_is_known(self):
        assert SOONEST_S <= Turnover().retry_after_s(1e6, 10) <= LATEST_S

    def test_only_what_happened_lately_counts(self):
        turnover = Turnover()
        turnover.freed(-1e6)
        for second in range(100):
            turnover.freed(float(second))
        assert turnover.retry_after_s(100.0, 0) == pytest.approx(1.0)

    @given(st.lists(st.integers(0, 1000)), st.integers(0, 20_000))
    def test_it_is_bounded(self, times, waiting):
        turnover = Turnover()
        for time in sorted(times):
            turnover.freed(float(time))
        assert SOONEST_S <= turnover.retry_after_s(1000.0, waiting) <= LATEST_S
