"""Which of several servers gets the next connection. `tests/real/test_client_endpoints.py` has real ones."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter

import pytest

from openenv.client import endpoints as module
from openenv.client.endpoints import Endpoints
from openenv.errors import InvalidArgument, UsageError

URLS = ["http://a:1", "b:2", "wss://c/base"]


def connected(endpoints: Endpoints, times: int) -> Counter[str]:
    for _ in range(times):
        endpoint = endpoints.pick()
        assert endpoint is not None
        endpoint.opened()
    return Counter({endpoint.url: endpoint.connections for endpoint in endpoints.all})


def test_connections_are_spread_evenly() -> None:
    counts = connected(Endpoints(URLS), 7)
    assert counts.total() == 7
    assert sorted(counts.values()) == [2, 2, 3]
    assert counts.keys() == {"ws://a:1/ws", "ws://b:2/ws", "wss://c/base/ws"}


def test_programs_with_the_same_seed_do_not_all_begin_with_the_same_server() -> None:
    first = set()
    for _ in range(64):
        random.seed(0)
        before = random.getstate()
        first.add(Endpoints(URLS).pick())
        assert random.getstate() == before
    assert len(first) == 3


def test_what_ended_makes_room() -> None:
    endpoints = Endpoints(URLS)
    connected(endpoints, 9)
    endpoints.all[1].closed()
    assert endpoints.pick() is endpoints.all[1]


def test_clients_of_one_process_count_together() -> None:
    first, second = Endpoints(URLS), Endpoints(URLS[:2])
    connected(first, 3)
    assert connected(second, 3).total() == 5
    assert first.all[0] is second.all[0]


def test_what_nobody_uses_is_forgotten() -> None:
    connected(Endpoints(URLS), 3)
    gc.collect()
    assert [endpoint.connections for endpoint in Endpoints(URLS).all] == [0, 0, 0]


def test_one_that_failed_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST_S", 60.0)
    endpoints = Endpoints(URLS[:2])
    endpoints.all[0].failed()
    assert connected(endpoints, 5)["ws://b:2/ws"] == 5
    assert endpoints.pick({endpoints.all[1]}) is endpoints.all[0]
    assert endpoints.pick(endpoints.all) is None


def test_among_equals_chance_decides() -> None:
    endpoints = Endpoints(URLS)
    assert {endpoint.url for endpoint in (endpoints.pick() for _ in range(200)) if endpoint is not None} == {
        endpoint.url for endpoint in endpoints.all
    }


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_none_of_the_connections_of_its_parent() -> None:
    endpoints = Endpoints(URLS)
    connected(endpoints, 9)
    child = os.fork()
    if child == 0:
        os._exit(sum(endpoint.connections for endpoint in (*endpoints.all, *Endpoints(URLS).all)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [endpoint.connections for endpoint in endpoints.all] == [3, 3, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_may_come_while_addresses_are_looked_up() -> None:
    with module._knowing:
        child = os.fork()
        if child == 0:
            os._exit(0 if module._knowing.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_address_that_is_named_twice_is_one() -> None:
    assert len(Endpoints(["a:1", "http://a:1/", "ws://a:1/ws"]).all) == 1


def test_no_addresses() -> None:
    with pytest.raises(InvalidArgument, match="empty list"):
        Endpoints([])
    with pytest.raises(UsageError, match="not the address"):
        Endpoints(["a:1", "ftp://b"])
