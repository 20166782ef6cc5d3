"""A place in memory, where servers are put up and taken away as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from openenv.providers import Capabilities, Deployment, LaunchSpec, Leftover, Server, SingleServerProvider, StartRate

__all__ = ["SPEC", "Shelf", "Stop"]

SPEC = LaunchSpec(command=["serve"])


class Stop:
    """A point that a place waits at, until the test lets it go on. For the loop of this process."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = 0

    async def wait(self) -> None:
        self.reached.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Shelf(SingleServerProvider):
    """Its servers are names in a set. Nothing is asked of the machine.

    Attributes:
        standing: What there is.
        calls: What was done, in its order.
        start_stop, end_stop: Where a start or an end waits, in the middle, if anywhere.
        refusing: What the next starts raise, after something has been put up already.
        clinging: What the next ends raise.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"command"}))

    def __init__(self, url: str | Callable[[Server], str] = "http://127.0.0.1:1"):
        self.start_rate = StartRate(rate=10_000, at_once=100, pause_s=0.001)
        self.standing: set[str] = set()
        self.calls: list[str] = []
        self.start_stop: Stop | None = None
        self.end_stop: Stop | None = None
        self.refusing: list[BaseException] = []
        self.clinging: list[BaseException] = []
        self.ends: dict[str, str] = {}
        self.log = ""
        self._url = url

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        self.calls.append("start")
        self.standing.add(server.name)
        if self.start_stop is not None:
            await self.start_stop.wait()
        if self.refusing:
            raise self.refusing.pop(0)
        server.url = self._url if isinstance(self._url, str) else self._url(server)

    async def stop_server(self, server: Server) -> None:
        self.calls.append("end")
        if self.end_stop is not None:
            await self.end_stop.wait()
        if self.clinging:
            raise self.clinging.pop(0)
        self.standing.discard(server.name)

    async def why_gone(self, server: Server) -> str | None:
        return self.ends.get(server.name)

    async def read_log(self, server: Server, lines: int) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    async def find_leftovers(self) -> list[Leftover]:
        return []

    async def remove_leftover(self, leftover: Leftover) -> None:
        raise AssertionError("nothing to discard")
