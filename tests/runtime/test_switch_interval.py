"""The switch interval follows the calls that are with threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from openenv._processes import CALLS_A_LEVEL, MOST_S, SwitchInterval
from openenv.runtime.thread import Mailbox
from openenv.types import Action

from ..asynchronous import outcome, until
from ..environments import AsyncPlain, Plain
from .executors import executor_of


@pytest.fixture(autouse=True)
def usual():
    """The interval of this process, restored after a test that has failed."""
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def begun(calls):
    interval = SwitchInterval()
    for _ in range(calls):
        interval.count(1)
    return interval


def test_few_calls_leave_the_interval_as_it_was(usual):
    begun(CALLS_A_LEVEL - 1)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_it_grows_with_the_calls_and_has_a_limit(usual):
    interval = begun(10 * CALLS_A_LEVEL)
    some = sys.getswitchinterval()
    for _ in range(100 * CALLS_A_LEVEL):
        interval.count(1)
    assert usual < some < sys.getswitchinterval() == pytest.approx(MOST_S)


def test_it_is_what_it_was_when_they_have_come_back(usual):
    interval = begun(10 * CALLS_A_LEVEL)
    interval.count(-10 * CALLS_A_LEVEL)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_the_process_has_chosen_itself_counts():
    interval = SwitchInterval()
    sys.setswitchinterval(0.02)
    for _ in range(CALLS_A_LEVEL):
        interval.count(1)
    assert sys.getswitchinterval() == pytest.approx(0.02)
    interval.count(-CALLS_A_LEVEL)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_no_call_is_lost_when_loops_on_several_threads_count(usual):
    interval = SwitchInterval()

    def count(_):
        for _ in range(2_000):
            interval.count(1)
            interval.count(-1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    for _ in range(CALLS_A_LEVEL - 1):
        interval.count(1)
    assert sys.getswitchinterval() == pytest.approx(usual)
    interval.count(1)
    interval.count(-CALLS_A_LEVEL)


class Recorder:
    """Takes the place of the process's SWITCH_INTERVAL."""

    def __init__(self):
        self.begun = self.ended = 0

    def count(self, calls):
        if calls > 0:
            self.begun += calls
        else:
            self.ended -= calls


@pytest.mark.parametrize(("kind", "cls"), [("thread", Plain), ("loop", AsyncPlain)])
async def test_every_call_of_an_executor_that_begins_also_ends(kind, cls, helpers, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr("openenv.runtime.thread.SWITCH_INTERVAL", recorder)
    executor = executor_of(kind, helpers)
    await outcome(partial(executor.start, cls))
    for _ in range(3):
        await outcome(partial(executor.submit, lambda environment, action: environment.step(action), Action()))
    await outcome(partial(executor.submit, lambda environment, _: 1 / 0, None))
    await outcome(executor.close)
    await until(lambda: recorder.begun == recorder.ended)
    assert recorder.begun >= 2


def test_a_mailbox_counts_with_the_process():
    assert Mailbox(None).switch_interval is Mailbox(None).switch_interval
