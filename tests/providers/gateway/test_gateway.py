"""Who changes the backends of a gateway, and in what order, with a stand-in for Envoy."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from openenv._asyncio import shared_loop
from openenv.errors import UsageError
from openenv.providers import Gateway
from openenv.providers.gateway import Backend, Topology
from openenv.providers.gateway import gateway as module

PATIENCE_S = 15.0
TURNS = 20


class Slow:
    """Takes changes when the test lets it."""

    end: str | None = None
    admin_url = "http://127.0.0.1:1"
    port = 1

    def __init__(self, *_: Any) -> None:
        self.taken: list[list[str]] = []
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def start(self, topology: Topology, timeout_s: float) -> None:
        pass

    async def take(self, topology: Topology) -> None:
        self.reached.set()
        await self.open.wait()
        self.taken.append([backend.place for backend in topology.backends])

    async def stop(self) -> None:
        self.end = "was stopped"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Slow]:
    """The stand-ins that were made so far."""
    slow: list[Slow] = []

    def made(*_: Any) -> Slow:
        slow.append(Slow())
        return slow[-1]

    monkeypatch.setattr(module, "Envoy", made)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    return slow


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_a_look_at_the_old_backends_does_not_undo_a_change(slow: list[Slow]) -> None:
    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), Gateway(["127.0.0.1:1"], program="envoy") as gateway:
            change = asyncio.ensure_future(gateway.update(["127.0.0.1:2"]))
            await slow[0].reached.wait()
            await turns()  # it looks, and waits for its turn
            slow[0].open.set()
            await change
            await turns()
            assert slow[0].taken == [["127.0.0.1:2"]]

    shared_loop().run(test())


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("127.0.0.2", "http://127.0.0.2:1")],
)
async def test_its_address_is_one_that_it_listens_on(host: str, url: str, slow: list[Slow]) -> None:
    async with Gateway(host=host, program="envoy") as gateway:
        assert gateway.url == url


async def test_a_caller_that_is_cancelled_when_it_listens_leaves_nothing(slow: list[Slow]) -> None:
    listens = threading.Event()

    class Told(Gateway):
        async def _start(self) -> None:
            await super()._start()
            listens.set()

    entering = asyncio.ensure_future(Told(program="envoy").__aenter__())
    await asyncio.sleep(0)  # it has begun, and hears of its end only when this loop goes on
    assert listens.wait(PATIENCE_S)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert [each.end for each in slow] == ["was stopped"]


async def test_one_that_runs_is_not_ended_by_who_starts_it_again(slow: list[Slow]) -> None:
    async with Gateway(program="envoy") as gateway:
        with pytest.raises(UsageError, match="once"):
            await gateway.start()
        assert gateway.end is None


def test_a_fault_of_the_place_is_told_and_the_servers_are_followed_on(
    slow: list[Slow], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), Gateway(["127.0.0.1:1"], program="envoy") as gateway:
            faulty = slow[0].take

            async def take(topology: Topology) -> None:
                slow[0].take = faulty
                raise LookupError("a bug of a provider")

            slow[0].take = take
            slow[0].open.set()
            gateway._source = (Backend.parse("127.0.0.1:2"),)
            await slow[0].reached.wait()

    shared_loop().run(test())
    assert "a bug of a provider" in caplog.text


def test_a_place_that_takes_no_notice_of_a_cancellation_does_not_keep_it_from_ending(slow: list[Slow]) -> None:
    async def deaf(_: Topology) -> None:
        slow[0].reached.set()
        with suppress(asyncio.CancelledError):
            await slow[0].open.wait()

    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S):
            gateway = await Gateway(["127.0.0.1:1"], program="envoy").start()
            slow[0].take = deaf
            gateway._source = (Backend.parse("127.0.0.1:2"),)
            await slow[0].reached.wait()
            await gateway.stop()

    shared_loop().run(test())
    assert slow[0].end == "was stopped"
