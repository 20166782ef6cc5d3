from __future__ import annotations

import asyncio
import os
import threading
import weakref
from functools import partial

import pytest

from openenv.environment import Environment
from openenv.runtime.profile import profile_of
from openenv.types import Action

from ..asynchronous import PATIENCE_S, Gate, forgotten, outcome, until
from ..environments import Diary, Gated, MixedPlain, Plain
from .executors import thread_executor

pytestmark = pytest.mark.usefixtures("no_threads_left")


async def opened(factory=Plain):
    executor = thread_executor()
    environment, error = await outcome(partial(executor.start, factory))
    assert error is None
    return executor, environment


class TestOneThread:
    async def test_constructor_calls_and_close_share_one_thread(self):
        notes: list[tuple[str, int]] = []
        executor, _ = await opened(lambda: Diary(notes))
        profile = profile_of(Diary)
        await outcome(partial(executor.submit, profile.reset, {"seed": 1}))
        await outcome(partial(executor.submit, profile.step, Action()))
        await outcome(partial(executor.submit, profile.state, None))
        await outcome(executor.close)
        assert [method for method, _ in notes] == ["init", "reset", "step", "state", "close"]
        threads = {thread for _, thread in notes}
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    async def test_two_environments_share_none(self):
        executors = [(await opened())[0] for _ in range(2)]
        idents = {(await outcome(partial(e.submit, lambda *_: threading.get_ident(), None)))[0] for e in executors}
        assert len(idents) == 2
        for executor in executors:
            await outcome(executor.close)

    async def test_an_asynchronous_method_among_synchronous_ones_stays_there(self):
        class MixedDiary(Diary):
            async def step_async(self, action, **kwargs):
                await asyncio.sleep(0)
                return self.step(action)

        notes: list[tuple[str, int]] = []
        executor, _ = await opened(lambda: MixedDiary(notes))
        profile = profile_of(MixedDiary)
        await outcome(partial(executor.submit, profile.reset, {}))
        for expected in (1.0, 2.0):
            observation, error = await outcome(partial(executor.submit, profile.step, Action()))
            assert (observation.reward, error) == (expected, None)
        await outcome(executor.close)
        assert len({thread for _, thread in notes}) == 1

    async def test_asynchronous_calls_share_one_loop(self):
        async def which(environment, argument):
            return asyncio.get_running_loop()

        executor, _ = await opened(MixedPlain)
        first, _ = await outcome(partial(executor.submit, which, None))
        second, _ = await outcome(partial(executor.submit, which, None))
        assert first is second is not asyncio.get_running_loop()
        await outcome(executor.close)
        assert first.is_closed()

    async def test_the_thread_has_a_name(self):
        executor = thread_executor("openenv-abc")
        await outcome(partial(executor.start, Plain))
        name, _ = await outcome(partial(executor.submit, lambda *_: threading.current_thread().name, None))
        assert name == "openenv-abc"
        await outcome(executor.close)

    @pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a matter of Linux")
    async def test_the_scheduling_of_other_threads_stays_as_it_was(self):
        before = os.sched_getscheduler(0)
        executor, _ = await opened()
        await outcome(executor.close)
        assert os.sched_getscheduler(0) == before

    async def test_it_does_not_keep_the_process_alive(self):
        executor, _ = await opened()
        daemon, _ = await outcome(partial(executor.submit, lambda *_: threading.current_thread().daemon, None))
        assert daemon
        await outcome(executor.close)


class TestNobodyWaits:
    async def test_a_step_that_blocks_delays_neither_the_loop_nor_another(self):
        gate = Gate()
        slow, _ = await opened(lambda: Gated(stepping=gate))
        quick, _ = await opened()
        step = profile_of(Plain).step
        blocked = asyncio.ensure_future(outcome(partial(slow.submit, step, Action())))
        await gate.reached()
        for expected in (1.0, 2.0, 3.0):
            observation, _ = await outcome(partial(quick.submit, step, Action()))
            assert observation.reward == expected
        assert not blocked.done()
        gate.open()
        observation, error = await blocked
        assert (observation.reward, error) == (1.0, None)
        for executor in (slow, quick):
            await outcome(executor.close)

    async def test_a_running_call_cannot_be_cancelled_and_answers(self):
        gate = Gate()
        executor, _ = await opened(lambda: Gated(stepping=gate))
        step = asyncio.ensure_future(outcome(partial(executor.submit, profile_of(Gated).step, Action())))
        await gate.reached()
        executor.cancel()
        gate.open()
        observation, error = await step
        assert (observation.reward, error) == (1.0, None)
        await outcome(executor.close)


class TestTheEnd:
    async def test_an_environment_without_a_close_is_destroyed_on_its_thread(self):
        ends: list[tuple[int, int]] = []

        class Silent(Plain):
            close = Environment.close

            def __init__(self):
                super().__init__()
                self.thread = threading.get_ident()

            def __del__(self):
                ends.append((self.thread, threading.get_ident()))

        executor = thread_executor()
        await outcome(lambda done: executor.start(Silent, lambda environment, error: done(None, error)))
        assert await outcome(executor.close) == (None, None)
        await until(lambda: bool(ends))
        assert ends[0][0] == ends[0][1]

    async def test_an_asynchronous_close_runs_to_its_end_on_the_same_thread(self):
        threads = []

        class Closing(Plain):
            def __init__(self):
                super().__init__()
                threads.append(threading.get_ident())

            async def close(self):
                await asyncio.sleep(0)
                threads.append(threading.get_ident())

        executor = thread_executor()
        await outcome(partial(executor.start, Closing))
        assert await outcome(executor.close) == (None, None)
        assert len(threads) == 2
        assert len(set(threads)) == 1

    async def test_close_ends_the_thread(self):
        executor, environment = await opened()
        thread, _ = await outcome(partial(executor.submit, lambda *_: threading.current_thread(), None))
        await outcome(executor.close)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert environment.closings == 1

    async def test_a_failed_constructor_leaves_no_thread(self):
        def factory():
            raise ValueError("no")

        executor = thread_executor("test-failed")
        await outcome(partial(executor.start, factory))
        await outcome(executor.close)
        for thread in threading.enumerate():
            if thread.name == "test-failed":
                thread.join(PATIENCE_S)
        assert "test-failed" not in {thread.name for thread in threading.enumerate()}

    async def test_release_gives_the_environment_away_unclosed(self):
        executor, environment = await opened()
        thread, _ = await outcome(partial(executor.submit, lambda *_: threading.current_thread(), None))
        assert executor.release() is environment
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert environment.closings == 0

    async def test_nothing_of_a_call_is_kept_while_the_thread_waits(self):
        class Heavy:
            pass

        executor, _ = await opened()
        heavy = Heavy()
        gone = weakref.ref(heavy)
        await outcome(partial(executor.submit, lambda environment, argument: None, heavy))
        # A second call: the first one's end has been reached for certain.
        await outcome(partial(executor.submit, lambda environment, argument: None, None))
        del heavy
        assert forgotten(gone)
        await outcome(executor.close)

    async def test_a_machine_without_a_thread_to_give(self, monkeypatch):
        def refuse(self):
            raise RuntimeError("can't start new thread")

        executor = thread_executor()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            result, error = await outcome(partial(executor.start, Plain))
        assert result is None
        assert isinstance(error, RuntimeError)
        assert await outcome(executor.close) == (None, None)

    async def test_the_stack_size_of_other_threads_stays_as_it_was(self):
        before = threading.stack_size()
        executor, _ = await opened()
        assert threading.stack_size() == before
        await outcome(executor.close)
