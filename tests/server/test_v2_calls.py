"""The calls of v2 sessions: each executed once, in the order of its session, and given up when its client says so."""

from __future__ import annotations

from .probe import AsyncProbe, InlineProbe, ProbeEnvironment
from .talk import error_of


def value_of(reply):
    return reply["observation"]["value"]


def test_a_repeated_call_gets_the_stored_reply_and_is_not_executed_again(anywhere):
    anywhere.open("one")
    first = anywhere.step("one", number=4)
    anywhere.seq["one"] -= 1
    again = anywhere.step("one", number=5)
    assert {**again, "id": 0} == {**first, "id": 0}
    assert anywhere.ask("state", session="one")["state"]["step_count"] == 1


def test_a_call_repeated_while_it_runs_gets_its_result(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        first = talk.tell_step("one", "wait", 4)
        assert ProbeEnvironment.waiting.wait(20)
        talk.seq["one"] -= 1
        again = talk.tell_step("one", "wait", 4)
        assert talk.ask("heartbeat")["ok"] is True
        ProbeEnvironment.gate.set()
        replies = [talk.receive(), talk.receive()]
        assert [reply["id"] for reply in replies] == [first, again]
        assert [reply["observation"]["step_count"] for reply in replies] == [1, 1]


def test_a_call_repeated_while_it_waits_gets_its_result(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        numbers = [talk.tell_step("one", "wait"), talk.tell_step("one", number=2), talk.tell_step("one", number=3)]
        talk.seq["one"] = 1
        numbers.append(talk.tell_step("one", number=2))
        ProbeEnvironment.gate.set()
        replies = {reply["id"]: reply["observation"]["step_count"] for reply in (talk.receive() for _ in numbers)}
        assert [replies[number] for number in numbers] == [1, 2, 3, 2]


def test_a_number_that_is_neither_the_last_nor_the_next_is_refused(talk):
    talk.open("one")
    for wrong in (2, 3, 2**63 - 1):
        error = error_of(talk.ask("step", session="one", seq=wrong, action={}))
        assert (error["error"], error["blame"]) == ("SequenceError", "client")
        assert error["message"].endswith("which is 1")
    talk.step("one")
    talk.step("one")
    assert error_of(talk.ask("step", session="one", seq=1, action={}))["error"] == "SequenceError"
    talk.assert_lives("one")


def test_a_call_that_failed_counts_and_its_error_is_the_stored_reply(anywhere):
    anywhere.open("one")
    for kind, name in [("invalid", "InvalidAction"), ("raise", "StepFailed"), ("object", "StepFailed")]:
        first = error_of(anywhere.step("one", kind))
        assert first["error"] == name
        anywhere.seq["one"] -= 1
        assert error_of(anywhere.step("one")) == first
    anywhere.assert_lives("one")
    assert anywhere.ask("state", session="one")["state"]["step_count"] == 3


def test_calls_sent_ahead_are_executed_in_their_order(anywhere):
    anywhere.open("one")
    numbers = []
    for number in range(20):
        numbers.append(anywhere.tell_step("one", number=number))
        numbers.append(anywhere.tell("state", session="one"))
    for place, number in enumerate(numbers):
        reply = anywhere.receive()
        assert reply["id"] == number
        if place % 2:
            assert reply["state"]["step_count"] == (place + 1) / 2
        else:
            assert value_of(reply) == place / 2


def test_a_slow_session_delays_no_other_and_the_first_finished_is_answered_first(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("slow")
        talk.open("quick")
        slow = talk.tell_step("slow", "wait", 1)
        assert ProbeEnvironment.waiting.wait(20)
        for _ in range(20):
            talk.assert_lives("quick")
        ProbeEnvironment.gate.set()
        assert talk.receive()["id"] == slow


def test_a_waiting_async_call_delays_no_other(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        talk.open("slow")
        talk.open("quick")
        slow = talk.tell_step("slow", "hang")
        for _ in range(20):
            talk.assert_lives("quick")
        talk.tell("cancel", target=slow)
        assert {talk.receive()["id"], talk.receive()["id"]} == {slow, slow + 21}


def test_more_waiting_calls_than_the_limit_are_refused_and_do_not_count(line):
    with line(ProbeEnvironment, max_in_flight=3) as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.open("two")
        numbers = [talk.tell_step("one", "wait")]
        assert ProbeEnvironment.waiting.wait(20)
        numbers += [talk.tell_step("one") for _ in range(3)]
        error = error_of(talk.step("one"))
        assert (error["error"], error["retryable"]) == ("TooManyCalls", True)
        assert "max_in_flight" in error["message"]
        talk.seq["one"] -= 1
        assert error_of(talk.ask("state", session="one"))["error"] == "TooManyCalls"
        talk.assert_lives("two")
        ProbeEnvironment.gate.set()
        assert [talk.receive()["id"] for _ in numbers] == numbers
        talk.assert_lives("one")


def test_more_repetitions_than_the_limit_are_refused(line):
    with line(ProbeEnvironment, max_in_flight=3) as open_talk:
        talk = open_talk()
        talk.open("one")
        numbers = [talk.tell_step("one", "wait")]
        assert ProbeEnvironment.waiting.wait(20)
        for _ in range(3):
            talk.seq["one"] -= 1
            numbers.append(talk.tell_step("one", "wait"))
        talk.seq["one"] -= 1
        assert error_of(talk.step("one", "wait"))["error"] == "TooManyCalls"
        ProbeEnvironment.gate.set()
        assert [talk.receive()["id"] for _ in numbers] == numbers


def test_a_waiting_call_that_is_cancelled_does_not_run(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        running, waiting = talk.tell_step("one", "wait"), talk.tell_step("one")
        following = talk.tell_step("one", number=3)
        assert ProbeEnvironment.waiting.wait(20)
        cancelling = talk.tell("cancel", target=waiting)
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert replies[cancelling]["cancelled"] is True
        error = error_of(replies[waiting])
        assert (error["error"], error["blame"]) == ("Cancelled", "client")
        ProbeEnvironment.gate.set()
        assert talk.receive()["id"] == running
        last = talk.receive()
        assert (last["id"], last["observation"]["step_count"]) == (following, 2)


def test_a_cancelled_call_counts_and_is_cancelled_for_whoever_asks_again(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.tell_step("one", "wait")
        waiting = talk.tell_step("one")
        talk.tell("cancel", target=waiting)
        assert error_of(next(r for r in (talk.receive(), talk.receive()) if r["id"] == waiting))
        talk.seq["one"] -= 1
        assert error_of(talk.step("one"))["error"] == "Cancelled"
        ProbeEnvironment.gate.set()
        assert talk.receive()["ok"] is True
        talk.seq["one"] -= 1
        assert error_of(talk.step("one"))["error"] == "Cancelled"
        assert talk.step("one")["observation"]["step_count"] == 2


def test_a_running_async_call_that_is_cancelled_stops(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        talk.open("one")
        running = talk.tell_step("one", "hang")
        assert ProbeEnvironment.waiting.wait(20)
        cancelling = talk.tell("cancel", target=running)
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert replies[cancelling]["cancelled"] is True
        assert error_of(replies[running])["error"] == "Cancelled"
        assert ProbeEnvironment.stopped.wait(20)
        talk.assert_lives("one")


def test_a_running_call_on_a_thread_is_cancelled_and_the_next_one_waits_for_its_end(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        running = talk.tell_step("one", "wait", 8)
        assert ProbeEnvironment.waiting.wait(20)
        cancelling = talk.tell("cancel", target=running)
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert replies[cancelling]["cancelled"] is True
        assert error_of(replies[running])["error"] == "Cancelled"
        assert talk.ask("cancel", target=running)["cancelled"] is False
        talk.seq["one"] -= 1
        assert error_of(talk.step("one", "wait"))["error"] == "Cancelled"
        following = talk.tell_step("one", number=3)
        assert talk.ask("heartbeat")["ok"] is True
        ProbeEnvironment.gate.set()
        reply = talk.receive()
        assert (reply["id"], reply["observation"]["step_count"]) == (following, 2)


def test_opening_can_be_cancelled_while_it_waits_for_a_slot(line):
    with line(ProbeEnvironment, 1) as open_talk:
        talk = open_talk()
        talk.open("a")
        waiting = talk.tell("open", session="b", wait_s=20)
        talk.tell("cancel", target=waiting)
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert error_of(replies[waiting])["error"] == "Cancelled"
        talk.ask("close", session="a")
        talk.open("b", wait_s=20)


def test_what_has_ended_or_never_was_cannot_be_cancelled(talk):
    talk.open("one")
    done = talk.tell_step("one")
    talk.receive()
    assert talk.ask("cancel", target=done)["cancelled"] is False
    assert talk.ask("cancel", target=10**9)["cancelled"] is False
    talk.assert_lives("one")


def test_messages_larger_than_any_buffer(anywhere):
    anywhere.open("one")
    action = {"kind": "large", "number": 3_000_000, "metadata": {"pad": "y" * 500_000}}
    reply = anywhere.ask(**anywhere.call("step", "one", action=action))
    assert len(reply["observation"]["value"]) == 3_000_000


def test_many_sessions_on_one_connection(line):
    with line(InlineProbe, 300) as open_talk:
        talk = open_talk()
        names = [f"s{number}" for number in range(300)]
        for name in names:
            talk.tell("open", session=name)
            talk.seq[name] = 0
        assert all(talk.receive()["ok"] for _ in names)
        asked = {talk.tell_step(name, number=number): number for number, name in enumerate(names)}
        for _ in names:
            reply = talk.receive()
            assert value_of(reply) == asked.pop(reply["id"])
