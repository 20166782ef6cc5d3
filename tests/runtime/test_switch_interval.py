"""The switch interval follows the calls that are with threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from openenv._tuning import CALLS_A_LEVEL, MOST_S, SwitchInterval
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
    pace = SwitchInterval()
    for _ in range(calls):
        pace.begin()
    return pace


def test_few_calls_leave_the_interval_as_it_was(usual):
    begun(CALLS_A_LEVEL - 1)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_it_grows_with_the_calls_and_has_a_limit(usual):
    pace = begun(10 * CALLS_A_LEVEL)
    some = sys.getswitchinterval()
    for _ in range(100 * CALLS_A_LEVEL):
        pace.begin()
    assert usual < some < sys.getswitchinterval() == pytest.approx(MOST_S)


def test_it_is_what_it_was_when_they_have_come_back(usual):
    pace = begun(10 * CALLS_A_LEVEL)
    pace.end(10 * CALLS_A_LEVEL)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_the_process_has_chosen_itself_counts():
    pace = SwitchInterval()
    sys.setswitchinterval(0.02)
    for _ in range(CALLS_A_LEVEL):
        pace.begin()
    assert sys.getswitchinterval() == pytest.approx(0.02)
    pace.end(CALLS_A_LEVEL)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_no_call_is_lost_when_loops_on_several_threads_count(usual):
    pace = SwitchInterval()

    def count(_):
        for _ in range(2_000):
            pace.begin()
            pace.end(1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    for _ in range(CALLS_A_LEVEL - 1):
        pace.begin()
    assert sys.getswitchinterval() == pytest.approx(usual)
    pace.begin()
    pace.end(CALLS_A_LEVEL)


class Recorder:
    """Stands where the pace of the process would."""

    def __init__(self):
        self.begun = self.ended = 0

    def begin(self):
        self.begun += 1

    def end(self, calls):
        self.ended += calls


@pytest.mark.parametrize(("kind", "cls"), [("thread", Plain), ("loop", AsyncPlain)])
async def test_every_call_of_an_executor_that_begins_also_ends(kind, cls, helpers, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr("openenv._tuning.PROCESS", recorder)
    executor = executor_of(kind, helpers)
    await outcome(partial(executor.start, cls))
    for _ in range(3):
        await outcome(partial(executor.submit, lambda environment, action: environment.step(action), Action()))
    await outcome(partial(executor.submit, lambda environment, _: 1 / 0, None))
    await outcome(executor.close)
    await until(lambda: recorder.begun == recorder.ended)
    assert recorder.begun >= 2


def test_a_mailbox_counts_with_the_process():
    assert Mailbox(None).pace is Mailbox(None).pace
