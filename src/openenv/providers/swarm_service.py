"""The service of one deployment in a swarm: its tasks, and where the servers in them are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from ..errors import LaunchFailed, NotReady
from .deployment import Deployment, Server
from .secrecy import masked
from .swarm_manager import Manager
from .swarm_request import CONTAINER_PORT, published_as
from .swarm_tasks import Slot, slots_of
from .tail import TAIL_LINES, with_tail

__all__ = ["GLANCE_S", "Seat", "Service"]

GLANCE_S = 0.1
"""Seconds between two looks at the tasks."""
# How old what was seen may be: every server of a deployment asks.
FRESH_S = 0.2
_REMOVED = "was removed from the swarm"


class Service:
    """What is known of a service. The `handle` of each of its servers is a `Seat`.

    Args:
        manager: Who is asked.
        deployment: Whose it is.
        publish: How services are published there that do not say it themselves.

    Attributes:
        publish: How it is published.
        fixed: Whether it has a mode of its own, so that nobody else says how many tasks it has.
        id: What the swarm knows it by; "" until it is there.
        replicas: How many tasks it was asked for.
    """

    def __init__(self, manager: Manager, deployment: Deployment, publish: str):
        options = dict(deployment.spec.options)
        self.publish = published_as(options, publish)
        self.fixed = options.get("mode") is not None
        self.id = ""
        self.replicas = 0
        self._manager = manager
        self._deployment = deployment
        self._port = deployment.spec.port or CONTAINER_PORT
        self._tasks: list[dict[str, Any]] = []
        self._seen = float("-inf")
        self._looking = asyncio.Lock()

    def expect(self, replicas: int) -> None:
        """Counts servers that are about to be started."""
        servers = self._deployment.servers
        for _ in range(len(servers), 1 if self.publish == "ingress" else replicas):
            self._deployment.new_server().handle = Seat(self)

    async def settle(self, timeout_s: float) -> None:
        """Waits until it has as many tasks as it was asked for, with addresses, and no others.

        Raises:
            LaunchFailed: One has ended; with the reason, and the end of its log. At once.
            NotReady: Not in time.
        """
        old = {server.handle.slot for server in self._deployment.servers if server.url is not None}
        began = time.monotonic()
        while True:
            slots = await self._slots(0.0)
            # What has run before is the swarm's to start again.
            new = [slot for slot in slots.values() if slot.key not in old]
            failed = next((slot for slot in new if slot.failure is not None), None)
            if failed is not None:
                raise await self._failed(failed)
            if self._complete(slots) and all([await self._url(slot) for slot in new]):
                break
            if time.monotonic() - began > timeout_s:
                why = next((f": one is {slot.state}" for slot in new if not slot.running), "")
                why = masked(why, self._deployment.secrets)
                raise NotReady(f"{self.replicas} servers did not run within {timeout_s:g} s (start_timeout_s){why}")
            await asyncio.sleep(GLANCE_S)
        await self._place(slots)
        if self.publish != "ingress":  # nothing stands for those that were counted for a start that failed
            for server in [each for each in self._deployment.servers if each.handle.slot is None]:
                self._deployment.servers.remove(server)

    async def running(self) -> int:
        """How many of its tasks run."""
        return sum(slot.running for slot in (await self._slots(0.0)).values())

    async def survey(self) -> None:
        """Sets where the servers are now, and which are gone."""
        await self._place(await self._slots(0.0))

    async def gone(self, slot: str | None) -> str | None:
        """Why nothing is in a slot, or in one of all; None while something is there or on its way."""
        return self._failure(self._these(slot, await self._slots()))

    async def log(self, slot: str | None, lines: int) -> str:
        """The last lines of what has run in a slot, or in all."""
        slots = self._these(slot, await self._slots())
        return await self._manager.log(self.id, tuple(task for each in slots for task in each.tasks), lines)

    def _these(self, slot: str | None, slots: dict[str, Slot]) -> list[Slot]:
        return [each for each in slots.values() if slot in {None, each.key}]

    async def _slots(self, age_s: float = FRESH_S) -> dict[str, Slot]:
        async with self._looking:
            if time.monotonic() - self._seen >= age_s:
                self._tasks = await self._manager.tasks(self._deployment.name)
                self._seen = time.monotonic()
        return slots_of(self._tasks)

    def _complete(self, slots: dict[str, Slot]) -> bool:
        """Whether there are as many tasks as there should be, and those that were too many have ended."""
        if self.fixed:
            return bool(slots)
        leaving = any(task.get("DesiredState") == "remove" for task in self._tasks)
        return len(slots) == self.replicas and not leaving

    async def _place(self, slots: dict[str, Slot]) -> None:
        urls = {key: await self._url(slot) for key, slot in slots.items()}
        deployment = self._deployment
        if deployment.handle is not self:
            return  # it was stopped meanwhile
        if self.publish == "ingress":
            for server in deployment.servers:
                server.url = next(filter(None, urls.values()), server.url)
                server.gone = None if any(urls.values()) else self._absence(server, list(slots.values()))
            return
        self._take_away(slots)
        for slot in slots.values():
            self._seat(slot, urls[slot.key])

    def _seat(self, slot: Slot, url: str | None) -> None:
        """Has a server stand for a slot: the one that does, one for which there was no slot yet, or another one."""
        servers = self._deployment.servers
        server = next((each for wanted in (slot.key, None) for each in servers if each.handle.slot == wanted), None)
        server = server or self._deployment.new_server()
        server.handle = Seat(self, slot.key)
        server.url = url or server.url
        server.gone = None if slot.running else self._absence(server, [slot])

    def _take_away(self, slots: dict[str, Slot]) -> None:
        for server in list(self._deployment.servers):
            if server.handle.slot is not None and server.handle.slot not in slots:
                server.gone = _REMOVED
                if slots:  # otherwise all of it is gone, which somebody is to see
                    self._deployment.servers.remove(server)

    async def _url(self, slot: Slot) -> str | None:
        """The address of what is in a slot, as soon as it runs; by the mesh, that of all slots."""
        if not slot.running:
            return None
        place: str | None = self._manager.host
        port: int | None = self._port
        if self.publish == "ingress":
            port = await self._manager.port(self.id)
        elif self.publish == "dnsrr":
            place = next(iter(slot.addresses), None)
        else:
            port = slot.ports.get(self._port) or next(iter(slot.ports.values()), None)
            place = slot.node and await self._manager.address(slot.node)
        return None if port is None or place is None else f"http://{place}:{port}"

    async def _failed(self, slot: Slot) -> LaunchFailed:
        log = await self._manager.log(self.id, slot.tasks, TAIL_LINES)
        advice = ": load it on every node, push it to a registry, or set constraints" if slot.imageless else ""
        said = with_tail(f"the server {slot.failure}{advice}", log)
        return LaunchFailed(masked(said, self._deployment.secrets))

    def _absence(self, server: Server, slots: list[Slot]) -> str | None:
        """Why nothing runs in a server's slots; None while it is on its way for the first time."""
        reason = self._failure(slots)
        if reason is None and server.url is not None:
            reason = f"is being started again ({slots[0].state})"
        return reason and masked(reason, self._deployment.secrets)

    def _failure(self, slots: list[Slot]) -> str | None:
        """What has gone wrong in one of some slots, if anything has."""
        reason = next((each.failure for each in slots if each.failure), None) if slots else _REMOVED
        return reason and masked(reason, self._deployment.secrets)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a server is: in a slot of a service; None: in none yet, or behind the mesh, in all."""

    service: Service
    slot: str | None = None
