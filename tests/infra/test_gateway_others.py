"""HAProxy and nginx with what is rendered for them, before real servers; and what else all three must carry."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from openenv.client import GenericEnvClient
from openenv.errors import ConnectionFailed, SessionLost, Unauthorized, UsageError
from openenv.providers.gateway import Backend, Topology
from openenv.providers.gateway.gateway import backends_of
from openenv.providers.gateway.programs import BALANCERS
from openenv.providers.process import Process, free_port

from ..chaos.proxy import Proxy
from ..cli.certificates import certificate
from ..server.wires import eventually
from .parts.placed import ONE, PlacedEnv
from .parts.servers import ROOT, deployed, kill, pid_of

pytestmark = pytest.mark.real

LIMIT_S = 60.0
# Of open files, which this machine need not have many of.
SESSIONS = 1000
PEER = ROOT / ".venv-peer" / "bin" / "python"


def needs(kind: str) -> str:
    """The program of a balancer; without it the test is skipped."""
    program = BALANCERS[kind].program()
    if program is None:
        pytest.skip(f"needs {kind}")
    return program


@asynccontextmanager
async def balanced(kind: str, folder: Path, backends: list[Backend], **options: Any) -> AsyncIterator[str]:
    """A balancer that runs with what was rendered for it. Gives its address."""
    program, balancer = needs(kind), BALANCERS[kind]
    topology = Topology(backends=tuple(backends), port=free_port(), max_sessions=SESSIONS, **options)
    for name, text in balancer.render(topology, folder).items():
        (folder / name).write_text(text, encoding="utf-8")
    balancer.check(program, topology, folder)
    command = {
        "envoy": ["-c", str(folder / "envoy.yaml"), "--disable-hot-restart", "--concurrency", "2", "-l", "warning"],
        "haproxy": ["-f", str(folder / "haproxy.cfg")],
        "nginx": [
            *("-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")),
            *("-g", f"daemon off; error_log stderr; pid {folder}/pid;"),
        ],
    }[kind]
    process = await asyncio.to_thread(Process, [program, *command], {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
    try:
        await asyncio.to_thread(eventually, lambda: listens(topology.port, topology.tls) or process.end is not None)
        assert process.end is None, process.tail
        yield f"{'https' if topology.tls else 'http'}://127.0.0.1:{topology.port}"
    finally:
        await asyncio.to_thread(process.stop)


def listens(port: int, tls: bool = False) -> bool:
    """Whether a server behind it answers; over TLS, whether there is somebody at all."""
    if tls:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), LIMIT_S):
            return True
        return False
    with closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_episodes_come_back_to_their_server_and_each_step_is_done_once(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with deployed(2) as servers, balanced(kind, tmp_path, backends_of(servers)) as url:
            with Proxy(urlsplit(url).port or 0, seed=3) as proxy:
                async with AsyncExitStack() as stack:
                    envs = [await stack.enter_async_context(PlacedEnv(proxy.url)) for _ in range(8)]
                    homes = [(await env.reset()).metadata["pid"] for env in envs]
                    assert sorted(homes.count(home) for home in set(homes)) == [4, 4]
                    for number in range(1, 13):
                        proxy.doom(300)
                        results = await asyncio.gather(*(env.step(ONE) for env in envs))
                        assert [result.reward for result in results] == [float(number)] * 8
                        assert [result.metadata["pid"] for result in results] == homes
                    assert proxy.accepted > 20

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_server_that_is_out_of_reach_for_a_while_loses_no_session(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with deployed(2) as servers:
            first, second = backends_of(servers)
            with Proxy(first.port) as road:
                away = Backend("away", "127.0.0.1", road.port)
                async with balanced(kind, tmp_path, [away, second]) as url, AsyncExitStack() as stack:
                    envs = [await stack.enter_async_context(PlacedEnv(url)) for _ in range(4)]
                    homes = [(await env.reset()).metadata["pid"] for env in envs]
                    road.refuse()
                    await asyncio.to_thread(road.cut_all, 1, 0.1)
                    steps = [asyncio.ensure_future(env.step(ONE)) for env in envs]
                    others = [
                        step for step, home in zip(steps, homes, strict=True) if home == pid_of(servers.servers[1])
                    ]
                    assert 0 < len(others) < len(envs)
                    await asyncio.wait(others)  # they notice nothing
                    async with PlacedEnv(url) as env:  # and a new one goes elsewhere
                        assert (await env.reset()).metadata["pid"] == pid_of(servers.servers[1])
                    road.refuse(False)
                    results = await asyncio.gather(*steps)
                    assert [result.metadata["pid"] for result in results] == homes

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_killed_server_ends_its_sessions_alone_and_keys_go_through(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with deployed(2, key="one-key-for-everything", resume_window_s=1.5) as servers:
            async with balanced(kind, tmp_path, backends_of(servers)) as url, AsyncExitStack() as stack:
                with pytest.raises(Unauthorized):
                    async with PlacedEnv(url, api_key="another-key-altogether") as env:
                        await env.reset()
                envs = [await stack.enter_async_context(PlacedEnv(url, api_key=servers.api_key)) for _ in range(4)]
                homes = [(await env.reset()).metadata["pid"] for env in envs]
                victim = pid_of(servers.servers[0])
                await kill(servers.servers[0])
                results = await asyncio.gather(*(env.step(ONE) for env in envs), return_exceptions=True)
                assert [isinstance(result, SessionLost) for result in results] == [home == victim for home in homes]
                assert {(await env.reset()).metadata["pid"] for env in envs} == {pid_of(servers.servers[1])}

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_tls_towards_clients(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = certificate(tmp_path)
    combined = tmp_path / "both.pem"
    combined.write_text(paths.chain.read_text() + paths.key.read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(paths.chain))

    async def test() -> None:
        async with deployed(1) as servers:
            tls = {"tls_certificate": str(combined), "tls_key": str(combined)}
            async with balanced(kind, tmp_path, backends_of(servers), **tls) as url, PlacedEnv(url) as env:
                await env.reset()
                assert (await env.step(ONE)).reward == 1.0

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


@pytest.mark.parametrize("kind", ["envoy", "haproxy", "nginx"])
def test_the_first_protocol_and_sessions_over_http(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with deployed(2) as servers, balanced(kind, tmp_path, backends_of(servers)) as url:
            async with connect(url.replace("http", "ws", 1) + "/ws", proxy=None) as socket:
                assert socket.response is not None
                assert socket.response.headers["x-openenv-route"] in {each.name for each in servers.servers}
                await socket.send('{"type":"reset","data":{}}')
                assert '"total":0' in str(await socket.recv())
            await asyncio.to_thread(speak_http, url)

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def speak_http(url: str) -> None:
    port, seen = urlsplit(url).port or 0, set()
    for _ in range(4):
        status, fields = ask(port, "POST", "/sessions")
        assert status == 200
        route = fields["x-openenv-route"]
        cookie = "; ".join(value.partition(";")[0] for value in fields["set-cookie"].split("\n"))
        name = cookie.partition("openenv_session=")[2].partition(";")[0]
        seen.add(route)
        for path, more in (
            ("/reset", {"Cookie": cookie}),
            ("/reset", {"X-Session-ID": name, "X-OpenEnv-Route": route}),
            (f"/reset?route={route}", {"X-Session-ID": name}),
        ):
            for _ in range(3):
                status, fields = ask(port, "POST", path, **more)
                assert (status, fields["x-openenv-route"]) == (200, route)
    assert len(seen) == 2


def ask(port: int, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and header fields of an answer; those that come twice with a line each."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        fields: dict[str, str] = {}
        for name, value in answer.getheaders():
            fields[name.lower()] = f"{fields[name.lower()]}\n{value}" if name.lower() in fields else value
        return answer.status, fields


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_file_that_the_program_refuses_is_told(kind: str, tmp_path: Path) -> None:
    program = needs(kind)
    topology = Topology(tls_certificate=str(tmp_path / "none.pem"), tls_key=str(tmp_path / "none.pem"))
    for name, text in BALANCERS[kind].render(topology, tmp_path).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"none\.pem"):
        BALANCERS[kind].check(program, topology, tmp_path)


@pytest.mark.skipif(not PEER.exists(), reason="needs the released package: make .venv-peer/.installed")
@pytest.mark.parametrize("kind", ["envoy", "haproxy", "nginx"])
def test_a_released_server_behind_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "peer_env.py").write_text(_PEER, encoding="utf-8")
    port = free_port()
    command = [str(PEER), "-m", "uvicorn", "peer_env:app", "--port", str(port), "--log-level", "error"]

    async def test() -> None:
        async with balanced(kind, tmp_path, [Backend("peer", "127.0.0.1", port)]) as url:
            async with GenericEnvClient(url) as env:
                await env.reset()
                assert (await env.step({"by": 2})).observation["total"] == 2
            server.stop()
            began = time.monotonic()
            with pytest.raises(ConnectionFailed):
                async with GenericEnvClient(url) as env:
                    await env.reset()
            assert time.monotonic() - began < 15

    server = Process(command, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}, tmp_path)
    try:
        eventually(lambda: listens(port) or server.end is not None, IMPORT_S)
        assert server.end is None, server.tail
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    finally:
        server.stop()


# The released package imports for long where its modules are not compiled yet.
IMPORT_S = 120.0
_PEER = """
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Add(Action):
    by: int = 1

class Total(Observation):
    total: int = 0

class Adding(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.total = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.total = 0
        return Total()

    def step(self, action, timeout_s=None, **kwargs):
        self.total += action.by
        return Total(total=self.total)

    @property
    def state(self):
        return State()

app = create_app(Adding, Add, Total, env_name="adding", max_concurrent_envs=8)
"""
