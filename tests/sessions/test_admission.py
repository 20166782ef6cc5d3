from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.sessions import Counts, Decision, Limits, decide
from openenv.sessions.admission import patience

ADMIT, WAIT, REFUSE = Decision.ADMIT, Decision.WAIT, Decision.REFUSE


@pytest.mark.parametrize(
    ("held", "closing", "waiting", "decision"),
    [
        (0, 0, 0, ADMIT),
        (1, 0, 0, ADMIT),
        (2, 0, 0, REFUSE),
        (2, 1, 0, WAIT),  # its slot is about to be free
        (2, 1, 1, REFUSE),  # that slot is somebody else's already
        (2, 2, 1, WAIT),
        (1, 1, 0, ADMIT),
    ],
)
def test_without_a_queue(held, closing, waiting, decision):
    assert decide(Counts(held, closing, waiting), Limits(max_sessions=2)) is decision


@pytest.mark.parametrize(
    ("held", "closing", "waiting", "decision"),
    [(0, 0, 0, ADMIT), (2, 0, 0, WAIT), (2, 0, 99, WAIT), (1, 0, 1, WAIT)],
)
def test_with_a_queue(held, closing, waiting, decision):
    assert decide(Counts(held, closing, waiting), Limits(max_sessions=2, queue_timeout_s=5)) is decision


def test_patience():
    assert patience(Limits(max_sessions=1, queue_timeout_s=0.5)) == 0.5
    assert patience(Limits(max_sessions=1)) > 0


counts = st.builds(Counts, held=st.integers(0, 6), closing=st.integers(0, 6), waiting=st.integers(0, 6))
limits = st.builds(
    Limits, max_sessions=st.integers(1, 5), queue_timeout_s=st.sampled_from([0.0, 1.0]), idle_timeout_s=st.none()
)


@given(counts, limits)
def test_nobody_is_admitted_beyond_the_limit_or_past_the_queue(counts, limits):
    if decide(counts, limits) is ADMIT:
        assert counts.held < limits.max_sessions
        assert counts.waiting == 0


@given(counts, limits)
def test_nobody_is_turned_away_from_a_free_slot(counts, limits):
    if counts.held < limits.max_sessions and counts.waiting == 0:
        assert decide(counts, limits) is ADMIT


@given(limits, st.lists(st.sampled_from(["arrive", "close", "gone"]), max_size=60))
def test_a_day_at_the_door(limits, events):
    """Whatever happens in whichever order: never too many inside, and first come, first served."""
    inside: list[int] = []
    closing: list[int] = []
    queue: list[int] = []
    admitted: list[int] = []
    for newcomer, event in enumerate(events):
        if event == "arrive":
            decision = decide(Counts(len(inside), len(closing), len(queue)), limits)
            if decision is ADMIT:
                inside.append(newcomer)
                admitted.append(newcomer)
            elif decision is WAIT:
                queue.append(newcomer)
        elif event == "close" and len(closing) < len(inside):
            closing.append(next(guest for guest in inside if guest not in closing))
        elif event == "gone" and closing:
            inside.remove(closing.pop(0))
            if queue:
                inside.append(queue.pop(0))
                admitted.append(inside[-1])
        assert len(inside) <= limits.max_sessions
        if limits.queue_timeout_s == 0:
            assert len(queue) <= len(closing)
    assert admitted == sorted(admitted)


def test_a_newcomer_says_how_long_it_waits():
    queue, none = Limits(max_sessions=2, queue_timeout_s=5), Limits(max_sessions=2)
    assert decide(Counts(2, 0, 0), none, wait_s=1) is WAIT
    assert decide(Counts(2, 0, 0), queue, wait_s=0) is REFUSE
    assert patience(queue, 1) == 1
    assert patience(none, 0) == patience(none)
