from __future__ import annotations

import pytest

from openenv.supervisor.load import Load
from openenv.supervisor.table import DRIFT, Table


@pytest.fixture
def table():
    table = Table(1)
    yield table
    table.close()


@pytest.fixture
def load(table):
    return Load(table.row(0))


def test_a_connection_that_becomes_a_session_weighs_as_before(table, load):
    load.begin()
    load.opened()
    load.end()
    assert table.row(0).get(DRIFT) == 0
    load.closed()
    assert table.row(0).get(DRIFT) == -1


def test_a_connection_without_a_session_weighs_nothing_and_its_sessions_do(table, load):
    load.begin()
    load.end()
    assert table.row(0).get(DRIFT) == -1
    load.opened()
    load.opened()
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
