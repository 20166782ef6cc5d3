"""Deployments that are ready before anybody asks, at a place whose servers are all the same one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openenv._asyncio import shared_loop
from openenv.errors import LaunchFailed, NotReady, UsageError
from openenv.providers import Capabilities, Deployment, LaunchSpec, Server, SingleServerProvider, StartRate
from openenv.providers.warm_pool import WarmPool

from ..client.environments import ThreadCounter, app_of
from ..server.wires import eventually, served

FAST = "openenv.server.transports.uvicorn:FastPath"
SPEC = LaunchSpec(image="img")


class Place(SingleServerProvider):
    """Counts its servers, whose address is always the same."""

    capabilities = Capabilities(forms=frozenset({"image"}))

    def __init__(self, url: str):
        self.start_rate = StartRate(rate=1000.0)
        self.url = url
        self.there: set[str] = set()
        self.started = 0
        self.failing = False
        self.broken: set[str] = set()
        self.open = asyncio.Event()  # for the loop of this process: starts go on
        self.open.set()

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        self.started += 1
        if self.failing:
            raise LaunchFailed("no room for it")
        await self.open.wait()
        self.there.add(server.name)
        server.url = self.url

    async def stop_server(self, server: Server) -> None:
        self.there.discard(server.name)

    async def why_gone(self, server: Server) -> str | None:
        return "broke" if server.name in self.broken else None

    async def read_log(self, server: Server, lines: int) -> str:
        return ""

    async def find_leftovers(self) -> list[Any]:
        return []

    async def remove_leftover(self, leftover: Any) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(app_of(ThreadCounter), ws=FAST) as address:
        yield address.replace("ws://", "http://")


@pytest.fixture
def place(url: str) -> Place:
    return Place(url)


@pytest.fixture
def pool(place: Place) -> Iterator[WarmPool]:
    pool = WarmPool(place, SPEC, 3)
    yield pool
    pool.close()
    pool.close()
    assert place.there == set()


def test_as_many_are_ready_as_were_asked_for(pool: WarmPool, place: Place) -> None:
    pool.wait_filled(10.0)
    assert pool.count == len(place.there) == 3


def test_what_is_taken_is_replaced_and_belongs_to_its_taker(pool: WarmPool, place: Place) -> None:
    pool.wait_filled(10.0)
    place.open.clear()  # no other takes the place of one before all are taken
    taken = [pool.take() for _ in range(4)]
    _loop().call_soon_threadsafe(place.open.set)
    assert taken.pop() is None
    mine = [deployment for deployment in taken if deployment is not None]
    assert len({deployment.name for deployment in mine}) == len({deployment.api_key for deployment in mine}) == 3
    eventually(lambda: pool.count == 3)
    assert len(place.there) == 6
    for deployment in mine:
        deployment.wait(deployment.start())  # finds its server
        deployment.wait(deployment.stop())
    assert len(place.there) == 3
    assert place.started == 6


def test_many_threads_do_not_get_the_same(place: Place) -> None:
    pool = WarmPool(place, SPEC, 20)
    pool.wait_filled(10.0)
    with ThreadPoolExecutor(8) as threads:
        taken = [each for each in threads.map(lambda _: pool.take(), range(40)) if each is not None]
    pool.close()
    assert len({id(each) for each in taken}) == len(taken) >= 20
    assert len(place.there) == len(taken)
    for each in taken:
        each.wait(each.stop())
    assert place.there == set()


def test_one_that_breaks_is_thrown_out(pool: WarmPool, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.wait_filled(10.0)
    (broken, *_) = sorted(place.there)
    place.broken.add(broken)
    asyncio.run_coroutine_threadsafe(_look(pool), _loop())
    eventually(lambda: pool.count == 3 and broken not in place.there)


def test_a_place_that_fails_is_asked_again_and_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.providers.warm_pool.FIRST_PAUSE_S", 0.01)
    place.failing = True
    pool = WarmPool(place, SPEC, 1)
    with pytest.raises(LaunchFailed, match="no room"):
        pool.wait_filled(10.0)
    eventually(lambda: place.started > 2)
    place.failing = False
    eventually(lambda: pool.count == 1)
    pool.wait_filled(10.0)
    pool.close()
    assert place.there == set()


def test_what_is_not_ready_in_time(place: Place) -> None:
    place.url = "http://127.0.0.1:1"
    pool = WarmPool(place, SPEC, 2)
    with pytest.raises(NotReady, match="0 of 2 warm servers"):
        pool.wait_filled(0.05)
    pool.close()  # while they are being started
    assert place.there == set()


def test_a_fork_leaves_them_to_its_parent(pool: WarmPool) -> None:
    pool.wait_filled(10.0)
    pool._owner = os.getpid() + 1
    assert pool.take() is None
    pool._owner = os.getpid()
    assert pool.count == 3


def test_closing_it_while_it_looks_starts_no_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WarmPool(place, SPEC, 2)
    pool.wait_filled(10.0)

    async def test() -> None:
        looking, seen = asyncio.Event(), asyncio.Event()

        async def gone(server: Server) -> str | None:
            looking.set()
            await seen.wait()
            return None

        monkeypatch.setattr(place, "why_gone", gone)
        taken = pool.take()
        assert taken is not None
        pool._wake()
        await looking.wait()
        seen.set()
        await pool._close()
        await taken.stop()
        for _ in range(20):
            await asyncio.sleep(0)

    shared_loop().run(test())
    assert (place.started, place.there) == (2, set())
    pool.close()


def test_a_pool_of_nothing(place: Place) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        WarmPool(place, SPEC, 0)
    with pytest.raises(UsageError, match="does not support target"):
        WarmPool(place, LaunchSpec(target="echo"), 1)


async def _look(pool: WarmPool) -> None:
    pool._wake()


def _loop() -> asyncio.AbstractEventLoop:
    return shared_loop().loop
