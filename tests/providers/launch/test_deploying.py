"""Servers that a block asks for. `tests/providers` has the places, `tests/real` real processes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest

from openenv.errors import LaunchFailed, UsageError
from openenv.providers import (
    Capabilities,
    Deploying,
    Deployment,
    LaunchSpec,
    Leftover,
    Server,
    SingleServerProvider,
    StartRate,
    deploy,
)

from ...asynchronous import until
from ...client.environments import ThreadCounter, app_of
from ...server.wires import served

SPEC = LaunchSpec(image="img", api_key="")


class Shelf(SingleServerProvider):
    """A place whose servers run already; it remembers which are taken."""

    capabilities: ClassVar = Capabilities(forms=frozenset({"image"}))

    def __init__(self, url: str = "http://127.0.0.1:1"):
        self.start_rate = StartRate(rate=1000)
        self.url = url
        self.taken: list[Server] = []
        self.closed = False
        self.end: str | None = None
        self.unstoppable = False

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        self.taken.append(server)
        server.url = self.url

    async def stop_server(self, server: Server) -> None:
        if self.unstoppable:
            raise LaunchFailed("it clings")
        if server in self.taken:
            self.taken.remove(server)

    async def why_gone(self, server: Server) -> str | None:
        return self.end

    async def read_log(self, server: Server, lines: int) -> str:
        return "its log"

    async def find_leftovers(self) -> list[Leftover]:
        return []

    async def remove_leftover(self, leftover: Leftover) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def url() -> Any:
    with served(app_of(ThreadCounter)) as address:
        yield address


async def test_servers_for_the_time_of_a_block(url: str) -> None:
    shelf = Shelf(url)
    async with deploy(SPEC, shelf, replicas=3) as servers:
        assert servers.urls == [url] * 3
        assert len(shelf.taken) == 3
    assert shelf.taken == []
    assert not shelf.closed  # it is the caller's


def test_a_block_that_waits(url: str) -> None:
    shelf = Shelf(url)
    with deploy(SPEC, shelf) as servers:
        assert servers.url == url
    assert shelf.taken == []


async def test_awaited_they_are_stopped_by_whoever_has_them(url: str) -> None:
    shelf = Shelf(url)
    servers = await deploy(SPEC, shelf)
    assert len(shelf.taken) == 1
    await servers.stop()
    await servers.stop()
    assert shelf.taken == []
    with pytest.raises(UsageError, match="was stopped"):
        await servers.scale(2)


async def test_servers_that_end_before_they_are_ready_are_removed() -> None:
    shelf = Shelf()
    shelf.end = "ended with exit code 3"
    with pytest.raises(LaunchFailed, match=r"ended with exit code 3(.|\n)*its log"):
        await deploy(SPEC, shelf, ready_timeout_s=10)
    assert shelf.taken == []


async def test_a_caller_that_gives_up_leaves_nothing() -> None:
    shelf = Shelf()  # which is never ready
    waiting = asyncio.ensure_future(deploy(SPEC, shelf).__aenter__())
    await until(lambda: bool(shelf.taken))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert shelf.taken == []


@pytest.mark.parametrize("awaited", [False, True], ids=["entered", "awaited"])
async def test_a_caller_that_is_cancelled_when_they_are_ready_leaves_nothing(
    url: str, awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, ready = Shelf(url), threading.Event()
    deploying = deploy(SPEC, shelf)
    start = deploying._start

    async def started() -> Deployment:
        deployment = await start()
        ready.set()
        return deployment

    monkeypatch.setattr(deploying, "_start", started)
    waiting = asyncio.ensure_future(_awaited(deploying) if awaited else deploying.__aenter__())
    await asyncio.sleep(0)  # it has begun, and hears of its end only when this loop goes on
    assert ready.wait(10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert shelf.taken == []


async def _awaited(deploying: Deploying) -> Deployment:
    return await deploying


async def test_the_error_of_the_block_goes_before_that_of_the_end(url: str) -> None:
    shelf = Shelf(url)
    with pytest.raises(ZeroDivisionError) as caught:
        async with deploy(SPEC, shelf) as servers:
            shelf.unstoppable = True
            raise ZeroDivisionError
    assert "it clings" in "".join(caught.value.__notes__)
    shelf.unstoppable = False
    await servers.stop()
    assert shelf.taken == []


def test_what_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="LaunchSpec"):
        deploy("echo")
    with pytest.raises(UsageError, match="pass a Provider"):
        deploy(SPEC, "docker")
    with pytest.raises(UsageError, match="does not support target"):
        deploy(LaunchSpec(target="echo"), Shelf())
