"""Processes that work together."""

import asyncio
import os
import signal
import sys
from multiprocessing import resource_tracker

import pytest

from openenv.bench import load
from openenv.bench.load import LoadCounts, run_load, run_loop
from openenv.errors import LaunchFailed, ServerFull

from .bench_processes import children_of

pytestmark = pytest.mark.real


def count_twice(member, share):
    for _ in range(2):
        member.meet()
        member.count("steps")
    return share, os.getpid()


def refuse(member, share):
    if share == "refuse":
        raise ServerFull(3, 3)
    member.meet()  # waits for the other, who never comes


def die(member, share):
    os._exit(7)


async def loop_module():
    return type(asyncio.get_running_loop()).__module__


def loop_of_a_member(member, share):
    return run_loop(loop_module())


def stay(member, share):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    member.meet()
    member.meet()


def test_results_come_in_the_order_of_the_shares_from_processes_of_their_own():
    results = run_load(count_twice, ["a", "b"])
    assert [share for share, _ in results] == ["a", "b"]
    assert len({os.getpid(), *(pid for _, pid in results)}) == 3


def test_everybody_meets_before_anybody_goes_on():
    meetings, seen = [], []
    run_load(count_twice, ["a", "b"], at_meeting=meetings.append, progress=seen.append)
    assert meetings == [0, 1]
    assert seen[-1] == LoadCounts(steps=4)


def test_an_error_of_one_ends_all():
    with pytest.raises(ServerFull, match="3 of 3"):
        run_load(refuse, ["wait", "refuse"])


def test_a_process_that_dies_is_an_error():
    with pytest.raises(LaunchFailed, match="ended without a result"):
        run_load(die, [1])


def test_an_error_at_a_meeting_ends_all():
    def stop(number):
        raise KeyError(number)

    with pytest.raises(KeyError):
        run_load(count_twice, ["a"], at_meeting=stop)


def test_the_loop_is_the_fast_one():
    assert run_load(loop_of_a_member, [1]) == ["uvloop"]


def test_without_uvloop_it_is_the_one_of_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run_loop(loop_module()).startswith("asyncio")


def test_a_process_that_does_not_end_when_asked_is_killed(monkeypatch):
    monkeypatch.setattr(load, "JOIN_S", 0.1)
    resource_tracker.ensure_running()  # which multiprocessing starts once, and which stays
    others, pids = children_of(os.getpid()), set()

    def note_and_stop(number):
        pids.update(children_of(os.getpid()).keys() - others)
        raise KeyError

    with pytest.raises(KeyError):
        run_load(stay, [1], at_meeting=note_and_stop)
    assert len(pids) == 1
    assert not pids & children_of(os.getpid()).keys()
