"""The one thread behind all synchronous clients."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from functools import partial

import pytest

from openenv.client import GenericEnvClient
from openenv.client.portal import Portal, portal, run_on
from openenv.errors import UsageError

from ..asynchronous import PATIENCE_S, Gate
from ..environments import Gated
from .environments import CounterEnv, app_of, plain_app


async def answer(value=1):
    await asyncio.sleep(0)
    return value


async def fail():
    await asyncio.sleep(0)
    raise LookupError("nothing there")


async def here():
    return threading.get_ident()


def test_results_and_errors_come_back():
    loop = portal().loop
    assert run_on(loop, answer("x")) == "x"
    with pytest.raises(LookupError, match="nothing there"):
        run_on(loop, fail())
    assert run_on(loop, here()) != threading.get_ident()


def test_all_clients_of_a_process_share_one_thread():
    app = app_of()
    clients = [CounterEnv(app=app).sync() for _ in range(5)]
    for client in clients:
        client.reset()
    assert [thread.name for thread in threading.enumerate()].count("openenv-portal") == 1
    assert portal() is portal()
    for client in clients:
        client.close()


async def test_a_coroutine_is_not_run_on_the_loop_that_would_wait_for_it():
    call = answer()
    with pytest.raises(UsageError, match="await"):
        run_on(asyncio.get_running_loop(), call)
    assert call.cr_frame is None  # closed, so that nobody is told that it was never awaited


async def test_another_loop_may_wait_for_the_portal():
    assert run_on(portal().loop, answer("x")) == "x"


def test_closing_ends_the_thread_and_the_loop(no_threads_left):
    own = Portal()
    assert run_on(own.loop, answer(3)) == 3
    own.close()
    assert own.loop.is_closed()


def test_what_its_clients_have_left_running_does_not_outlive_it(no_threads_left):
    """As the heartbeat of a connection that nobody closed: it would complain to the terminal when it is collected."""
    own = Portal()
    ends = []

    async def beat():
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def begin():
        ends.append(asyncio.ensure_future(beat()))
        await asyncio.sleep(0)

    run_on(own.loop, begin())
    own.close()
    assert ends[0].cancelled()
    assert ends[1:] == ["cancelled"]


def test_without_uvloop_the_loop_is_asyncio_s(monkeypatch, no_threads_left):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    own = Portal()
    assert type(own.loop).__module__.startswith("asyncio")
    assert run_on(own.loop, answer(3)) == 3
    own.close()


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, whatever the test runner makes of it; a second one would end the tests."""
    pressed = []

    def once(*_):
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_ctrl_c_cancels_the_call(interruptible):
    """The interrupted call's reply is dropped, and the next call gets its own."""
    gate = Gate()
    env = GenericEnvClient(app=plain_app(partial(Gated, stepping=gate)), message_timeout_s=PATIENCE_S)
    env.reset()

    interrupted = threading.Event()

    def press():
        assert gate._reached.wait(PATIENCE_S)
        # A signal that comes just before the main thread waits does not wake it, so that it is pressed again.
        while not interrupted.wait(0.1):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        env.step({})
    interrupted.set()
    thread.join()
    gate.open()
    assert env.step({}).reward == 2.0
    env.close()


def test_a_portal_closes_after_foreign_code_has_stopped_its_loop():
    stopped = Portal()
    run_on(stopped.loop, answer())
    stopped.stop()
    stopped._thread.join(PATIENCE_S)
    stopped.close()
    assert stopped.loop.is_closed()
