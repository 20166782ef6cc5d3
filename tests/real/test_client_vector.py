"""The vector client on real sockets: our own server, a connection that is cut, and servers of protocol v1."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial

import pytest
from websockets.asyncio.server import serve

from openenv.client import GenericEnvClient, VectorEnvClient, websocket
from openenv.client import vector as vector_module
from openenv.errors import ConnectionFailed, ResetRequired, SessionLost, StepTimeout
from openenv.protocol.codecs import SUBPROTOCOLS
from openenv.server.transports.uvicorn import FastPath

from ..asynchronous import Gate, until
from ..cli.process import serving
from ..client.environments import CounterAction, CounterEnv, ThreadCounter, app_of, plain_app
from ..environments import Gated
from ..server.wires import served
from ..server.workers.whereabouts import whereabouts

pytestmark = pytest.mark.real

ONE = CounterAction(by=1)
SERVERS = {
    "fast": {"loop": "uvloop", "http": "httptools", "ws": FastPath},
    "stock": {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"},
}


@pytest.fixture(params=[(server, subprotocol) for server in SERVERS for subprotocol in SUBPROTOCOLS], ids="-".join)
def at(request, monkeypatch):
    """Serves an app, and gives its address; its clients offer one subprotocol."""
    server, subprotocol = request.param
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", (subprotocol,))
    return partial(served, **SERVERS[server])


def rewards(results):
    return [result.reward for result in results]


def errors(results):
    return [result.error and type(result.error) for result in results]


class Relay:
    """A road to a server that can be cut.

    Attributes:
        url: Its own address.
        connections: How many it has had.
    """

    def __init__(self, port):
        self._port = port
        self._writers = []
        self.connections = 0
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def to(cls, address):
        relay = cls(int(address.rpartition(":")[2]))
        server = await asyncio.start_server(relay._connected, "127.0.0.1", 0)
        relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield relay
        finally:
            relay.cut()
            server.close()

    def cut(self):
        """Ends all connections, without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader, writer):
        self.connections += 1
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, behind_writer]
        await asyncio.gather(self._pass(reader, behind_writer), self._pass(behind_reader, writer))

    @staticmethod
    async def _pass(reader, writer):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        except ConnectionError:
            return
        finally:
            writer.close()


@pytest.mark.parametrize("connections", [1, 2])
async def test_episodes(at, connections):
    app = app_of(ThreadCounter, sessions=40)
    with at(app) as address:
        async with VectorEnvClient(CounterEnv, address, 40, connections) as envs:
            await envs.reset(seeds=range(1, 41), start=5)
            for number in range(1, 6):
                results = await envs.step([CounterAction(by=by) for by in range(40)])
                assert [result.observation.total for result in results] == [5 + number * by for by in range(40)]
            await envs.send([ONE] * 40)
            finished = []
            while len(finished) < 40:
                finished += await envs.recv(min_ready=min(7, 40 - len(finished)))
            assert sorted(done.env_id for done in finished) == list(range(40))
            assert rewards([done.result for done in finished]) == [6.0] * 40
            assert app.state.openenv.active_sessions == 40
        await until(lambda: app.state.openenv.active_sessions == 0)


async def test_connections_share_the_environments_evenly(at):
    app = app_of(sessions=7)
    with at(app) as address:
        async with Relay.to(address) as relay, VectorEnvClient(CounterEnv, relay.url, 7, connections=3) as envs:
            await envs.reset()
            assert relay.connections == 3
            connections = envs._state.carrier._connections
            assert sorted(len(each._current._sessions) for each in connections) == [2, 2, 3]


async def test_a_connection_that_is_cut_costs_nothing(at):
    app = app_of(sessions=3)
    with at(app) as address:
        async with Relay.to(address) as relay, VectorEnvClient(CounterEnv, relay.url, 3, connections=1) as envs:
            await envs.reset()
            await envs.step([ONE] * 3)
            relay.cut()
            assert rewards(await envs.step([ONE] * 3)) == [2.0] * 3
            assert app.state.openenv.active_sessions == 3
            assert relay.connections == 2


async def test_without_a_window_a_connection_that_is_cut_costs_its_sessions_and_no_more(at):
    app = app_of(sessions=6, resume_window_s=0)
    with at(app) as address:
        async with Relay.to(address) as relay, VectorEnvClient(CounterEnv, relay.url, 3, connections=1) as envs:
            await envs.reset()
            await envs.step([ONE] * 3)
            relay.cut()
            assert errors(await envs.step([ONE] * 3)) == [SessionLost] * 3
            assert errors(await envs.step([ONE] * 3)) == [ResetRequired] * 3
            assert errors(await envs.reset()) == [None] * 3
            assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3
            await until(lambda: app.state.openenv.active_sessions == 3)
            assert relay.connections == 2


@pytest.mark.slow
async def test_a_server_that_has_gone_is_told_as_values():
    with served(app_of(resume_window_s=0.2), **SERVERS["fast"]) as address:
        envs = VectorEnvClient(CounterEnv, address, 3, connect_timeout_s=20.0)
        await envs.reset()
        await asyncio.sleep(0)
    assert errors(await envs.step([ONE] * 3)) == [SessionLost] * 3
    results = await envs.reset()
    assert all(isinstance(result.error, ConnectionFailed) for result in results)
    assert errors(await envs.step([ONE] * 3)) == [ResetRequired] * 3
    await envs.close()


@pytest.mark.slow
async def test_one_that_hangs_holds_nobody_else_up(at):
    gate = Gate()
    gates = iter([None, gate, None])
    with at(plain_app(lambda: Gated(stepping=next(gates)), sessions=3)) as address:
        async with VectorEnvClient(GenericEnvClient, address, 3) as envs:
            await envs.reset()
            envs._state._timeout_s = 3.0
            results = await envs.step([{}] * 3)
            envs._state._timeout_s = 60.0
            assert sorted(map(str, errors(results))) == sorted(map(str, [None, None, StepTimeout]))
            hanging = errors(results).index(StepTimeout)
            results = await envs.step([{}] * 3)
            assert [number for number, result in enumerate(results) if result.error] == [hanging]
            assert isinstance(results[hanging].error, SessionLost)
            assert {result.reward for result in results} == {2.0, None}
            gate.open()


def test_the_sync_facade(at):
    app = app_of(ThreadCounter, sessions=4)
    with at(app) as address, VectorEnvClient(CounterEnv, address, 4).sync() as envs:
        envs.reset()
        for number in range(1, 4):
            assert rewards(envs.step([ONE] * 4)) == [float(number)] * 4


# Protocol v1.


async def first_version(connection):
    """A server of protocol v1 that nobody here wrote; its reward counts."""
    reward = 0
    async for frame in connection:
        if '"close"' in frame:
            break
        reward += 1
        observed = {"observation": {}, "reward": reward, "done": reward % 3 == 0}
        await connection.send(json.dumps({"type": "observation", "data": observed}))


async def test_a_server_of_v1_gets_a_connection_for_each_environment(caplog, monkeypatch):
    monkeypatch.setattr(vector_module, "_mentioned", set())
    peers = []

    async def handler(connection):
        peers.append(connection)
        await first_version(connection)

    async with serve(handler, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with VectorEnvClient(GenericEnvClient, url, 4, autoreset_mode="next_step") as envs:
            assert rewards(await envs.reset()) == [1] * 4
            assert rewards(await envs.step([{}] * 4)) == [2] * 4
            results = await envs.step([{}] * 4)
            assert [result.done for result in results] == [True] * 4
            assert rewards(await envs.step([{}] * 4)) == [4] * 4
            assert len(peers) == 4
            await peers[2].close()
            await until(lambda: envs._state.carrier._connections[0])
            results = await envs.step([{}] * 4)
            assert errors(results).count(SessionLost) == 1
            lost = errors(results).index(SessionLost)
            results = await envs.step([{}] * 4)
            assert rewards(results) == [1 if number == lost else 6 for number in range(4)]
            assert len(peers) == 5
    assert sum("does not speak protocol v2" in record.getMessage() for record in caplog.records) == 1


# Processes.


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="several workers")
async def test_a_worker_that_dies_takes_its_sessions_and_the_others_play_on(tmp_path):
    target = whereabouts(tmp_path, "inline")
    with serving(target, "--workers", "2", cwd=tmp_path) as server:
        async with VectorEnvClient(GenericEnvClient, server.url, 8, connections=2) as envs:
            pids = [result.observation["pid"] for result in await envs.reset()]
            assert len(set(pids)) == 2
            assert {pids.count(pid) for pid in pids} == {4}
            os.kill(pids[0], signal.SIGKILL)
            await until(lambda: envs._state.slots[0].news)
            results = await envs.step([{}] * 8)
            assert errors(results) == [SessionLost if pid == pids[0] else None for pid in pids]
            over = [number for number, pid in enumerate(pids) if pid == pids[0]]
            assert errors(await envs.reset(env_ids=over)) == [None] * 4
            results = await envs.step([{}] * 8)
            assert rewards(results) == [1.0] * 8
            assert pids[0] not in {result.observation["pid"] for result in results}
