"""A real Envoy before real servers."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from picows import WSListener, WSTransport, WSUpgradeRequest, WSUpgradeResponse, ws_connect

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import (
    ConnectionFailed,
    LaunchFailed,
    MissingExtra,
    OpenEnvError,
    ProviderFailed,
    SessionLost,
    Unauthorized,
    UsageError,
)
from openenv.providers import Gateway
from openenv.providers.gateway import Backend
from openenv.providers.gateway import programs as launch_envoy
from openenv.providers.gateway.gateway import backends_of

from ..chaos.proxy import Proxy
from ..cli.certificates import certificate
from ..cli.process import serving
from ..docs.page import Page
from ..docs.playing import play_page
from ..providers.test_process import lives
from ..server.wires import eventually
from .parts.placed import ONE, PlacedEnv
from .parts.servers import ROOT, deployed, end, kill, pid_of

try:
    launch_envoy.envoy_program()
except MissingExtra:
    pytest.skip("needs Envoy: pip install 'openenv[gateway]'", allow_module_level=True)

pytestmark = pytest.mark.real

# For what takes milliseconds on a machine that has time.
LIMIT_S = 60.0
# Within which a change among the servers must be noticed.
SOON_S = 5.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test that may take longer than one of `async def`."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test

    asyncio.run(bounded())


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float = SOON_S) -> float:
    """Waits until something holds. Returns after how many seconds it did."""
    began = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not await holds():  # noqa: ASYNC110 - of another process, which tells nobody
            await asyncio.sleep(0.02)
    return time.monotonic() - began


class Line(WSListener):
    """One connection, and who answered it."""

    def __init__(self, response: WSUpgradeResponse):
        self.route = response.headers.get("x-openenv-route", "")


@asynccontextmanager
async def crowd(url: str, count: int, trusted: str | None = None) -> AsyncIterator[Counter[str]]:
    """So many connections at once, kept until the end. Gives how many each server has."""
    address = url.replace("http", "ws", 1) + "/ws"
    context = None if trusted is None else ssl.create_default_context(cafile=trusted)
    made: list[tuple[WSTransport, Line]] = []

    def line(_: WSUpgradeRequest, response: WSUpgradeResponse) -> Line:
        return Line(response)

    try:
        connecting = [
            ws_connect(line, address, ssl_context=context, websocket_handshake_timeout=LIMIT_S) for _ in range(count)
        ]
        made += await asyncio.gather(*connecting)
        yield Counter(line.route for _, line in made)
    finally:
        for transport, _ in made:
            transport.disconnect()


async def place_of(url: str, **options: Any) -> int:
    """Which server takes a new session now; 0 if none does."""
    with suppress(ConnectionFailed):
        async with PlacedEnv(url, **options) as env:
            return int((await env.reset()).metadata["pid"])
    return 0


def answer_to(url: str, method: str = "GET", **headers: str) -> tuple[int, Any, Any]:
    """What an HTTP request is answered: status, JSON and header fields."""
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


# Balance.


def test_sessions_are_spread_evenly_and_a_further_server_gets_its_part() -> None:
    async def test() -> None:
        async with deployed(3, max_sessions=2000) as servers, Gateway(servers) as gateway:
            async with crowd(gateway.url, 600) as counts:
                assert sum(counts.values()) == 600
                assert set(counts) == {server.name for server in servers.servers}
                assert max(counts.values()) <= 1.1 * min(counts.values())
                await servers.scale(4)
                new = servers.servers[-1]

                async def takes_load() -> bool:
                    return await place_of(gateway.url) == pid_of(new)

                await until(takes_load)
                async with crowd(gateway.url, 200) as more:
                    assert more[new.name] > 70  # and not only its fourth part: it has nothing yet

    run(test())


def test_few_sessions_are_spread_too() -> None:
    async def test() -> None:
        # Each of Envoy's threads has turns of its own, and who gets which connection is the kernel's matter.
        async with deployed(2) as servers, Gateway(servers, threads=1) as gateway, crowd(gateway.url, 8) as counts:
            assert set(counts.values()) <= {3, 4, 5}

    run(test())


# Coming back.


def test_sessions_that_are_cut_come_back_to_their_server_and_each_step_is_done_once() -> None:
    async def test() -> None:
        async with deployed(3) as servers, Gateway(servers) as gateway, AsyncExitStack() as stack:
            proxy = stack.enter_context(Proxy(urlsplit(gateway.url).port or 0, seed=5))
            envs = [await stack.enter_async_context(PlacedEnv(proxy.url)) for _ in range(12)]
            homes = [(await env.reset()).metadata["pid"] for env in envs]
            assert len(set(homes)) == 3
            for number in range(1, 31):
                if number % 3 == 0:
                    proxy.doom(300)
                results = await asyncio.gather(*(env.step(ONE) for env in envs))
                assert [result.reward for result in results] == [float(number)] * 12
                assert [result.metadata["pid"] for result in results] == homes
            assert proxy.accepted > 50
            states = await asyncio.gather(*(env.state() for env in envs))
            assert {state.step_count for state in states} == {30}

    run(test())


def test_the_sessions_of_a_vector_come_back_too() -> None:
    async def test() -> None:
        async with deployed(3) as servers, Gateway(servers) as gateway:
            with Proxy(urlsplit(gateway.url).port or 0, seed=6) as proxy:
                async with VectorEnvClient(PlacedEnv, proxy.url, num_envs=12, connections=4) as envs:
                    await envs.reset()
                    for number in range(1, 16):
                        proxy.doom(1000)
                        results = await envs.step([ONE] * 12)
                        assert [(row.error, row.reward) for row in results] == [(None, float(number))] * 12
                assert proxy.accepted > 20

    run(test())


def test_a_server_that_is_out_of_reach_for_a_while_loses_no_session() -> None:
    async def test() -> None:
        async with deployed(2) as servers:
            first, second = backends_of(servers)
            with Proxy(first.port, seed=7) as road:
                away = Backend("away", "127.0.0.1", road.port)
                async with Gateway([away, second]) as gateway, AsyncExitStack() as stack:
                    envs = [await stack.enter_async_context(PlacedEnv(gateway.url)) for _ in range(6)]
                    homes = [(await env.reset()).metadata["pid"] for env in envs]
                    assert len(set(homes)) == 2
                    road.refuse()
                    await asyncio.to_thread(road.cut_all, 1, 0.1)
                    steps = [asyncio.ensure_future(env.step(ONE)) for env in envs]
                    on_second = [
                        step for step, home in zip(steps, homes, strict=True) if home == pid_of(servers.servers[1])
                    ]
                    await asyncio.wait(on_second)  # they notice nothing

                    async def elsewhere() -> bool:
                        async with crowd(gateway.url, 4) as counts:
                            return set(counts) == {second.name}

                    await until(elsewhere)
                    road.refuse(False)
                    results = await asyncio.gather(*steps)
                    assert [result.reward for result in results] == [1.0] * 6
                    assert [result.metadata["pid"] for result in results] == homes

    run(test())


def test_a_server_that_is_out_of_reach_is_told_from_one_that_is_not_known_any_more() -> None:
    async def test() -> None:
        async with deployed(2, resume_window_s=30) as servers:
            first, second = backends_of(servers)
            with Proxy(first.port) as road:
                backends = [Backend("going", "127.0.0.1", road.port), second]
                async with Gateway(backends[:1]) as gateway, PlacedEnv(gateway.url) as env:
                    await env.reset()
                    await gateway.update(backends[1:])
                    assert (await env.step(ONE)).reward == 1.0  # its connection is still there
                    await asyncio.to_thread(road.cut_all, 1, 0.1)
                    began = time.monotonic()
                    with pytest.raises(SessionLost):
                        await env.step(ONE)
                    assert time.monotonic() - began < SOON_S  # and not the 30 s
                    assert (await env.reset()).metadata["pid"] == pid_of(servers.servers[1])

    run(test())


# Servers that end.


def test_when_a_server_is_killed_only_its_sessions_end_and_new_ones_go_elsewhere() -> None:
    async def test() -> None:
        async with deployed(3) as servers, Gateway(servers) as gateway, AsyncExitStack() as stack:
            envs = [await stack.enter_async_context(PlacedEnv(gateway.url)) for _ in range(15)]
            homes = [(await env.reset()).metadata["pid"] for env in envs]
            victim = servers.servers[1]
            lost_pid = pid_of(victim)
            await kill(victim)
            began = time.monotonic()
            results = await asyncio.gather(*(env.step(ONE) for env in envs), return_exceptions=True)
            for home, result in zip(homes, results, strict=True):
                if home == lost_pid:
                    assert isinstance(result, SessionLost), result
                else:
                    assert not isinstance(result, BaseException), result
                    assert result.metadata["pid"] == home
            assert homes.count(lost_pid) >= 3
            assert await place_of(gateway.url) not in {0, lost_pid}
            assert time.monotonic() - began < SOON_S
            async with crowd(gateway.url, 60) as counts:
                assert victim.name not in counts
            again = await asyncio.gather(*(env.reset() for env in envs))  # of those that were lost, elsewhere
            assert lost_pid not in {result.metadata["pid"] for result in again}

    run(test())


def test_with_a_list_that_stays_a_killed_server_costs_its_sessions_the_resume_window_and_nobody_else_anything() -> (
    None
):
    async def test() -> None:
        async with deployed(2, resume_window_s=2) as servers, AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(Gateway(backends_of(servers)))
            envs = [await stack.enter_async_context(PlacedEnv(gateway.url)) for _ in range(6)]
            homes = [(await env.reset()).metadata["pid"] for env in envs]
            victim = pid_of(servers.servers[0])
            await kill(servers.servers[0])
            began = time.monotonic()
            results = await asyncio.gather(*(env.step(ONE) for env in envs), return_exceptions=True)
            assert [isinstance(result, SessionLost) for result in results] == [home == victim for home in homes]
            assert time.monotonic() - began < 2 * SOON_S
            assert [await place_of(gateway.url) for _ in range(4)] == [pid_of(servers.servers[1])] * 4

    run(test())


def test_a_server_that_drains_keeps_its_sessions_and_gets_no_more() -> None:
    async def test() -> None:
        async with deployed(2, grace_s=40) as servers, Gateway(backends_of(servers)) as gateway:
            async with AsyncExitStack() as stack:
                envs = [await stack.enter_async_context(PlacedEnv(gateway.url)) for _ in range(4)]
                homes = [(await env.reset()).metadata["pid"] for env in envs]
                draining = pid_of(servers.servers[0])
                assert 0 < homes.count(draining) < 4
                end(servers.servers[0])

                async def closed() -> bool:  # it hears of the signal within a tick
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", backends_of(servers)[0].port)
                        writer.close()
                        return False
                    return True

                await until(closed)
                for _ in range(40):  # of new sessions none fails, before health checks have noticed anything
                    assert await place_of(gateway.url) == pid_of(servers.servers[1])
                results = await asyncio.gather(*(env.step(ONE) for env in envs))
                assert [result.metadata["pid"] for result in results] == homes
            process = servers.servers[0].handle.process

            async def ended() -> bool:
                return process.end is not None

            await until(ended, LIMIT_S)
            assert process.end == "ended with exit code 0"

    run(test())


def test_a_backend_that_accepts_nothing_new_gets_no_session_and_those_that_are_cut_return_to_it() -> None:
    async def test() -> None:
        async with deployed(2) as servers, Gateway(backends_of(servers)) as gateway, AsyncExitStack() as stack:
            proxy = stack.enter_context(Proxy(urlsplit(gateway.url).port or 0, seed=7))
            envs = [await stack.enter_async_context(PlacedEnv(proxy.url)) for _ in range(6)]
            homes = [(await env.reset()).metadata["pid"] for env in envs]
            assert len(set(homes)) == 2
            draining, other = backends_of(servers)
            await gateway.update([replace(draining, accepting=False), other])

            async def all_go_elsewhere() -> bool:
                async with crowd(gateway.url, 20) as counts:
                    return counts == {other.name: 20}

            await until(all_go_elsewhere)
            await asyncio.to_thread(proxy.cut_all)
            results = await asyncio.gather(*(env.step(ONE) for env in envs))
            assert [result.metadata["pid"] for result in results] == homes
            await gateway.update([draining, other])

            async def comes_back() -> bool:
                async with crowd(gateway.url, 20) as counts:
                    return counts[draining.name] > 0

            await until(comes_back)

    run(test())


def test_a_server_that_hangs_gets_no_more_sessions() -> None:
    async def test() -> None:
        async with deployed(2) as servers:
            options = {"health_timeout_s": 0.5, "health_interval_s": 0.5, "connect_timeout_s": 1.0}
            async with Gateway(backends_of(servers), **options) as gateway:
                hung = pid_of(servers.servers[0])
                os.kill(hung, signal.SIGSTOP)
                try:

                    async def healthy() -> bool:
                        return "healthy" in health_of(gateway, servers.servers[1].name) and "failed" in health_of(
                            gateway, servers.servers[0].name
                        )

                    await until(healthy)
                    assert {await place_of(gateway.url) for _ in range(4)} == {pid_of(servers.servers[1])}
                finally:
                    os.kill(hung, signal.SIGCONT)

                async def back() -> bool:
                    async with crowd(gateway.url, 4) as counts:
                        return len(counts) == 2

                await until(back)

    run(test())


def health_of(gateway: Gateway, name: str) -> str:
    """What Envoy thinks of a backend."""
    place = next(backend.place for backend in gateway.topology.backends if backend.name == name)
    with urllib.request.urlopen(f"{gateway.admin_url}/clusters", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(line.rpartition("::")[2] for line in lines if f"{place}::health_flags" in line)


def test_without_a_server_clients_are_told_so() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            with pytest.raises(ConnectionFailed, match="no server at the moment.*503") as told:
                async with PlacedEnv(gateway.url) as env:
                    await env.reset()
            assert told.value.retryable
            async with deployed(1) as servers:
                await gateway.follow(servers)

                async def there() -> bool:
                    return await place_of(gateway.url) == pid_of(servers.servers[0])

                await until(there)

    run(test())


# What passes through.


def test_keys_go_through_to_the_servers() -> None:
    async def test() -> None:
        async with deployed(2, key="one-key-for-everything") as servers, Gateway(servers) as gateway:
            assert gateway.api_key == "one-key-for-everything"
            for key in ("another-key-altogether", None):
                with pytest.raises(Unauthorized):
                    async with PlacedEnv(gateway.url, api_key=key) as env:
                        await env.reset()
            assert await place_of(gateway.url, api_key=gateway.api_key) != 0

    run(test())


def test_tls_before_the_gateway_and_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = certificate(tmp_path)
    chain, key = str(paths.chain), str(paths.key)
    monkeypatch.setenv("SSL_CERT_FILE", chain)

    async def test(secured: str, plain: str) -> None:
        port, other = urlsplit(secured).port or 0, urlsplit(plain).port or 0
        backends = [
            Backend("secured", "127.0.0.1", port, tls=True, certified="localhost"),
            Backend("plain", "127.0.0.1", other),
        ]
        tls = {"tls_certificate": chain, "tls_key": key, "backend_ca": chain}
        async with Gateway(backends, **tls) as gateway:
            assert gateway.url.startswith("https://127.0.0.1:")
            async with crowd(gateway.url, 8, trusted=chain) as counts:
                assert set(counts) == {"secured", "plain"}
            async with GenericEnvClient(gateway.url) as env:
                await env.reset()
                assert (await env.step({"message": "hello"})).reward == 0.5
            with pytest.raises(ConnectionFailed):
                async with GenericEnvClient(gateway.url.replace("https", "http")) as env:
                    await env.reset()
            # A server that shows a certificate of another name is none of ours.
            await gateway.update([Backend("secured", "127.0.0.1", port, tls=True, certified="env.example.org")])
            with pytest.raises(ConnectionFailed, match="503"):
                async with GenericEnvClient(gateway.url) as env:
                    await env.reset()

            # One that has an address and no name shows a certificate of that address.
            await gateway.update([Backend("secured", "127.0.0.1", port, tls=True)])

            async def taken() -> bool:  # by the thread of Envoy that is asked: each takes a change in its own time
                try:
                    async with GenericEnvClient(gateway.url) as env:
                        await env.reset()
                except ConnectionFailed:
                    return False
                return True

            await until(taken)
            async with crowd(gateway.url, 1, trusted=chain) as counts:
                assert set(counts) == {"secured"}

    with serving("echo", "--ssl-certfile", chain, "--ssl-keyfile", key) as secured, serving("echo") as plain:
        run(test(secured.url, plain.url))


def test_sessions_over_http_find_their_server_by_cookie_by_header_and_by_url() -> None:
    async def test() -> None:
        async with deployed(3) as servers, Gateway(servers) as gateway:
            await asyncio.to_thread(speak_http, gateway.url)

    run(test())


def speak_http(url: str) -> None:
    cookies: set[str] = set()
    for _ in range(6):
        status, opened, headers = answer_to(f"{url}/sessions", "POST")
        assert status == 200
        route = headers["x-openenv-route"]
        cookie = "; ".join(value.partition(";")[0] for value in headers.get_all("set-cookie"))
        assert f"openenv_route={route}" in cookie
        cookies.add(route)
        session = {"X-Session-ID": opened["session_id"]}
        pids = set()
        for again, more in (
            ("", {"Cookie": cookie}),
            ("", {**session, "X-OpenEnv-Route": route}),
            (f"?route={route}", session),
        ):
            for _ in range(4):
                status, answer, headers = answer_to(f"{url}/reset{again}", "POST", **more)
                assert (status, headers["x-openenv-route"]) == (200, route), answer
                pids.add(answer["metadata"]["pid"])
        assert len(pids) == 1
        status, _, _ = answer_to(
            f"{url}/sessions/{opened['session_id']}", "DELETE", **session, **{"X-OpenEnv-Route": route}
        )
        assert status == 200
    assert len(cookies) == 3


def test_wrong_keys_are_counted_for_the_address_of_the_gateway_and_right_ones_pass() -> None:
    def ask(port: int, source: str, key: str = "wrong") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(source, 0), timeout=LIMIT_S)
        with closing(connection):
            connection.request("GET", "/schema", headers={"Authorization": f"Bearer {key}"})
            return connection.getresponse().status

    async def test() -> None:
        async with deployed(1, max_key_failures=2, key="one-key-for-everything") as servers:
            async with Gateway(servers) as gateway:
                port = gateway.topology.port
                statuses = [await asyncio.to_thread(ask, port, "127.0.0.2") for _ in range(3)]
                assert statuses == [401, 401, 429]
                # X-Forwarded-For changes nothing: a client could write it, and evade the limit.
                assert await asyncio.to_thread(ask, port, "127.0.0.3") == 429
                assert await asyncio.to_thread(ask, port, "127.0.0.3", "one-key-for-everything") == 200

    run(test())


# How it starts, changes and ends.


def test_backends_are_found_by_name_and_a_wrong_one_changes_nothing() -> None:
    async def test() -> None:
        async with deployed(2) as servers:
            ports = [backend.port for backend in backends_of(servers)]
            async with Gateway([f"one=localhost:{ports[0]}"]) as gateway:
                assert gateway.topology.backends[0].host == "127.0.0.1"
                for wrong in (["nowhere.invalid:80"], [f"localhost:{ports[0]}", "a b"], ["a=h:1", "a=h:2"]):
                    with pytest.raises((UsageError, ProviderFailed)):
                        await gateway.update(wrong)
                    assert await place_of(gateway.url) == pid_of(servers.servers[0])
                await gateway.update([f"two=localhost:{ports[1]}"])

                async def moved() -> bool:
                    return await place_of(gateway.url) == pid_of(servers.servers[1])

                await until(moved)

    run(test())


def test_an_address_may_be_written_in_any_form_and_who_does_not_answer_is_known() -> None:
    async def test() -> None:
        async with deployed(1) as servers, Gateway() as gateway:
            await gateway.update(["dead=[0:0::1]:1", *backends_of(servers)])

            async def known() -> bool:
                return [backend.name for backend in await gateway.silent()] == ["dead"]

            await until(known)

    run(test())


def test_what_cannot_be_is_refused_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def test() -> None:
        for options, words in (
            ({"tls_certificate": "/nowhere/a.pem", "tls_key": "/nowhere/b.pem"}, "refuses.*nowhere"),
            ({"program": "/nowhere/envoy"}, "/nowhere/envoy"),
            ({"program": "/bin/false"}, "refuses"),
        ):
            gateway = Gateway(["127.0.0.1:1"], **options)
            with pytest.raises((UsageError, LaunchFailed), match=words):
                await gateway.start()
            assert gateway.end == "was stopped"
        async with Gateway() as first:
            with pytest.raises(UsageError, match="another port"):
                await Gateway(port=first.topology.port).start()
            with pytest.raises(UsageError, match="once"):
                await first.start()
        with pytest.raises(ProviderFailed, match="does not run"):
            _ = first.url

    run(test())
    assert list(tmp_path.iterdir()) == []
    assert envoys() == []


def test_a_name_that_is_no_list_is_refused() -> None:
    with pytest.raises(UsageError, match="list"):
        Gateway("127.0.0.1:8000")
    with pytest.raises(UsageError):
        Gateway(["a b"])
    with pytest.raises(UsageError, match="IP address"):
        Gateway(host="localhost")


def test_it_may_be_stopped_twice_during_the_start_and_by_cancelling() -> None:
    async def test() -> None:
        gateway = Gateway(["127.0.0.1:1"])
        start = asyncio.ensure_future(gateway.start())
        await asyncio.sleep(0)
        await gateway.stop()
        await gateway.stop()
        with pytest.raises(OpenEnvError):
            await start
        other = Gateway(["127.0.0.1:1"])
        for turns in (1, 20):
            other = Gateway(["127.0.0.1:1"])
            start = asyncio.ensure_future(other.start())
            for _ in range(turns):
                await asyncio.sleep(0.005)
            start.cancel()
            with suppress(asyncio.CancelledError):
                await start
            await other.stop()
            assert other.end == "was stopped"

    run(test())
    assert envoys() == []


def test_an_envoy_that_dies_is_told() -> None:
    async def test() -> None:
        async with Gateway(["127.0.0.1:1"]) as gateway:
            (pid,) = envoys()
            os.kill(pid, signal.SIGKILL)

            async def gone() -> bool:
                return gateway.end is not None

            await until(gone)
            assert gateway.end == "was killed by SIGKILL"
            with pytest.raises(OpenEnvError, match="SIGKILL"):
                await gateway.update(["127.0.0.1:2"])

    run(test())


def test_files_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def test() -> None:
        async with Gateway(["127.0.0.1:1"]) as gateway:
            shutil.rmtree(tmp_path)
            with pytest.raises(ProviderFailed, match="cannot be written"):
                await gateway.update(["127.0.0.1:2"])

    run(test())


def test_it_ends_with_the_program_that_has_it() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from openenv.providers import Gateway\n"
        "async def main():\n"
        "    async with Gateway(['127.0.0.1:1']) as gateway:\n"
        "        print(gateway._envoy._run.process.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    eventually(lambda: not lives(int(done.stdout)))


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    play_page(Page("docs/gateway.md"), tmp_path, frozenset({"envoy"}))


def test_without_an_event_loop() -> None:
    with Gateway(["127.0.0.1:1"]) as gateway:
        assert gateway.url.startswith("http://127.0.0.1:")
    assert envoys() == []


def test_without_envoy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match=r"openenv\[gateway\]"):
        launch_envoy.envoy_program()


def envoys() -> list[int]:
    """Processes of Envoy that this one has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes()
            if state != "Z" and int(parent) == os.getpid() and b"--admin-address-path" in command:
                found.append(int(folder.name))
    return found
