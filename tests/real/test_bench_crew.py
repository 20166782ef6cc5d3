"""Processes that work together."""

import os

import pytest

from openenv.bench.crew import Counts, run_crew, run_loop
from openenv.errors import LaunchFailed, ServerFull

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


def loop_name(member, share):
    async def name():
        import asyncio

        return type(asyncio.get_running_loop()).__module__

    return run_loop(name())


def test_results_come_in_the_order_of_the_shares_from_processes_of_their_own():
    results = run_crew(count_twice, ["a", "b"])
    assert [share for share, _ in results] == ["a", "b"]
    assert len({os.getpid(), *(pid for _, pid in results)}) == 3


def test_everybody_meets_before_anybody_goes_on():
    meetings, seen = [], []
    run_crew(count_twice, ["a", "b"], at_meeting=meetings.append, progress=seen.append)
    assert meetings == [0, 1]
    assert seen[-1] == Counts(steps=4)


def test_an_error_of_one_ends_all():
    with pytest.raises(ServerFull, match="3 of 3"):
        run_crew(refuse, ["wait", "refuse"])


def test_a_process_that_dies_is_an_error():
    with pytest.raises(LaunchFailed, match="ended without a result"):
        run_crew(die, [1])


def test_an_error_at_a_meeting_ends_all():
    def stop(number):
        raise KeyError(number)

    with pytest.raises(KeyError):
        run_crew(count_twice, ["a"], at_meeting=stop)


def test_the_loop_is_the_fast_one():
    assert run_crew(loop_name, [1]) == ["uvloop"]
