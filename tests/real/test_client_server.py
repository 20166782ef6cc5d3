"""The client against our own server, on real sockets: the fast path, and a stock ASGI server."""

from __future__ import annotations

import asyncio
import gc
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import pytest

from openenv.client import GenericEnvClient, websocket
from openenv.errors import (
    ConnectionFailed,
    Draining,
    FactoryFailed,
    InvalidAction,
    MessageTooLarge,
    ServerFull,
    SessionLost,
    StepFailed,
    StepTimeout,
)
from openenv.protocol.codecs import SUBPROTOCOLS
from openenv.server.transports.uvicorn import FastPath

from ..asynchronous import PATIENCE_S, Gate, until
from ..client.environments import CounterAction, CounterEnv, CounterState, ThreadCounter, app_of, plain_app
from ..environments import Gated, Plain
from ..server.wires import served

pytestmark = pytest.mark.real

ONE = CounterAction(by=1)
SHORT_S = 0.2
SERVERS = {
    "fast": {"loop": "uvloop", "http": "httptools", "ws": FastPath},
    "stock": {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"},
}


@pytest.fixture(params=[(server, subprotocol) for server in SERVERS for subprotocol in SUBPROTOCOLS], ids="-".join)
def at(request, monkeypatch):
    """Serves an app, and gives its address; its clients offer one subprotocol."""
    server, subprotocol = request.param
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", (subprotocol,))

    @contextmanager
    def serve(app):
        with served(app, **SERVERS[server]) as address:
            yield address

    return serve


@asynccontextmanager
async def beside(server):
    """A server that is stopped while the event loop of its clients goes on."""
    address = server.__enter__()
    try:
        yield address
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


class Unmakeable(Plain):
    def __init__(self):
        raise OSError("no display")


async def test_an_episode(at):
    app = app_of(ThreadCounter)
    with at(app) as address:
        async with CounterEnv(address) as env:
            assert (await env.reset(start=5, episode_id="e", seed=3)).metadata == {"seed": 3}
            result = await env.step(CounterAction(by=2, mood="done"))
            assert (result.observation.total, result.reward, result.done) == (7, 1.0, True)
            assert await env.state() == CounterState(episode_id="e", step_count=1, total=7)
            assert app.state.openenv.active_sessions == 1
        await until(lambda: app.state.openenv.active_sessions == 0)


async def test_the_newest_version_is_spoken(at):
    with at(app_of()) as address:
        async with CounterEnv(address) as env:
            await env.reset()
            assert env._held.link.hello["protocol"] == 2


async def test_errors_arrive_as_their_classes(at):
    with at(app_of()) as address:
        async with GenericEnvClient(address) as env:
            await env.reset()
            with pytest.raises(InvalidAction) as caught:
                await env.step({"by": "much"})
            assert caught.value.data["errors"][0]["loc"] == ["by"]
            with pytest.raises(StepFailed, match="a bad mood"):
                await env.step({"by": 1, "mood": "bad"})
            with pytest.raises(StepFailed, match="nan"):
                await env.step({"by": 1, "mood": "lost"})
            assert (await env.step({"by": 1})).reward == 2.0


async def test_an_environment_that_cannot_be_made(at):
    with at(plain_app(Unmakeable)) as address:
        env = GenericEnvClient(address)
        for _ in range(2):
            with pytest.raises(FactoryFailed, match="no display") as caught:
                await env.reset()
            assert caught.value.factory_name == "Unmakeable"
        await env.close()


async def test_a_full_server(at):
    app = app_of(sessions=1)
    with at(app) as address:
        async with CounterEnv(address) as first:
            await first.reset()
            second = CounterEnv(address)
            with pytest.raises(ServerFull) as caught:
                await second.reset()
            assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)
        await until(lambda: app.state.openenv.active_sessions == 0)
        assert (await second.reset()).observation.total == 0
        await second.close()


async def test_a_client_that_was_refused_before_it_asked(at):
    app = app_of(sessions=1)
    with at(app) as address:
        async with CounterEnv(address), CounterEnv(address) as second:
            await until(lambda: second._held.error)
            with pytest.raises(ServerFull):
                await second.step(ONE)


async def test_a_step_on_a_thread_that_does_not_end(at):
    """It is answered in time, and since nobody can stop it, its session is over."""
    gate = Gate()
    with at(plain_app(partial(Gated, stepping=gate), sessions=2)) as address:
        env = GenericEnvClient(address, message_timeout_s=PATIENCE_S)
        await env.reset()
        env._message_timeout_s = 0.1
        with pytest.raises(StepTimeout):
            await env.step({})
        env._message_timeout_s = PATIENCE_S
        with pytest.raises(SessionLost, match="thread"):
            await env.step({})
        gate.open()
        await env.reset()
        assert (await env.step({})).reward == 1.0
        await env.close()


async def test_messages_over_the_limits_of_either_side(at):
    app = app_of(max_message_mb=0.01)
    with at(app) as address:
        env = CounterEnv(address, max_message_size_mb=0.005)
        await env.reset()
        with pytest.raises(MessageTooLarge, match="max_message_size_mb"):
            await env.step(CounterAction(by=1, mood="x" * 6_000))
        assert (await env.step(ONE)).reward == 1.0
        await env.close()
        env = CounterEnv(address)
        await env.reset()
        with pytest.raises(MessageTooLarge, match="max_message_mb"):
            await env.step(CounterAction(by=1, mood="x" * 12_000))
        assert (await env.step(ONE)).reward == 1.0
        await env.close()


async def test_a_server_that_stops_takes_the_session_along(at):
    async with beside(at(app_of(resume_window_s=SHORT_S))) as address:
        env = CounterEnv(address)
        await env.reset()
        await env.step(ONE)
    await until(lambda: env._held.error)
    with pytest.raises(SessionLost):
        await env.step(ONE)
    with pytest.raises(ConnectionFailed):
        await env.reset()
    await env.close()


async def open_when_nobody_is_let_in(gate, address):
    """Opens the gate as soon as the server has begun to stop."""
    host, _, port = address.partition(":")
    with suppress(ConnectionRefusedError):
        while True:
            socket.create_connection((host, int(port))).close()
            await asyncio.sleep(0.01)
    gate.open()


async def test_a_server_that_stops_during_a_step(at):
    gate = Gate()
    async with beside(at(plain_app(partial(Gated, stepping=gate), resume_window_s=SHORT_S))) as address:
        env = GenericEnvClient(address)
        await env.reset()
        step = asyncio.create_task(env.step({}))
        await gate.reached()
        opening = asyncio.create_task(open_when_nobody_is_let_in(gate, address))
    await opening
    with pytest.raises((ConnectionFailed, Draining)):
        await step
    with pytest.raises(SessionLost):
        await env.step({})
    await env.close()


async def test_many_clients_at_the_same_time(at):
    app = app_of(ThreadCounter, sessions=100)

    async def play(address, number):
        async with CounterEnv(address) as env:
            await env.reset(start=number)
            return [(await env.step(ONE)).observation.total for _ in range(5)]

    with at(app) as address:
        totals = await asyncio.gather(*(play(address, 10 * number) for number in range(100)))
        await until(lambda: app.state.openenv.active_sessions == 0)
    assert totals == [[10 * number + step for step in range(1, 6)] for number in range(100)]


def test_synchronous_clients_of_many_threads(at):
    app = app_of(ThreadCounter, sessions=16)

    def play(number):
        env = CounterEnv(address)
        env.reset(start=number)
        totals = [env.step(ONE).observation.total for _ in range(10)]
        env.close()
        return totals

    with at(app) as address, ThreadPoolExecutor(16) as threads:
        totals = list(threads.map(play, range(0, 1600, 100)))
    assert totals == [list(range(first + 1, first + 11)) for first in range(0, 1600, 100)]


async def test_one_client_from_several_event_loops(at):
    with at(app_of()) as address:
        env = CounterEnv(address)

        async def elsewhere():
            return (await env.step(ONE)).reward

        await env.reset()
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == 1.0
        assert await asyncio.to_thread(env.sync().step, ONE)
        assert (await env.step(ONE)).reward == 3.0
        await env.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", ["close", "reset"])
def test_an_event_loop_that_was_closed_with_the_connection_open(at, then):
    async def begin(env):
        await env.reset()

    async def go_on(env):
        if then == "close":
            await env.close()
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0
        await env.close()

    with at(app_of()) as address:
        env = CounterEnv(address)
        asyncio.run(begin(env))
        asyncio.run(go_on(env))
    del env
    gc.collect()


def test_a_synchronous_block(at):
    with at(app_of()) as address, CounterEnv(f"ws://{address}/") as env:
        env.reset()
        assert env.step(ONE).reward == 1.0


async def test_a_synchronous_block_that_could_not_be_entered_leaves_the_client_asynchronous(at):
    env = CounterEnv("http://127.0.0.1:1")
    with pytest.raises(ConnectionFailed), env:
        pass
    with at(app_of()) as address:
        env = CounterEnv(address)
        await env.reset()
        await env.close()
