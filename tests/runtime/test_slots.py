"""Slots of a server that is one process."""

from __future__ import annotations

from openenv.runtime.admission import LocalSlots, SlotOutcome

TAKEN, NONE, NONE_FOR_KEY = SlotOutcome.TAKEN, SlotOutcome.NONE, SlotOutcome.NONE_FOR_KEY


def test_the_limit_is_exact():
    slots = LocalSlots(2)
    assert [slots.take(1), slots.take(2), slots.take(3)] == [TAKEN, TAKEN, NONE]
    assert slots.held == 2


def test_what_is_leaving_is_held_until_it_is_given_back():
    slots = LocalSlots(1)
    slots.take(1)
    slots.leave()
    assert (slots.held, slots.leaving, slots.take(2)) == (1, 1, NONE)
    slots.give()
    assert (slots.held, slots.leaving, slots.take(2)) == (0, 0, TAKEN)


def test_a_key_has_so_many_and_those_without_a_key_any_number():
    slots = LocalSlots(5, per_key=2)
    assert [slots.take(1, holder) for holder in (7, 7, 7, 8, 0, 0, 0)] == [
        TAKEN,
        TAKEN,
        NONE_FOR_KEY,
        TAKEN,
        TAKEN,
        TAKEN,
        NONE,
    ]
    slots.leave()
    slots.give(7)
    assert [slots.take(1, 7), slots.take(1, 7)] == [TAKEN, NONE]


def test_whoever_waits_hears_whether_there_is_room():
    slots = LocalSlots(1)
    assert slots.expect(1, 5, 0)
    assert not slots.expect(0, 0, 1)
    slots.take(1)
    assert not slots.expect(1, 5, 0)
    assert slots.waiting == 1
