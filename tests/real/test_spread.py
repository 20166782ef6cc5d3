"""`openenv serve --workers N`: sessions lie evenly on the workers, from the first one on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack

import pytest

from ..cli.process import LIMIT_S, serving
from ..mini_client import Failed, MiniClient, Msgpack
from ..ports import held_port
from ..server.workers.whereabouts import Caller, eventually, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

# Put before the environment: a worker waits until the test lets it go on.
GATE = """
import os
import time
from pathlib import Path

if os.environ.get("OPENENV_TARGET"):
    Path(f"started-{os.getpid()}").touch()
    first = not Path("first").exists()
    Path("first").touch()
    while not first and not Path("go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return whereabouts(tmp_path)


def spread(counts, workers):
    """Whether sessions lie evenly on so many workers."""
    return len(counts) == workers and max(counts.values()) - min(counts.values()) <= 1


class Starting:
    """A server of three workers, of which the first becomes ready and the others wait."""

    def __init__(self, folder, port):
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._log = folder / "log"
        command = [sys.executable, "-m", "openenv", "serve", "whereabouts:Place", "--workers", "3"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen([*command, "--port", str(port)], stderr=log, start_new_session=True)
        eventually(lambda: len(self.workers) == 3)

    @property
    def workers(self):
        return [int(path.name.removeprefix("started-")) for path in self._folder.glob("started-*")]

    @property
    def up(self):
        assert self._process.poll() is None, self._log.read_text()
        return "3 workers" in self._log.read_text()

    def let_go(self):
        (self._folder / "go").touch()
        return eventually(lambda: self.up)

    def end(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def starting(tmp_path, target):
    module = tmp_path / "whereabouts.py"
    module.write_text(GATE + module.read_text())
    with held_port() as port:
        server = Starting(tmp_path, port)
        yield server
        server.end()


def test_sessions_that_come_while_workers_start_are_spread(starting):
    with ExitStack() as calls:
        callers = [calls.enter_context(eventually_connected(starting.url)) for _ in range(30)]
        assert not starting.up
        starting.let_go()
        assert spread(Counter(caller.pid() for caller in callers), 3)


def test_a_worker_that_is_killed_while_others_start_does_not_end_the_server(starting):
    victims = sorted(starting.workers)[:2]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    starting.let_go()
    with ExitStack() as calls:
        counts = Counter(calls.enter_context(Caller(starting.url)).pid() for _ in range(6))
    assert spread(counts, 3)
    assert not counts.keys() & set(victims)


def test_it_is_ready_when_all_workers_are(starting):
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(lambda: urllib.request.urlopen(f"{starting.url}/ready", timeout=LIMIT_S).read())
        assert not starting.up
        assert not asked.done()
        starting.let_go()
        assert json.loads(asked.result()) == {"status": "ready"}


def eventually_connected(url):
    def connected():
        try:
            return Caller(url)
        except ConnectionRefusedError:
            return None

    return eventually(connected)


@pytest.mark.parametrize("workers", [2, 3])
def test_of_more_clients_than_slots_those_served_are_spread(target, workers):
    with serving(target, "--workers", str(workers), "--max-sessions", "20") as server:
        for _ in range(2):
            with ExitStack() as calls:
                callers = [calls.enter_context(Caller(server.url)) for _ in range(60)]
                replies = [caller.hear() for caller in callers]
                pids = [it["data"]["observation"]["pid"] for it in replies if it["type"] == "observation"]
                assert len(pids) == 20
                assert spread(Counter(pids), workers)
            eventually(lambda: server.get("/sessions") == [])


def test_the_same_over_protocol_v2(target):
    async def place(stack, url):
        client = await stack.enter_async_context(MiniClient(url, Msgpack()))
        try:
            session = (await client.call("open"))["session"]
        except Failed as refused:
            return refused.name
        return (await client.call("reset", session=session, seq=1, kwargs={}))["observation"]["pid"]

    async def storm(url):
        async with AsyncExitStack() as stack:
            return Counter(await asyncio.gather(*(place(stack, url) for _ in range(60))))

    with serving(target, "--workers", "3", "--max-sessions", "20") as server:
        counts = asyncio.run(storm(server.url.replace("http", "ws") + "/ws"))
        assert counts.pop("ServerFull") == 40
        assert spread(counts, 3)


def test_connections_that_want_no_session_do_not_keep_others_out(target):
    with serving(target, "--workers", "2", "--max-sessions", "1") as server, ExitStack() as calls:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(20):
            calls.enter_context(socket.create_connection((host, int(port))))
            calls.enter_context(Caller(server.url, subprotocol="openenv.v2.json", reset=False))
        assert calls.enter_context(Caller(server.url)).pid() in workers_of(server.pid)
