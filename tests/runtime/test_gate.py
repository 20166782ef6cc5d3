from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.runtime.admission import ConcurrencyGate


def test_so_many_are_inside_and_the_rest_come_in_order():
    gate, inside = ConcurrencyGate(2), []
    for name in "abcde":
        gate.enter(partial(inside.append, name))
    assert (inside, gate.inside, gate.waiting) == (["a", "b"], 2, 3)
    gate.leave()
    assert (inside, gate.inside, gate.waiting) == (["a", "b", "c"], 2, 2)
    for _ in range(4):
        gate.leave()
    assert (inside, gate.inside, gate.waiting) == ([*"abcde"], 0, 0)


def test_one_that_withdraws_is_passed_over():
    gate, inside = ConcurrencyGate(1), []
    first, second, third = (partial(inside.append, name) for name in "abc")
    for start in (first, second, third):
        gate.enter(start)
    assert gate.withdraw(second)
    assert not gate.withdraw(second)
    assert not gate.withdraw(first)
    gate.leave()
    assert inside == ["a", "c"]


def test_thousands_that_end_before_they_have_begun():
    gate, count = ConcurrencyGate(1), 0

    def instant() -> None:
        nonlocal count
        count += 1
        gate.leave()

    gate.enter(lambda: None)
    for number in range(20_000):
        gate.enter(partial(lambda _: instant(), number))
    gate.leave()
    assert (count, gate.inside, gate.waiting) == (20_000, 0, 0)


def test_one_that_fails_to_start_keeps_nobody_out():
    gate, inside = ConcurrencyGate(1), []

    def broken() -> None:
        gate.leave()
        raise LookupError

    gate.enter(lambda: None)
    gate.enter(broken)
    gate.enter(partial(inside.append, "b"))
    with pytest.raises(LookupError):
        gate.leave()
    gate.enter(partial(inside.append, "c"))
    gate.leave()
    assert inside == ["b", "c"]


@given(st.integers(1, 4), st.lists(st.sampled_from(["enter", "leave", "withdraw"]), max_size=60))
def test_never_too_many_and_nobody_waits_while_there_is_room(most, events):
    gate, inside, queue = ConcurrencyGate(most), [], []
    for number, event in enumerate(events):
        if event == "enter":
            start = partial(inside.append, number)
            queue.append(start)
            gate.enter(start)
        elif event == "leave" and inside:
            inside.pop(0)
            gate.leave()
        elif event == "withdraw" and queue:
            gate.withdraw(queue.pop())
        assert len(inside) == gate.inside <= most
        assert gate.inside == most or gate.waiting == 0
    assert inside == sorted(inside)
