"""Batches: many calls in one frame, results in as many frames as the client wants."""

from __future__ import annotations

import pytest

from .probe import AsyncProbe, InlineProbe, ProbeEnvironment
from .talk import few_lines


def opening(*names):
    return [{"op": "open", "session": name} for name in names]


def open_all(talk, *names):
    (frame,) = talk.batch(*opening(*names))
    assert all(result["ok"] for result in frame["results"])
    talk.seq.update(dict.fromkeys(names, 0))


def test_a_batch_of_many_sessions(anywhere):
    names = ["a", "b", "c", "d"]
    (frame,) = anywhere.batch(*opening(*names))
    assert (frame["ok"], frame["more"]) == (True, False)
    assert {result["call"]: result["session"] for result in frame["results"]} == dict(enumerate(names))
    assert all(result["token"] for result in frame["results"])
    anywhere.seq.update(dict.fromkeys(names, 0))
    anywhere.batch(*(anywhere.call("reset", name, kwargs={"seed": 1}) for name in names))
    (frame,) = anywhere.batch(*(anywhere.step_call(name, number=n) for n, name in enumerate(names)))
    results = {result["session"]: result for result in frame["results"]}
    assert {name: results[name]["observation"]["value"] for name in names} == dict(zip(names, range(4), strict=True))
    assert set(results["a"]) == {
        "call", "session", "ok", "observation", "reward", "done", "terminated", "truncated",
    }  # fmt: skip
    (frame,) = anywhere.batch(*({"op": "state", "session": name} for name in names))
    assert [result["state"]["step_count"] for result in frame["results"]] == [1] * 4
    (frame,) = anywhere.batch(*({"op": "close", "session": name} for name in names))
    assert all(result["ok"] for result in frame["results"])


def test_a_whole_episode_of_one_session_in_one_batch(anywhere):
    anywhere.seq["a"] = 0
    calls = [anywhere.call("reset", "a"), *(anywhere.step_call("a", number=n) for n in range(30))]
    (frame,) = anywhere.batch(*opening("a"), *calls)
    results = sorted(frame["results"], key=lambda result: result["call"])
    assert [result["observation"]["value"] for result in results[2:]] == list(range(30))


def test_a_bad_call_fails_alone(anywhere):
    open_all(anywhere, "a", "b")
    (frame,) = anywhere.batch(
        anywhere.step_call("a", number=1),
        {"op": "dance", "session": "a"},
        anywhere.step_call("b", "raise"),
        {"op": "step", "session": "a", "seq": "first", "action": {}},
        {"op": "step", "session": "nobody", "seq": 1, "action": {}},
        {"op": "step", "session": "a", "seq": 99, "action": {}},
        "no map",
        {"op": "heartbeat"},
        {"op": "batch", "calls": []},
        {"op": "open"},
        anywhere.step_call("a", number=2),
    )
    results = {result["call"]: result for result in frame["results"]}
    assert {call: result["error"]["error"] for call, result in results.items() if "error" in result} == {
        1: "UnknownMessage",
        2: "StepFailed",
        3: "InvalidAction",
        4: "UnknownSession",
        5: "SequenceError",
        6: "InvalidAction",
        7: "UnknownMessage",
        8: "UnknownMessage",
    }
    assert [results[call]["observation"]["value"] for call in (0, 10)] == [1, 2]
    assert results[9]["session"]
    assert (results[3]["session"], results[4]["session"]) == ("a", "nobody")
    anywhere.assert_lives("b")


def test_a_batch_over_the_limit_is_refused_whole(line):
    with line(InlineProbe, max_batch=3) as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b", "c")
        (refused,) = talk.batch(*opening("a", "b", "c"), {"op": "close", "session": "a"})
        error = refused["error"]
        assert error["error"] == "UsageError"
        assert "max_batch" in error["message"]
        assert "3" in error["message"]
        talk.assert_lives("a")


def test_sessions_that_open_at_one_time_are_bounded(line):
    with line(ProbeEnvironment, 1, max_batch=2) as open_talk:
        talk = open_talk()
        talk.open("a")
        waiting = [talk.tell("open", session=name, wait_s=20) for name in "bc"]
        error = talk.ask("open", session="d", wait_s=20)["error"]
        assert error["error"] == "TooManyCalls"
        for number in waiting:
            talk.tell("cancel", target=number)
        assert sum("error" in talk.receive() for _ in range(4)) == 2


def test_without_a_wish_all_results_come_together(line):
    with line() as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b", "c")
        calls = [talk.step_call("a", "wait"), talk.step_call("b"), talk.step_call("c")]
        number = talk.tell("batch", calls=calls)
        for name in "bc":  # asked after the step, and so answered after it
            assert talk.ask("state", session=name)["state"]["step_count"] == 1
        ProbeEnvironment.gate.set()
        frame = talk.receive()
        assert (frame["id"], len(frame["results"]), frame["more"]) == (number, 3, False)
        assert frame["results"][-1]["session"] == "a"


def test_as_many_as_are_wanted_come_first(line):
    with line() as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b", "c", "d")
        calls = [talk.step_call("a", "wait"), *(talk.step_call(name) for name in "bcd")]
        number = talk.tell("batch", calls=calls, min_ready=2)
        frame = talk.receive()
        assert (frame["id"], frame["more"]) == (number, True)
        ready = [result["session"] for result in frame["results"]]
        assert len(ready) >= 2  # the third too, if it came in the same turn
        assert "a" not in ready
        # Those that are ready go on, while the others are at work.
        for name in ready:
            talk.assert_lives(name)
        ProbeEnvironment.gate.set()
        frame = talk.receive()
        assert (frame["id"], len(frame["results"]), frame["more"]) == (number, 4 - len(ready), False)


def test_the_rest_comes_at_the_end(line):
    with line() as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b", "c")
        number = talk.tell("batch", calls=[talk.step_call("a", "wait"), *map(talk.step_call, "bc")], min_ready=2)
        frame = talk.receive()
        assert (frame["id"], len(frame["results"]), frame["more"]) == (number, 2, True)
        ProbeEnvironment.gate.set()
        frame = talk.receive()
        assert (frame["id"], len(frame["results"]), frame["more"]) == (number, 1, False)
        (frame,) = talk.batch(*map(talk.step_call, "abc"), min_ready=100)
        assert len(frame["results"]) == 3


@few_lines
def test_results_that_come_together_leave_together(line):
    with line(InlineProbe, 64) as open_talk:
        talk = open_talk()
        names = [f"s{number}" for number in range(64)]
        open_all(talk, *names)
        (frame,) = talk.batch(*map(talk.step_call, names), min_ready=1)
        assert ([result["call"] for result in frame["results"]], frame["more"]) == (list(range(64)), False)


@few_lines
def test_results_that_come_together_do_not_wait_for_a_call_that_runs(line):
    with line(AsyncProbe, 64) as open_talk:
        talk = open_talk()
        names = [f"s{number}" for number in range(64)]
        open_all(talk, *names)
        hanging = talk.step_call(names[0], "hang")
        number = talk.tell("batch", calls=[hanging, *map(talk.step_call, names[1:])], min_ready=1)
        frame = talk.receive()
        assert (len(frame["results"]), frame["more"]) == (63, True)
        talk.tell("cancel", target=number)
        frames = [talk.receive(), talk.receive()]
        (last,) = (frame for frame in frames if frame["id"] == number)
        assert (len(last["results"]), last["more"]) == (1, False)


@few_lines
def test_time_that_is_up_together_with_enough_results_gives_one_frame(line):
    with line(AsyncProbe, 2) as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b")
        number = talk.tell("batch", calls=[talk.step_call("a", "hang"), talk.step_call("b")], min_ready=1, wait_s=0)
        frame = talk.receive()
        assert (frame["id"], len(frame["results"]), frame["more"]) == (number, 1, True)
        assert "ok" in talk.ask("heartbeat")  # with no frame in between
        talk.tell("cancel", target=number)
        talk.receive(), talk.receive()


@pytest.mark.parametrize("wait_s", [0, 0.02])
def test_what_is_ready_comes_when_the_time_is_up(line, wait_s):
    with line() as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b", "c")
        calls = [talk.step_call("a", "wait"), talk.step_call("b"), talk.step_call("c")]
        number = talk.tell("batch", calls=calls, wait_s=wait_s)
        ready = talk.receive()
        assert (ready["id"], ready["more"]) == (number, True)
        assert {result["session"] for result in ready["results"]} <= {"b", "c"}
        ProbeEnvironment.gate.set()
        rest = talk.receive()
        assert (rest["id"], rest["more"]) == (number, False)
        assert len(ready["results"]) + len(rest["results"]) == 3


@pytest.mark.parametrize(("max_message_mb", "most"), [(2, 1024 * 1024), (0.5, 512 * 1024)])
def test_large_results_come_in_frames_of_bounded_size(line, max_message_mb, most):
    with line(InlineProbe, 10, max_message_mb=max_message_mb) as open_talk:
        talk = open_talk()
        names = [f"s{number}" for number in range(10)]
        open_all(talk, *names)
        sizes = [200_000] * 9 + [1_500_000]
        number = talk.tell(
            "batch",
            calls=[talk.step_call(name, "large", size) for name, size in zip(names, sizes, strict=True)],
        )
        results, more = [], True
        while more:
            raw = talk.wire.receive_frame()
            frame = talk.read(raw)
            assert len(raw) <= most or len(frame["results"]) == 1
            results += frame["results"]
            more = frame["more"]
            assert frame["id"] == number
        assert [len(result["observation"]["value"]) for result in results] == sizes


def test_a_cancelled_batch_ends_what_has_not_ended(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b")
        calls = [
            talk.step_call("a", number=1),
            talk.step_call("a", "hang"),
            talk.step_call("a", number=2),
            talk.step_call("b", number=3),
        ]
        number = talk.tell("batch", calls=calls)
        assert ProbeEnvironment.waiting.wait(20)
        cancelling = talk.tell("cancel", target=number)
        frames = {frame["id"]: frame for frame in (talk.receive(), talk.receive())}
        assert frames[cancelling]["cancelled"] is True
        results = {result["call"]: result for result in frames[number]["results"]}
        assert [results[call]["observation"]["value"] for call in (0, 3)] == [1, 3]
        assert [results[call]["error"]["error"] for call in (1, 2)] == ["Cancelled", "Cancelled"]
        talk.assert_lives("a")
        talk.assert_lives("b")


def test_a_session_lost_during_a_batch_fails_alone(line):
    with line() as open_talk:
        talk = open_talk()
        open_all(talk, "a", "b")
        number = talk.tell("batch", calls=[talk.step_call("a", "wait"), talk.step_call("b", number=3)])
        assert ProbeEnvironment.waiting.wait(20)
        closing = talk.tell("close", session="a")
        frames = {frame["id"]: frame for frame in (talk.receive(), talk.receive())}
        assert frames[closing]["ok"] is True
        results = {result["session"]: result for result in frames[number]["results"]}
        assert results["a"]["error"]["error"] == "SessionLost"
        assert results["b"]["observation"]["value"] == 3


def test_a_client_that_leaves_during_a_batch_leaves_nothing(line):
    with line(ProbeEnvironment, 2, queue_timeout_s=20, resume_window_s=0) as open_talk:
        leaving, staying = open_talk(), open_talk()
        open_all(leaving, "a", "b")
        leaving.tell("batch", calls=[leaving.step_call("a", "wait"), leaving.step_call("b", "wait")], wait_s=3600)
        assert ProbeEnvironment.waiting.wait(20)
        leaving.wire.close() if hasattr(leaving.wire, "socket") else ProbeEnvironment.gate.set()
        ProbeEnvironment.gate.set()
        leaving.wire.close()
        open_all(staying, "c", "d")
        staying.assert_lives("c")
