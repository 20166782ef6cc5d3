"""What sessions all workers have: questions, and answers that come, are slow, or never come."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable

import pytest
from fastapi import Request

from openenv.server import HTTPEnvServer, http
from openenv.server.proxy import ARRIVAL, ForwardingInfo, list_sessions
from openenv.settings import ServerSettings

from ..unhurried import Unhurried
from .probe import ProbeAction, ProbeEnvironment, ProbeObservation
from .workers.whereabouts import opened

LINE = {"state": "live", "age_s": 1.0, "idle_s": None, "steps": 3, "peer": "127.0.0.1:41234"}


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Who asks and who answers are on one loop here."""
    return Unhurried


def sessions(count: int, worker: str) -> list[dict]:
    return [{"id": f"{worker}-{number:032}", "worker": worker, **LINE} for number in range(count)]


def request(handed_on: bool = False, **scope) -> Request:
    headers = [(b"host", b"here"), (b"authorization", b"Bearer x"), (b"accept-encoding", b"gzip")]
    known = {"type": "http", "method": "GET", "path": "/sessions", "headers": headers}
    arrival = {"client": ("1.2.3.4", 5), "server": ("10.0.0.1", 8000), ARRIVAL: ForwardingInfo(b"/s?x=1", handed_on)}
    return Request({**known, **arrival, **scope})


class Parent:
    """Passes connections on, as the supervisor does, to workers that answer as a test wants."""

    def __init__(self, **workers):
        self.workers = workers
        self.asked = []
        self.heads = []
        self.tasks = []
        self.server = HTTPEnvServer(ProbeEnvironment, ProbeAction, ProbeObservation, settings=ServerSettings.read({}))
        self.server.worker_key, self.server.redirect = "a0", self.redirect
        self.server.other_workers = lambda: list(self.workers)
        self.server.sessions_here = lambda: sessions(2, "a0")

    def redirect(self, key, connection, read) -> bool:
        self.asked.append((key, read))
        if self.workers[key] is None:
            return False
        self.tasks.append(asyncio.create_task(self.serve(connection.dup(), key)))
        connection.close()
        return True

    async def serve(self, connection, key):
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            await self.workers[key](writer, key)
        finally:
            writer.close()

    async def list(self) -> list[dict]:
        return await list_sessions(request(), self.server)


def having(count, name=None):
    async def behave(writer, key):
        body = json.dumps(sessions(count, name or key)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    return behave


def saying(words):
    async def behave(writer, key):
        writer.write(words)

    return behave


async def mute(writer, key):
    await asyncio.sleep(3600)


def unanswered(lines):
    return [line["worker"] for line in lines if line["state"] == "unanswered"]


def files():
    return opened(os.getpid())


async def test_sessions_of_all_workers():
    parent = Parent(b1=having(300), b2=having(0), b3=having(1))
    assert await parent.list() == sessions(2, "a0") + sessions(300, "b1") + sessions(1, "b3")
    assert parent.asked == [(key, b"PROXY TCP4 1.2.3.4 10.0.0.1 5 8000\r\n") for key in ("b1", "b2", "b3")]
    (head,) = set(parent.heads)
    assert head.startswith(b"GET /s?x=1 HTTP/1.1\r\n")
    assert b"\r\nauthorization: Bearer x\r\n" in head.lower().replace(b"bearer x", b"Bearer x")
    assert b"accept-encoding" not in head.lower()  # middleware of the app's owner may compress


async def test_a_worker_alone():
    assert await Parent().list() == sessions(2, "a0")


async def test_a_worker_that_is_asked_by_another_one_lists_its_own():
    parent = Parent(b1=having(1))
    assert await list_sessions(request(handed_on=True), parent.server) == sessions(2, "a0")
    assert await list_sessions(request(**{ARRIVAL: None}), parent.server) == sessions(2, "a0")
    assert not parent.asked


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
    lines = await parent.list()
    watcher.cancel()
    assert len(lines) == 10_002
    assert longest < 0.5
    await asyncio.gather(*parent.tasks)
    await asyncio.sleep(0)
    assert not files() - before


@pytest.mark.parametrize(
    "words",
    [
        b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n[{"id": "half',
        b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n\xff\xfe nonsense",
        b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n[{"id": 1}]',
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n[]",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
async def test_one_that_dies_is_left_out_and_named(words):
    parent = Parent(b1=saying(words), b2=having(4))
    lines = await parent.list()
    assert unanswered(lines) == ["b1"]
    assert len(lines) == 2 + 1 + 4


async def test_one_that_is_silent_is_left_out_after_its_time(monkeypatch):
    monkeypatch.setattr("openenv.server.proxy.LISTING_S", 0.1)
    parent = Parent(b1=mute, b2=having(4))
    lines = await parent.list()
    assert unanswered(lines) == ["b1"]
    assert len(lines) == 2 + 1 + 4
    for task in parent.tasks:
        task.cancel()
    await asyncio.gather(*parent.tasks, return_exceptions=True)


async def test_one_that_has_ended_has_no_sessions():
    parent = Parent(b1=None, b2=having(4))  # this process knows of its end
    assert await parent.list() == sessions(2, "a0") + sessions(4, "b2")
    parent = Parent(b1=having(3, "b2"), b2=having(4))  # only the parent does, and has another one answer
    assert await parent.list() == sessions(2, "a0") + sessions(4, "b2")


async def test_without_room_for_files(monkeypatch):
    def full():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", full)
    assert unanswered(await Parent(b1=having(1)).list()) == ["b1"]


async def test_those_who_ask_at_one_time_share_an_answer():
    parent = Parent(b1=having(3))
    answers = await asyncio.gather(*(parent.list() for _ in range(20)))
    assert len(parent.asked) == 1
    assert all(len(lines) == 5 for lines in answers)
    await parent.list()
    assert len(parent.asked) == 2


async def test_an_asker_that_has_gone_keeps_nobody_busy():
    parent = Parent(b1=having(2000))
    asking = asyncio.create_task(parent.list())
    await asyncio.sleep(0)
    asking.cancel()
    assert parent.server.listing is not None
    assert len(await parent.server.listing) == 2002


async def test_they_are_written_as_json():
    parent = Parent(b1=having(1))
    asked = request()
    asked.scope["app"] = type("App", (), {"state": type("State", (), {"openenv": parent.server})})
    answer = await http.sessions(asked)
    assert json.loads(answer.body) == sessions(2, "a0") + sessions(1, "b1")
