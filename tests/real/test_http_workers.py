"""HTTP sessions of a server of several workers: whichever worker a request comes to, its session answers."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from ..cli.certificates import certificate
from ..cli.process import Serving, serving
from ..cli.projects import write_module
from ..server.workers.whereabouts import eventually, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

# Those of a dead worker must be told within this time.
TOLD_S = 20.0
KEY, OTHER = "a-key-of-control-for-one", "a-key-of-control-for-two"


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        with serving(whereabouts(folder), "--workers", "4") as server:
            yield server


@pytest.fixture
def server(shared_server: Serving) -> Iterator[Serving]:
    """A server whose workers all live on after the test; it has no sessions."""
    yield shared_server
    with httpx.Client(base_url=shared_server.url, trust_env=False) as client:
        for line in client.get("/sessions").json():
            client.delete(f"/sessions/{line['id']}").raise_for_status()


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server of one test, which may kill its workers."""
    monkeypatch.chdir(tmp_path)
    with serving(whereabouts(tmp_path), "--workers", "4") as server:
        yield server


def open_sessions(url: str, count: int, **options: Any) -> list[str]:
    """Each over a connection of its own, so that all workers get some.

    None ends before the last is there: a worker that has not noticed yet seems to have more to do than another.
    """
    names = []
    with ExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(httpx.Client(base_url=url, trust_env=False, **options))
            names.append(client.post("/sessions").raise_for_status().json()["session_id"])
    return names


def pid_of(client: httpx.Client, name: str) -> int:
    answer = client.post("/step", json={"action": {}}, headers={"X-Session-ID": name})
    return answer.raise_for_status().json()["observation"]["pid"]


def test_one_kept_alive_connection_serves_sessions_of_every_worker(server):
    names = open_sessions(server.url, 20)
    with httpx.Client(base_url=server.url, trust_env=False, limits=httpx.Limits(max_connections=1)) as client:
        places = [pid_of(client, name) for name in names]
        assert set(Counter(places).values()) == {5}
        for _ in range(3):
            assert [pid_of(client, name) for name in names] == places
        listed = {line["id"]: line for line in client.get("/sessions").json()}
        assert {listed[name]["steps"] for name in names} == {4}
        for name in names:
            assert client.post("/reset", headers={"X-Session-ID": name}).status_code == 200
            assert client.get("/state", headers={"X-Session-ID": name}).json() == {
                "step_count": 0,
                "episode_id": None,
            }
            assert client.request("DELETE", f"/sessions/{name}").status_code == 200
            assert client.request("DELETE", f"/sessions/{name}").status_code == 200
        assert client.get("/sessions").json() == []
        # What the connection was used for besides has not confused it.
        assert client.get("/health").json() == {"status": "healthy"}


def test_over_tls_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=paths.chain)
    files = ["--ssl-certfile", str(paths.chain), "--ssl-keyfile", str(paths.key)]
    with serving(whereabouts(tmp_path), "--workers", "3", *files) as server:
        names = open_sessions(server.url, 6, verify=trusting)
        with httpx.Client(base_url=server.url, trust_env=False, verify=trusting) as client:
            places = [pid_of(client, name) for name in names]
            assert set(Counter(places).values()) == {2}
            assert [pid_of(client, name) for name in names] == places
            assert client.post("/step", json={"action": 5}, headers={"X-Session-ID": names[0]}).status_code == 422


def test_answers_of_another_worker_are_its_own_to_the_letter(server):
    names = open_sessions(server.url, 4)
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        seen = set()
        for name in names:
            answer = client.post("/step", json={"action": {"jump": 1}}, headers={"X-Session-ID": name})
            assert (answer.status_code, answer.json()["error"]) == (422, "InvalidAction")
            assert answer.headers.get_list("content-length") == [str(len(answer.content))]
            seen.add((tuple(sorted(set(answer.headers))), len(answer.headers.get_list("date"))))
        assert len(seen) == 1


def test_bodies_of_any_size_reach_their_worker(server):
    names = open_sessions(server.url, 4)
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for name in names:
            body = {"action": {"metadata": {"text": "x" * 3_000_000}}}
            answer = client.post("/step", json=body, headers={"X-Session-ID": name})
            assert answer.status_code == 200
            body = {"action": {"metadata": {"text": "x" * 20_000_000}}}
            answer = client.post("/step", json=body, headers={"X-Session-ID": name})
            assert (answer.status_code, answer.json()["error"]) == (413, "MessageTooLarge")


def test_a_socket_attached_to_a_session_reaches_its_worker(server):
    names = open_sessions(server.url, 6)
    address = urlsplit(server.url).netloc
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for name in names:
            with connect(f"ws://{address}/ws?session_id={name}", proxy=None) as socket:
                socket.send('{"type": "step", "data": {}}')
                assert str(pid_of(client, name)) in socket.recv()
            assert pid_of(client, name)
        dead = f"ws://{address}/ws?session_id=ffffff.nobody"
        with connect(dead, proxy=None) as socket:
            assert "UnknownSession" in socket.recv()


def test_a_name_of_a_worker_that_is_not_there_is_unknown(server):
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for name in ("ffffffff.nobody", "0.nobody", "-1.x", "zz.x", ".x", "x.", f"{'f' * 40}.x"):
            answer = client.get("/state", headers={"X-Session-ID": name})
            assert (answer.status_code, answer.json()["error"]) == (404, "UnknownSession")


def test_nobody_but_a_worker_can_say_that_a_request_was_handed_on(server):
    """Nor who it comes from: what introduces a handed-on request is no HTTP from anybody else."""
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port

    async def say(words: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(words)
        answer = await reader.read(200)
        writer.close()
        return answer

    request = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    assert b" 200 " in asyncio.run(say(request))
    assert b" 400 " in asyncio.run(say(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + request))


def test_keys_and_addresses_are_known_where_a_request_is_handed_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = ["--api-key", f"control:{KEY},control:{OTHER}"]
    with serving(whereabouts(tmp_path), "--workers", "3", *keys) as server:
        names = open_sessions(server.url, 6, headers={"Authorization": f"Bearer {KEY}"})
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            for name in names:
                mine = {"X-Session-ID": name, "Authorization": f"Bearer {KEY}"}
                assert client.post("/step", json={"action": {}}, headers=mine).status_code == 200
                other = {**mine, "Authorization": f"Bearer {OTHER}"}
                answer = client.post("/step", json={"action": {}}, headers=other)
                assert (answer.status_code, answer.json()["error"]) == (401, "Unauthorized")
                # A page elsewhere is one elsewhere on every worker.
                stranger = {**mine, "Origin": "http://evil.example"}
                assert client.post("/step", json={"action": {}}, headers=stranger).status_code == 403
                own = {**mine, "Origin": server.url}
                assert client.post("/step", json={"action": {}}, headers=own).status_code == 200


def test_a_dead_worker_is_told_of_at_once_and_its_sessions_are_unknown(own_server, tmp_path):
    names = open_sessions(own_server.url, 8)
    gate = tmp_path / "gate"
    with (
        httpx.Client(base_url=own_server.url, trust_env=False) as client,
        httpx.Client(base_url=own_server.url, trust_env=False, timeout=60) as busy,
        ThreadPoolExecutor() as threads,
    ):
        places = {name: pid_of(client, name) for name in names}
        # Not the worker that this connection came to: its death would end the connection itself.
        first = client.post("/sessions").json()["session_id"]
        own = {pid_of(client, first), pid_of(busy, busy.post("/sessions").json()["session_id"])}
        name, victim = next((name, place) for name, place in places.items() if place not in own)
        step = threads.submit(
            busy.post, "/step", json={"action": {"gate": str(gate)}}, headers={"X-Session-ID": name}
        )
        eventually(Path(f"{gate}.reached").exists)
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        answer = step.result()
        assert time.monotonic() - began < TOLD_S
        facts = answer.json()
        assert (answer.status_code, facts["error"], facts["blame"]) == (404, "SessionLost", "infrastructure")
        eventually(lambda: victim not in workers_of(own_server.pid) and len(workers_of(own_server.pid)) == 4)
        for name, place in places.items():
            answer = client.post("/step", json={"action": {}}, headers={"X-Session-ID": name})
            if place == victim:
                assert answer.status_code == 404
                assert answer.json()["error"] in {"UnknownSession", "SessionLost"}
                assert answer.json()["blame"] == "infrastructure"
            else:
                assert answer.json()["observation"]["pid"] == place


def test_a_worker_that_hangs_costs_a_request_no_more_than_its_own_time(server):
    names = open_sessions(server.url, 8)
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        places = {name: pid_of(client, name) for name in names}
        own = pid_of(client, client.post("/sessions").json()["session_id"])
        name, victim = next((name, place) for name, place in places.items() if place != own)
        os.kill(victim, signal.SIGSTOP)
        try:
            began = time.monotonic()
            body = {"action": {}, "timeout_s": 0.5}
            answer = client.post("/step", json=body, headers={"X-Session-ID": name})
            assert time.monotonic() - began < TOLD_S
            assert (answer.status_code, answer.json()["error"]) == (504, "StepTimeout")
        finally:
            os.kill(victim, signal.SIGCONT)
        assert pid_of(client, name) == victim


def test_a_client_that_leaves_takes_the_inner_connection_along(server, tmp_path):
    names = open_sessions(server.url, 8)
    gate = tmp_path / "gate"
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        places = {name: pid_of(client, name) for name in names}
        with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)) as leaving:
            leaving.request("POST", "/sessions")
            own = pid_of(client, json.load(leaving.getresponse())["session_id"])
            name = next(name for name, place in places.items() if place != own)
            before = sockets_of(places[name])
            body = json.dumps({"action": {"gate": str(gate)}})
            leaving.request("POST", "/step", body, {"X-Session-ID": name, "Content-Type": "application/json"})
            eventually(Path(f"{gate}.reached").exists)
        eventually(lambda: sockets_of(places[name]) <= before)
        gate.touch()
        # The call that it had asked for was not lost on the session.
        assert pid_of(client, name) == places[name]
        steps = {line["id"]: line["steps"] for line in client.get("/sessions").json()}
        assert steps[name] == 3


def sockets_of(pid: int) -> int:
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


MIDDLEWARE = """
from whereabouts import Errand, Place, Whereabouts
from openenv.server import create_app


class Before:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


app = create_app(Place, Errand, Whereabouts, max_concurrent_envs=20)
app.add_middleware(Before)
"""


def test_a_session_is_reached_through_what_the_apps_owner_put_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whereabouts(tmp_path)
    write_module(tmp_path / "guarded_app.py", MIDDLEWARE)
    with serving("guarded_app:app", "--workers", "3") as server:
        names = open_sessions(server.url, 6)
        address = urlsplit(server.url).netloc
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            for name in names:
                place = pid_of(client, name)
                with connect(f"ws://{address}/ws?session_id={name}", proxy=None) as socket:
                    socket.send('{"type": "step", "data": {}}')
                    assert str(place) in socket.recv()


COUNTER = """
from openenv import Action, Environment, Observation, State


class Counter(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self):
        super().__init__()
        self.count = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.count = 0
        return Observation()

    def step(self, action, timeout_s=None, **kwargs):
        self.count += 1
        return Observation(reward=self.count)

    @property
    def state(self):
        return State(step_count=self.count)
"""


async def test_many_clients_at_once_lose_and_double_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path / "counting.py", COUNTER)
    with serving("counting:Counter", "--workers", "3") as server:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:

            async def play() -> list[float]:
                name = (await client.post("/sessions")).json()["session_id"]
                rewards = []
                for _ in range(20):
                    headers = {"X-Session-ID": name}
                    answer = await client.post("/step", json={"action": {}}, headers=headers)
                    rewards.append(answer.raise_for_status().json()["reward"])
                return rewards

            assert await asyncio.gather(*(play() for _ in range(16))) == [list(range(1, 21))] * 16
