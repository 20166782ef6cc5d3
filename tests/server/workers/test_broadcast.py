"""What sessions all workers have: questions, and answers that come, are slow, or never come."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable

import pytest

from openenv.server.workers import worker as worker_module
from openenv.server.workers.worker import Broadcast, send_sessions

from ...unhurried import Unhurried
from .whereabouts import opened

LINE = {"state": "live", "age_s": 1.0, "idle_s": None, "steps": 3, "peer": "127.0.0.1:41234"}


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Who asks and who answers are on one loop here."""
    return Unhurried


def sessions(count: int, worker: str) -> list[dict]:
    return [{"id": f"{worker}-{number:032}", "worker": worker, **LINE} for number in range(count)]


class Parent:
    """Passes sockets on, as the supervisor does, to workers that answer as a test wants."""

    def __init__(self, **workers):
        self.workers = workers
        self.asked = 0
        self.tasks = []
        self.broadcast = Broadcast(self.ask, lambda: sessions(2, "a0"))

    def ask(self) -> None:
        self.asked += 1
        keys, ends = b"", []
        for name, behave in self.workers.items():
            here, there = socket.socketpair()
            keys += int(name, 16).to_bytes(8, "big")
            ends.append(here.detach())
            self.tasks.append(asyncio.create_task(behave(there, name)))
        self.broadcast.take_sockets(len(self.workers).to_bytes(2, "big") + keys, ends)


def having(count):
    async def behave(end, name):
        await send_sessions(end, sessions(count, name))

    return behave


async def dying(end, name):
    """It has begun to answer."""
    end.sendall(b'[{"id": "half')
    end.close()


async def mute(end, name):
    with end:
        await asyncio.sleep(3600)


async def raving(end, name):
    end.sendall(b"\xff\xfe nonsense\n")
    end.close()


def unanswered(lines):
    return [line["worker"] for line in lines if line["state"] == "unanswered"]


def files():
    return opened(os.getpid())


async def test_sessions_of_all_workers():
    parent = Parent(b1=having(300), b2=having(0), b3=having(1))
    lines = await parent.broadcast.all_sessions()
    assert lines == sessions(2, "a0") + sessions(300, "b1") + sessions(1, "b3")


async def test_a_worker_alone():
    assert await Parent().broadcast.all_sessions() == sessions(2, "a0")


async def test_ten_thousand_and_other_work_goes_on():
    parent = Parent(b1=having(5000), b2=having(5000))
    before, longest, last = files(), 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()  # a machine that lets all of this wait is not meant
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    lines = await parent.broadcast.all_sessions()
    watcher.cancel()
    assert len(lines) == 10_002
    assert longest < 0.5
    await asyncio.gather(*parent.tasks)
    await asyncio.sleep(0)
    assert not files() - before


@pytest.mark.parametrize("behave", [dying, raving])
async def test_one_that_dies_is_left_out_and_named(behave):
    parent = Parent(b1=behave, b2=having(4))
    lines = await parent.broadcast.all_sessions()
    assert unanswered(lines) == ["b1"]
    assert len(lines) == 2 + 1 + 4


async def test_one_that_is_silent_is_left_out_after_its_time(monkeypatch):
    monkeypatch.setattr(worker_module, "ANSWER_S", 0.1)
    parent = Parent(b1=mute, b2=having(4))
    lines = await parent.broadcast.all_sessions()
    assert unanswered(lines) == ["b1"]
    assert len(lines) == 2 + 1 + 4
    for task in parent.tasks:
        task.cancel()
    await asyncio.gather(*parent.tasks, return_exceptions=True)


async def test_a_parent_without_room_for_files():
    sink = Broadcast(lambda: sink.take_sockets(b"\0\1" + (0xB1).to_bytes(8, "big"), []), list)
    assert unanswered(await sink.all_sessions()) == ["b1"]


async def test_a_parent_that_says_nothing(monkeypatch):
    monkeypatch.setattr(worker_module, "ANSWER_S", 0.05)
    sink = Broadcast(lambda: None, lambda: sessions(1, "a0"))
    assert await sink.all_sessions() == sessions(1, "a0")
    here, there = socket.socketpair()
    with there:
        sink.take_sockets(b"\0\1" + bytes(8), [here.detach()])  # too late
        assert there.recv(1) == b""


async def test_those_who_ask_at_one_time_share_an_answer():
    parent = Parent(b1=having(3))
    answers = await asyncio.gather(*(parent.broadcast.all_sessions() for _ in range(20)))
    assert parent.asked == 1
    assert all(len(lines) == 5 for lines in answers)
    await parent.broadcast.all_sessions()
    assert parent.asked == 2


async def test_an_asker_that_has_gone_keeps_nobody_busy():
    here, there = socket.socketpair()
    here.close()
    await send_sessions(there, sessions(2000, "b1"))
    assert there.fileno() == -1
