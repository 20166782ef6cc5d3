"""Synchronous clients on a machine that gives their threads a turn when it likes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openenv.client.portal import Portal, portal, run_on

from ..asynchronous import Gate
from ..client.environments import CounterEnv, ThreadCounter, app_of

pytestmark = pytest.mark.real


async def answer(value):
    return value


class Late(Portal):
    """Its thread gets its first turn when the machine is less busy."""

    def _run(self):
        threading.Event().wait(0.05)
        super()._run()


def test_a_portal_takes_calls_as_soon_as_it_is_there(no_threads_left):
    own = Late()
    try:
        assert run_on(own.loop, answer(3)) == 3
    finally:
        own.close()


async def test_a_synchronous_call_that_is_on_its_way_and_an_awaited_one_share_one_connection():
    """The portal is busy when both are made, so neither has a connection yet."""
    app = app_of(ThreadCounter)
    env = CounterEnv(app=app)
    gate = Gate()

    async def hold():
        gate.wait()

    busy = asyncio.create_task(asyncio.to_thread(run_on, portal().loop, hold()))
    await gate.reached()
    synchronous = asyncio.create_task(asyncio.to_thread(env.sync().reset))
    await asyncio.sleep(0.05)
    awaited = asyncio.ensure_future(env.reset())
    await asyncio.sleep(0.05)
    gate.open()
    await busy
    assert (await synchronous).observation.total == 0
    assert (await awaited).observation.total == 0
    assert app.state.openenv.active_sessions == 1
    await env.close()
