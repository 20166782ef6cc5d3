"""Who changes the backends of a gateway, and in what order, with a stand-in for Envoy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv.background import shared_loop
from openenv.gateway import Topology
from openenv.launch import Gateway
from openenv.launch import gateway as module

PATIENCE_S = 5.0
TURNS = 20


class Slow:
    """Takes changes when the test lets it."""

    end = None
    admin = ("127.0.0.1", 1)
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
        pass


def test_a_look_at_the_old_backends_does_not_undo_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[Slow] = []

    def made(*_: Any) -> Slow:
        slow.append(Slow())
        return slow[0]

    monkeypatch.setattr(module, "Envoy", made)
    monkeypatch.setattr(module, "LOOK_S", 0.0)

    async def turns() -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

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
