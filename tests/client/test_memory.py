"""The transport without a socket keeps the promises of one with a socket."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from openenv.client import GenericEnvClient, memory
from openenv.errors import ConnectionLost, MessageTooLarge, OpenEnvError, ServerFull, SessionLost, UsageError

from ..asynchronous import Gate
from ..environments import AsyncPlain, Diary, Gated, InlinePlain, Plain
from .environments import CounterAction, CounterEnv, app_of, plain_app

ONE = CounterAction(by=1)


@pytest.fixture(autouse=True, params=[None, "openenv.v2.json", "openenv.v2.msgpack"])
def version(request, monkeypatch):
    """What client and server speak."""
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    return request.param


class Ear:
    """A receiver that remembers."""

    def __init__(self):
        self.frames: list[bytes] = []
        self.losses: list[OpenEnvError] = []

    def received(self, frame):
        self.frames.append(frame)

    def lost(self, error):
        self.losses.append(error)


@pytest.mark.parametrize("factory", [Plain, InlinePlain, AsyncPlain])
async def test_every_way_of_running_an_environment(factory, no_threads_left):
    async with GenericEnvClient(app=plain_app(factory)) as env:
        await env.reset()
        assert [(await env.step({})).reward for _ in range(3)] == [1.0, 2.0, 3.0]
        assert (await env.state())["step_count"] == 3


async def test_close_returns_when_the_environment_is_closed(no_threads_left):
    notes: list[tuple[str, int]] = []
    env = GenericEnvClient(app=plain_app(partial(Diary, notes)))
    await env.reset()
    await env.step({})
    await env.close()
    assert [method for method, _ in notes] == ["init", "reset", "step", "close"]
    assert len({thread for _, thread in notes}) == 1


async def test_close_does_not_wait_forever_for_an_environment(monkeypatch, no_threads_left):
    monkeypatch.setattr(memory, "CLOSE_TIMEOUT_S", 0.02)
    gate = Gate()
    app = plain_app(partial(Gated, closing=gate))
    env = GenericEnvClient(app=app)
    await env.reset()
    await env.close()
    assert app.state.openenv.active_sessions == 1
    gate.open()
    await app.state.openenv.aclose()
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize("version", [None], indirect=True)
async def test_the_server_ends_the_conversation():
    app = app_of()
    ear = Ear()
    transport = await memory.connect(app, lambda _: ear)
    (session,) = app.state.openenv.manager.sessions
    session.end(SessionLost("enough"))
    assert b"enough" in ear.frames[0]
    assert [str(error) for error in ear.losses] == ["the server closed the conversation with code 1000"]
    transport.send(b'{"type":"state"}')
    await transport.aclose()
    await transport.aclose()
    assert len(ear.frames) == len(ear.losses) == 1


async def test_the_client_ends_the_conversation():
    app = app_of()
    ear = Ear()
    transport = await memory.connect(app, lambda _: ear)
    await transport.aclose()
    (loss,) = ear.losses
    assert isinstance(loss, ConnectionLost)
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize("version", [None], indirect=True)
async def test_a_conversation_that_is_refused_at_once():
    app = app_of(sessions=1)
    async with CounterEnv(app=app):
        ear = Ear()
        transport = await memory.connect(app, lambda _: ear)
        assert b"CAPACITY_REACHED" in ear.frames[0]
        assert len(ear.losses) == 1
        transport.send(b'{"type":"state"}')
        assert len(ear.frames) == 1
        await transport.aclose()


async def test_calls_while_the_environment_is_made_are_kept():
    gate = Gate()
    app = plain_app(partial(Gated, making=gate))
    env = GenericEnvClient(app=app)
    calls = asyncio.gather(env.reset(), *(env.step({}) for _ in range(100)))
    await gate.reached()
    gate.open()
    _, *steps = await calls
    assert [step.reward for step in steps] == [float(n) for n in range(1, 101)]
    await env.close()


async def test_a_slot_is_waited_for_as_the_server_says():
    app = app_of(sessions=1, queue_timeout_s=5)
    async with CounterEnv(app=app) as first:
        second = CounterEnv(app=app)
        reset = asyncio.create_task(second.reset())
        await first.reset()
        assert not reset.done()
    await reset
    await second.close()


async def test_without_a_queue_a_full_server_refuses_at_once():
    app = app_of(sessions=1)
    async with CounterEnv(app=app) as first:
        await first.reset()
        with pytest.raises(ServerFull):
            await CounterEnv(app=app).reset()


def test_an_app_serves_one_event_loop_at_a_time():
    app = app_of()
    on_the_portal = CounterEnv(app=app).sync()
    on_the_portal.reset()

    async def use():
        async with CounterEnv(app=app) as env:
            return await env.reset()

    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use())
    on_the_portal.close()
    assert asyncio.run(use()).observation.total == 0


async def test_a_message_over_the_client_s_limit_is_not_sent():
    async with CounterEnv(app=app_of(), max_message_size_mb=0.001) as env:
        await env.reset()
        with pytest.raises(MessageTooLarge, match=r"1048.*max_message_size_mb"):
            await env.step(CounterAction(by=1, mood="x" * 2000))
        assert (await env.step(ONE)).reward == 1.0


async def test_a_message_over_the_server_s_limit(version):
    """The server of v1 says its limit when it is too late, that of v2 before."""
    async with CounterEnv(app=app_of(max_message_mb=0.001)) as env:
        await env.reset()
        with pytest.raises(MessageTooLarge, match=r"1048.*max_message_mb"):
            await env.step(CounterAction(by=1, mood="x" * 2000))
        if version is None:
            with pytest.raises(SessionLost):
                await env.step(ONE)
        else:
            assert (await env.step(ONE)).reward == 1.0
