"""Slots of a server that is one process."""

from __future__ import annotations

from openenv.sessions import LocalSlots


def test_the_limit_is_exact():
    slots = LocalSlots(2)
    assert [slots.take(), slots.take(), slots.take()] == [True, True, False]
    assert slots.held == 2


def test_what_is_leaving_is_held_until_it_is_given_back():
    slots = LocalSlots(1)
    slots.take()
    slots.leave()
    assert (slots.held, slots.leaving, slots.take()) == (1, 1, False)
    slots.give()
    assert (slots.held, slots.leaving, slots.take()) == (0, 0, True)
