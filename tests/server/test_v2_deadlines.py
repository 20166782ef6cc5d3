"""A call is answered when its time is over, whatever its environment does."""

from __future__ import annotations

import time

import pytest

from .probe import AsyncProbe, ProbeEnvironment
from .talk import error_of, few_lines

pytestmark = few_lines


def test_a_call_in_time_is_answered_as_any_other(anywhere):
    anywhere.open("one")
    assert anywhere.ask(**anywhere.call("reset", "one"), deadline_s=20)["ok"] is True
    reply = anywhere.ask(**anywhere.step_call("one", number=3), deadline_s=20)
    assert reply["observation"]["value"] == 3
    anywhere.assert_lives("one")


def test_an_async_call_that_does_not_end_is_stopped_and_its_session_goes_on(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        talk.open("one")
        begun = time.monotonic()
        error = error_of(talk.ask(**talk.step_call("one", "hang"), deadline_s=0.2))
        assert 0.2 <= time.monotonic() - begun < 10
        assert (error["error"], error["blame"], error["retryable"]) == ("StepTimeout", "environment", False)
        assert "deadline_s" in error["message"]
        assert ProbeEnvironment.stopped.wait(20)
        talk.seq["one"] -= 1
        assert error_of(talk.step("one", "hang"))["error"] == "StepTimeout"  # told again, not done again
        assert talk.step("one")["observation"]["step_count"] == 1


def test_a_call_on_a_thread_that_does_not_end_ends_its_session(line):
    with line(ProbeEnvironment, 1) as open_talk:
        talk = open_talk()
        talk.open("one")
        number = talk.tell(**talk.step_call("one", "wait"), deadline_s=0.1)
        first, second = talk.receive(), talk.receive()
        assert (first["id"], error_of(first)["error"]) == (number, "StepTimeout")
        assert (second["event"], second["session"]) == ("session_lost", "one")
        assert "thread" in second["reason"]
        assert error_of(talk.step("one"))["error"] == "UnknownSession"
        talk.open("two")  # the one slot is free, though the thread has not returned
        assert not ProbeEnvironment.closed.is_set()
        ProbeEnvironment.gate.set()
        assert ProbeEnvironment.closed.wait(20)
        assert talk.step("two")["ok"] is True


def test_what_waits_behind_a_call_that_ends_its_session_is_lost_with_it(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        # In one frame: both are there before the time of the first is over, however long the client is held up.
        calls = [{**talk.step_call("one", "wait"), "deadline_s": 0.1}, talk.step_call("one")]
        number = talk.tell("batch", calls=calls)
        told = {message.get("id", message.get("event")): message for message in (talk.receive(), talk.receive())}
        assert [error_of(result)["error"] for result in told[number]["results"]] == ["StepTimeout", "SessionLost"]
        assert told["session_lost"]["session"] == "one"


def test_the_time_in_the_queue_counts(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        running = talk.tell_step("one", "wait")
        assert ProbeEnvironment.waiting.wait(20)
        late = error_of(talk.ask(**talk.step_call("one"), deadline_s=0.1))
        assert late["error"] == "StepTimeout"
        assert "not executed" in late["message"]
        ProbeEnvironment.gate.set()
        assert talk.receive()["id"] == running
        assert talk.step("one")["observation"]["step_count"] == 2


def test_a_deadline_passes_while_the_session_waits_for_its_slot(line):
    with line(ProbeEnvironment, 1) as open_talk:
        talk = open_talk()
        talk.open("a")
        opening = talk.tell("open", session="b", wait_s=20)
        talk.seq["b"] = 0
        error = error_of(talk.ask(**talk.call("reset", "b", deadline_s=0.1)))
        assert error["error"] == "StepTimeout"
        closing = talk.tell("close", session="a")
        assert {talk.receive()["id"], talk.receive()["id"]} == {closing, opening}
        talk.seq["b"] = 1
        talk.assert_lives("b")


def test_the_deadline_of_a_batch_is_that_of_its_calls(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        for name in "abc":
            talk.open(name)
        calls = [talk.step_call("a", number=1), talk.step_call("b", "hang"), talk.step_call("c", "hang")]
        calls[2]["deadline_s"] = 0.05
        frames = talk.batch(*calls, deadline_s=0.3, min_ready=1)
        results = [result for frame in frames for result in frame["results"]]
        assert [result["session"] for result in results] == ["a", "c", "b"]
        assert [result.get("error", {}).get("error") for result in results] == [None, "StepTimeout", "StepTimeout"]
        for name in "abc":
            talk.assert_lives(name)


def test_others_do_not_wait(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        for name in ("patient", "hung", "quick"):
            talk.open(name)
        talk.tell(**talk.step_call("patient", "hang"), deadline_s=60)
        for _ in range(20):
            talk.assert_lives("quick")
        number = talk.tell(**talk.step_call("hung", "hang"), deadline_s=0.3)
        talk.tell_step("quick")
        while (reply := talk.receive())["id"] != number:
            assert reply["ok"] is True
            talk.tell_step("quick")
        assert error_of(reply)["error"] == "StepTimeout"


@pytest.mark.parametrize("deadline", [0, -1, 86_401, "soon"])
def test_a_deadline_that_is_none_is_refused(talk, deadline):
    talk.open("one")
    error = error_of(talk.ask(**talk.step_call("one"), deadline_s=deadline))
    assert (error["error"], error["blame"]) == ("InvalidAction", "client")
    talk.seq["one"] -= 1
    talk.assert_lives("one")
