"""How many servers sessions need, and what a server says of its sessions. What is started is for tests/infra."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.errors import ConnectionLost, ProviderFailed, UsageError
from openenv.providers import ScalingRule
from openenv.providers.autoscaler import ScalingHistory, ServerLoad

from ..client.environments import ThreadCounter, app_of
from ..server.wires import served

RULE = ScalingRule(least=1, most=5, utilization=0.8, settle_s=10.0)


@pytest.mark.parametrize(("sessions", "servers"), [(0, 1), (8, 1), (9, 2), (16, 2), (17, 3), (1000, 5)])
def test_sessions_take_a_part_of_the_slots_within_the_bounds(sessions: int, servers: int) -> None:
    assert RULE.servers(sessions, slots=10) == servers


def test_it_goes_up_at_once_and_down_when_fewer_were_enough_for_a_while() -> None:
    history = ScalingHistory(RULE)
    load = [(0.0, 1), (1.0, 30), (2.0, 12), (10.0, 5), (11.5, 5), (12.5, 5), (13.0, 20)]
    servers, seen = 1, []
    for now, sessions in load:
        servers = history.decide(now, servers, sessions, slots=10)
        seen.append(servers)
    assert seen == [1, 4, 4, 4, 2, 1, 3]


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 100)), min_size=1))
def test_there_are_never_fewer_than_the_present_sessions_need_nor_more_than_allowed(
    load: list[tuple[float, int]],
) -> None:
    history, servers, now = ScalingHistory(RULE), 1, 0.0
    for pause_s, sessions in load:
        now += pause_s
        servers = history.decide(now, servers, sessions, slots=10)
        assert RULE.servers(sessions, 10) <= servers <= RULE.most


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"least": 0, "most": 2}, "0:2"),
        ({"least": 3, "most": 2}, "3:2"),
        ({"least": 1, "most": 2, "utilization": 0.0}, "utilization"),
        ({"least": 1, "most": 2, "utilization": 1.5}, "1.5"),
        ({"least": 1, "most": 2, "settle_s": -1.0}, "settle_s"),
        ({"least": 1, "most": 2, "settle_s": float("nan")}, "settle_s"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ScalingRule(**values)


def test_a_server_counts_its_sessions() -> None:
    with served(app_of(ThreadCounter, max_sessions=7)) as address:
        assert ServerLoad.read(f"http://{address}", None) == (0, 7, 0)


def test_a_server_without_metrics_is_named_with_the_setting() -> None:
    with served(app_of(ThreadCounter, metrics=False)) as address:
        with pytest.raises(ProviderFailed, match=r"status 404.*OPENENV_METRICS"):
            ServerLoad.read(f"http://{address}", None)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConnectionLost, match="no answer"):
        ServerLoad.read("http://127.0.0.1:1", None)
