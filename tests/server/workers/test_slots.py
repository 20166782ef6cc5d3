from __future__ import annotations

import pytest

from openenv.errors import UsageError
from openenv.runtime.admission import SlotOutcome, Slots
from openenv.server.workers.table import DRIFT, HELD, WAITING, SharedSlots, WorkerLoad, WorkerTable

TAKEN, NONE, NONE_FOR_KEY = SlotOutcome.TAKEN, SlotOutcome.NONE, SlotOutcome.NONE_FOR_KEY
NOW = 100


@pytest.fixture
def table():
    table = WorkerTable(3, holders=4)
    yield table
    table.close()


@pytest.fixture
def freed():
    return []


@pytest.fixture
def pair(table, freed):
    """The same two slots, as two workers see them; a key has one of them at most."""
    return [SharedSlots(table, row, 2, WorkerLoad(row), freed.append, per_key=1) for row in map(table.row, range(2))]


def end(slots: Slots, holder: int = 0) -> None:
    slots.leave()
    slots.give(holder)


def fill(*slots: Slots) -> None:
    for one in slots:
        assert one.take(NOW) is TAKEN


def test_the_limit_is_the_whole_servers(pair):
    here, there = pair
    fill(here, there)
    assert here.take(NOW) is NONE
    assert there.take(NOW) is NONE
    assert here.held == there.held == here.limit == 2


def test_a_slot_given_back_is_free_for_the_other(pair):
    here, there = pair
    fill(here, here)
    here.leave()
    assert there.leaving == 1
    assert there.take(NOW) is NONE
    here.give()
    assert there.leaving == 0
    assert there.take(NOW) is TAKEN


class TestOrder:
    def test_whoever_waits_longest_is_woken(self, table, pair, freed):
        here, there = pair
        third = SharedSlots(table, table.row(2), 2, WorkerLoad(table.row(2)), freed.append)
        fill(here, here)
        assert not there.expect(1, 20, 0)
        assert not third.expect(1, 10, 0)
        assert freed == []
        end(here)
        assert freed == [[2]]

    def test_a_free_slot_is_for_whoever_came_first(self, pair):
        here, there = pair
        fill(here, here)
        there.expect(1, 20, 0)
        here.expect(1, 30, 0)
        end(here)
        assert here.take(30) is NONE
        assert here.take(NOW) is NONE  # a newcomer
        assert there.take(20) is TAKEN

    def test_what_was_told_of_own_newcomers_keeps_nobody_from_those_of_others(self, pair, freed):
        here, there = pair
        fill(there, there)
        here.expect(2, 10, 0)
        there.expect(1, 20, 0)
        end(there)
        end(there)
        assert here.take(10) is TAKEN
        assert here.take(30) is NONE  # its second came after the other's first
        freed.clear()
        assert not here.expect(1, 30, 0)
        assert freed == [[1]]
        assert there.take(20) is TAKEN

    def test_own_newcomers_need_no_message(self, pair, freed):
        here, _ = pair
        fill(here, here)
        here.expect(3, 10, 0)
        end(here)
        assert freed == []

    def test_a_slot_that_came_free_before_it_was_waited_for(self, pair, freed):
        here, there = pair
        fill(here)
        assert there.expect(1, 10, 0)
        assert not here.expect(1, 20, 0)
        assert freed == []

    def test_the_next_one_is_woken_when_the_first_has_its_slot_or_gives_up(self, pair, freed):
        here, there = pair
        fill(here)
        there.expect(1, 10, 0)
        here.expect(1, 20, 0)
        there.expect(0, 0, 0)
        assert freed == [[0]]

    def test_nobody_is_woken_where_there_is_no_slot(self, pair, freed):
        here, there = pair
        fill(here, here)
        there.expect(1, 10, 0)
        here.expect(1, 20, 0)
        there.expect(0, 0, 0)
        assert freed == []

    def test_nobody_waits_any_more(self, pair, freed):
        here, there = pair
        fill(here, here)
        there.expect(1, 10, 0)
        there.expect(0, 0, 0)
        end(here)
        assert freed == []


class TestKeys:
    def test_the_limit_of_a_key_is_the_whole_servers(self, pair):
        here, there = pair
        assert here.take(NOW, 4) is TAKEN
        assert there.take(NOW, 4) is NONE_FOR_KEY
        assert there.take(NOW, 3) is TAKEN

    def test_whoever_waits_for_a_key_is_woken(self, pair, freed):
        here, there = pair
        assert here.take(NOW, 4) is TAKEN
        assert there.take(NOW, 4) is NONE_FOR_KEY
        assert not there.expect(0, 0, 1)
        end(here, 4)
        assert freed == [[1]]
        assert there.take(NOW, 4) is TAKEN

    def test_a_key_that_the_table_does_not_know(self, pair):
        with pytest.raises(UsageError, match=r"max_sessions_per_key.*OPENENV_API_KEYS"):
            pair[0].take(NOW, 5)


def test_a_dead_worker_holds_nothing(table, pair):
    here, there = pair
    assert there.take(NOW, 1) is TAKEN
    assert there.take(NOW, 2) is TAKEN
    there.expect(1, 10, 0)
    table.row(1).clear()
    assert here.take(NOW, 1) is TAKEN
    assert (here.held, table.row(0).get(HELD), table.row(1).get(WAITING)) == (1, 1, 0)


def test_sessions_are_a_load(table, pair):
    here, _ = pair
    fill(here)
    assert table.row(0).get(DRIFT) == 1
    end(here)
    assert table.row(0).get(DRIFT) == 0
