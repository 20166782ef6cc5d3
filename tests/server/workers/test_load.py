from __future__ import annotations

import pytest

from openenv.server.workers.table import DECIDED, DRIFT, WorkerLoad, WorkerTable


@pytest.fixture
def table():
    table = WorkerTable(1)
    yield table
    table.close()


@pytest.fixture
def load(table):
    return WorkerLoad(table.row(0))


def test_a_connection_that_becomes_a_session_weighs_as_before(table, load):
    load.begin()
    load.opened()
    load.end()
    assert table.row(0).get(DRIFT) == 0
    load.closed()
    assert table.row(0).get(DRIFT) == -1


def test_a_connection_weighs_until_its_session_takes_over(table, load):
    load.begin()
    number = load.end()
    assert table.row(0).get(DRIFT) == 0
    load.opened()
    load.note_request()
    assert table.row(0).get(DRIFT) == 0
    load.opened()  # the second session of the connection
    load.note_request()
    assert table.row(0).get(DRIFT) == 1
    load.give_up(number)
    assert table.row(0).get(DRIFT) == 1


def test_a_connection_that_asks_for_no_session_weighs_nothing_after_a_while(table, load):
    load.begin()
    number = load.end()
    load.give_up(number)
    assert table.row(0).get(DRIFT) == -1
    load.opened()
    assert table.row(0).get(DRIFT) == 0


def test_a_connection_that_gets_no_session_weighs_nothing_when_it_has_asked(table, load):
    load.begin()
    number = load.end()
    load.note_request()  # it waits in line, or is refused
    assert table.row(0).get(DRIFT) == -1
    load.give_up(number)
    load.opened()
    assert table.row(0).get(DRIFT) == 0


def test_a_session_from_elsewhere_leaves_the_sum_right(table, load):
    load.begin()
    load.end()
    load.opened()  # over HTTP: its own connection was counted apart
    assert table.row(0).get(DRIFT) == 0
    load.opened()
    load.note_request()
    assert table.row(0).get(DRIFT) == 1


def test_two_sessions_in_the_turn_of_the_upgrade(table, load):
    load.begin()
    load.opened()
    load.opened()
    load.end()
    assert table.row(0).get(DRIFT) == 1


def test_one_that_is_over_in_the_turn_of_the_upgrade(table, load):
    load.begin()
    load.opened()
    load.closed()
    load.end()
    assert table.row(0).get(DRIFT) == -1


def test_a_connection_is_decided_when_it_has_asked_for_a_session(table, load):
    load.begin()
    load.note_request()
    assert table.row(0).get(DECIDED) == 0  # its session is opened in this turn
    assert load.end() is None
    assert table.row(0).get(DECIDED) == 1


def test_one_that_asks_later_is_decided_then(table, load):
    load.begin()
    number = load.end()
    assert table.row(0).get(DECIDED) == 0
    load.note_request()
    load.note_request()  # the second session of one connection
    assert table.row(0).get(DECIDED) == 1
    load.give_up(number)
    assert table.row(0).get(DECIDED) == 1


def test_one_that_never_asks_is_not_waited_for(table, load):
    load.begin()
    first = load.end()
    load.begin()
    second = load.end()
    load.note_request()
    load.give_up(first)
    assert table.row(0).get(DECIDED) == 1
    load.give_up(second)
    assert table.row(0).get(DECIDED) == 2


def test_one_that_is_gone_is_decided(table, load):
    load.begin()
    assert load.end(gone=True) is None
    assert table.row(0).get(DECIDED) == 1
