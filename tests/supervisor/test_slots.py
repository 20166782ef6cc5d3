from __future__ import annotations

import pytest

from openenv.sessions import Slots
from openenv.supervisor.load import Load
from openenv.supervisor.slots import SharedSlots
from openenv.supervisor.table import DRIFT, HELD, WAITING, Table


@pytest.fixture
def table():
    table = Table(2)
    yield table
    table.close()


@pytest.fixture
def freed():
    return []


@pytest.fixture
def pair(table, freed):
    """The same two slots, as two workers see them."""
    return [SharedSlots(table, row, 2, Load(table.row(row)), freed.append) for row in range(2)]


def end(slots: Slots) -> None:
    slots.leave()
    slots.give()


def test_the_limit_is_the_whole_servers(pair):
    here, there = pair
    assert here.take()
    assert there.take()
    assert not here.take()
    assert not there.take()
    assert here.held == there.held == here.limit == 2


def test_a_slot_given_back_is_free_for_the_other(pair):
    here, there = pair
    assert here.take()
    assert here.take()
    here.leave()
    assert there.leaving == 1
    assert not there.take()
    here.give()
    assert there.leaving == 0
    assert there.take()


def test_whoever_waits_elsewhere_is_named(pair, freed):
    here, there = pair
    assert here.take()
    assert here.take()
    end(here)
    assert freed == []
    assert here.take()
    there.expect(1)
    assert freed == []
    end(here)
    assert freed == [[1]]


def test_own_newcomers_need_no_message(pair, freed):
    here, _ = pair
    assert here.take()
    assert here.take()
    here.expect(3)
    end(here)
    assert freed == []


def test_a_slot_that_came_free_before_it_was_waited_for(pair, freed):
    here, there = pair
    assert here.take()
    there.expect(1)
    assert freed == [[1]]


def test_nobody_waits_any_more(pair, freed):
    here, there = pair
    assert here.take()
    assert here.take()
    there.expect(1)
    there.expect(0)
    end(here)
    assert freed == []


def test_a_dead_worker_holds_nothing(table, pair):
    here, there = pair
    assert there.take()
    assert there.take()
    table.row(1).clear()
    assert here.take()
    assert (here.held, table.row(0).get(HELD), table.row(1).get(WAITING)) == (1, 1, 0)


def test_sessions_are_a_load(table, pair):
    here, _ = pair
    assert here.take()
    assert table.row(0).get(DRIFT) == 1
    end(here)
    assert table.row(0).get(DRIFT) == 0
