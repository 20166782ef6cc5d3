"""Sessions of a v2 connection: their beginning, their life, their end, and their way to another connection."""

from __future__ import annotations

import time

import pytest

from .probe import AsyncProbe, BrokenProbe, ProbeEnvironment
from .talk import error_of
from .wires import eventually


def test_the_server_speaks_first_and_says_what_it_is(talk):
    hello = talk.hello
    assert (hello["event"], hello["protocol"], hello["environment"]) == ("hello", 2, "ProbeEnvironment")
    assert hello["limits"] == {
        "max_message_bytes": 16 * 1024 * 1024,
        "max_sessions": 4,
        "max_in_flight": 64,
        "max_connection_in_flight": 65_536,
        "max_batch": 1024,
    }
    assert (hello["heartbeat_s"], hello["resume_window_s"], hello["worker"]) == (20.0, 60.0, None)
    capabilities = {"attach", "batch", "call", "cancel", "deadline", "fork", "mcp", "resume", "tasks"}
    assert set(hello["capabilities"]) == capabilities
    assert hello["server"]


def test_an_episode(anywhere):
    opened = anywhere.open("one")
    assert (opened["session"], opened["seq"]) == ("one", 0)
    assert opened["slot"] == {"active_sessions": 1, "max_sessions": 4}
    reset = anywhere.ask(**anywhere.call("reset", "one", kwargs={"seed": 5, "difficulty": 9}))
    assert set(reset) == {"id", "ok", "observation", "reward", "done", "terminated", "truncated"}
    assert (reset["observation"]["value"], reset["reward"], reset["done"]) == (5, None, False)
    step = anywhere.step("one", number=3)
    assert (step["observation"]["value"], step["observation"]["step_count"], step["reward"]) == (3, 1, 1.5)
    assert set(step["observation"]) == {"metadata", "value", "step_count", "thread"}
    last = anywhere.step("one", "metadata")
    assert (last["done"], last["terminated"], last["metadata"]) == (True, True, {"lives": 3})
    assert anywhere.ask("state", session="one")["state"] == {"episode_id": "probe", "step_count": 2}
    assert set(anywhere.ask("close", session="one")) == {"id", "ok"}


def test_reset_needs_no_arguments(talk):
    talk.open("one")
    assert talk.ask(**talk.call("reset", "one"))["ok"] is True


def test_sessions_have_environments_of_their_own(anywhere):
    names = ["a", "b", "c", "d"]
    for name in names:
        anywhere.open(name)
    for steps, name in enumerate(names):
        for _ in range(steps):
            anywhere.step(name)
    counts = [anywhere.ask("state", session=name)["state"]["step_count"] for name in names]
    assert counts == [0, 1, 2, 3]


def test_the_server_finds_a_name_for_a_session_without_one(talk):
    first, second = talk.ask("open"), talk.ask("open")
    assert first["session"] != second["session"]
    assert first["token"] != second["token"]


def test_opening_again_gives_the_same_session(talk):
    first = talk.open("one")
    again = talk.ask("open", session="one")
    assert {**again, "id": 0} == {**first, "id": 0}
    talk.step("one")
    assert talk.ask("open", session="one")["seq"] == 1
    assert talk.ask("state", session="one")["state"]["step_count"] == 1


def test_what_is_asked_of_a_session_that_opens_is_done_when_it_is_open(anywhere):
    opening = anywhere.tell("open", session="one")
    again = anywhere.tell("open", session="one")
    anywhere.seq["one"] = 0
    steps = [anywhere.tell_step("one", number=number) for number in range(60)]
    replies = [anywhere.receive() for _ in range(62)]
    assert [reply["id"] for reply in replies[:2]] == [opening, again]
    assert replies[0]["token"] == replies[1]["token"]
    assert [(reply["id"], reply["observation"]["value"]) for reply in replies[2:]] == list(
        zip(steps, range(60), strict=True)
    )


def test_a_session_of_another_connection_is_out_of_reach(line):
    with line() as open_talk:
        owner, other = open_talk(), open_talk()
        owner.open("one")
        other.seq["one"] = 0
        assert error_of(other.ask("open", session="one"))["error"] == "Unauthorized"
        assert error_of(other.step("one"))["error"] == "Unauthorized"
        assert error_of(other.ask("state", session="one"))["error"] == "Unauthorized"
        assert error_of(other.ask("close", session="one"))["error"] == "Unauthorized"
        owner.assert_lives("one")


def test_a_closed_session_is_unknown_and_closing_is_idempotent(talk):
    talk.open("one")
    for _ in range(3):
        assert talk.ask("close", session="one")["ok"] is True
    error = error_of(talk.step("one"))
    assert (error["error"], error["blame"], error["data"]["session_id"]) == ("UnknownSession", "client", "one")


def test_closing_during_a_call_answers_the_call(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        running, queued = talk.tell_step("one", "wait"), talk.tell_step("one")
        assert ProbeEnvironment.waiting.wait(20)
        closing = talk.tell("close", session="one")
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        assert error_of(replies[running])["error"] == error_of(replies[queued])["error"] == "SessionLost"
        assert replies[closing]["ok"] is True
        too_early = error_of(talk.ask("open", session="one"))
        assert (too_early["error"], too_early["retryable"]) == ("CapacityError", True)
        assert too_early["retry_after_s"] > 0
        ProbeEnvironment.gate.set()
        assert ProbeEnvironment.closed.wait(20)
        talk.open("two")
        talk.assert_lives("two")


def test_a_full_server_refuses_and_a_closed_session_makes_room(line):
    with line(ProbeEnvironment, 2) as open_talk:
        talk = open_talk()
        talk.open("a")
        talk.open("b")
        error = error_of(talk.ask("open", session="c"))
        assert (error["error"], error["code"], error["retryable"]) == ("ServerFull", "CAPACITY_REACHED", True)
        assert error["data"] == {"active_sessions": 2, "max_sessions": 2}
        talk.ask("close", session="a")
        talk.open("c")
        talk.assert_lives("b")
        talk.assert_lives("c")


def test_a_newcomer_waits_as_long_as_it_says(line):
    with line(ProbeEnvironment, 1) as open_talk:
        talk = open_talk()
        talk.open("a")
        assert error_of(talk.ask("open", session="b", wait_s=0.02))["error"] == "QueueTimeout"
        waiting = talk.tell("open", session="b", wait_s=20)
        talk.assert_lives("a")
        closing = talk.tell("close", session="a")
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(2))}
        assert replies[closing]["ok"] is replies[waiting]["ok"] is True


def test_a_session_may_be_closed_while_it_waits_for_its_slot(line):
    with line(ProbeEnvironment, 1) as open_talk:
        talk = open_talk()
        talk.open("a")
        waiting = talk.tell("open", session="b", wait_s=20)
        closing = talk.tell("close", session="b")
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(2))}
        assert error_of(replies[waiting])["error"] == "SessionLost"
        assert replies[closing]["ok"] is True
        talk.assert_lives("a")


def test_a_constructor_that_raises(line):
    with line(BrokenProbe) as open_talk:
        talk = open_talk()
        for name in "abcdef":  # more than there are slots
            opening = talk.tell("open", session=name, wait_s=20)
            talk.seq[name] = 0
            step = talk.tell_step(name)
            replies = {reply["id"]: error_of(reply) for reply in (talk.receive() for _ in range(2))}
            assert (replies[opening]["error"], replies[opening]["code"]) == ("FactoryFailed", "FACTORY_ERROR")
            assert "no such device" in replies[opening]["message"]
            # Asked while the constructor ran, or after it had failed.
            assert replies[step]["error"] in {"FactoryFailed", "UnknownSession"}


def kept_by_traffic(talk, name, idle_timeout_s):
    """Whether a session outlives its limit three times. False shows nothing: its client was held up for so long."""
    begun = before = time.monotonic()
    talk.open(name)
    over = False
    while not over:
        now = time.monotonic()
        over = now - begun > 3 * idle_timeout_s
        number = talk.tell_step(name) if over else talk.tell("heartbeat")
        reply = talk.receive()
        if time.monotonic() - before >= idle_timeout_s:
            return False
        before = now
        assert (reply.get("id"), reply.get("ok")) == (number, True), reply
    return True


def test_traffic_of_the_connection_keeps_its_sessions(line):
    with line(ProbeEnvironment, 20, idle_timeout_s=0.5) as open_talk:
        assert any(kept_by_traffic(open_talk(), f"idle-{attempt}", 0.5) for attempt in range(20))


def test_the_sessions_of_a_silent_connection_are_ended(line):
    with line(ProbeEnvironment, idle_timeout_s=0.3) as open_talk:
        talk, other = open_talk(), open_talk()
        talk.open("idle")
        other.ask("heartbeat")
        message = talk.receive()
        assert (message["event"], message["session"]) == ("session_lost", "idle")
        assert "idle_timeout_s" in message["reason"]
        assert message["error"]["error"] == "SessionLost"
        assert error_of(talk.step("idle"))["error"] == "UnknownSession"


def test_without_a_resume_window_a_connection_that_ends_takes_its_sessions_along(line):
    with line(AsyncProbe, 3, queue_timeout_s=20, resume_window_s=0) as open_talk:
        leaving, staying = open_talk(), open_talk()
        leaving.open("a")
        leaving.open("b")
        staying.open("c")
        leaving.tell_step("a", "hang")
        assert ProbeEnvironment.waiting.wait(20)
        leaving.tell_step("a")
        leaving.wire.close()
        assert ProbeEnvironment.stopped.wait(20)
        for name in ("a", "b"):
            # What is still closing is refused, to be asked for again: its `close` runs on a thread.
            eventually(lambda name=name: staying.ask("open", session=name).get("ok") is True)
        assert staying.ask("state", session="a")["state"]["step_count"] == 0


def test_a_connection_that_ends_during_a_call_on_a_thread_frees_the_slot_afterwards(line):
    with line(ProbeEnvironment, 1, queue_timeout_s=20, resume_window_s=0) as open_talk:
        leaving, staying = open_talk(), open_talk()
        leaving.open("a")
        leaving.tell_step("a", "wait")
        assert ProbeEnvironment.waiting.wait(20)
        waiting = staying.tell("open", session="b")
        if hasattr(leaving.wire, "socket"):
            leaving.wire.socket.close()
        ProbeEnvironment.gate.set()
        leaving.wire.close()
        opened = staying.receive()
        assert (opened["id"], opened["ok"]) == (waiting, True)


def test_a_session_moves_to_another_connection_with_its_token(line):
    with line() as open_talk:
        first, second = open_talk(), open_talk()
        first.open("one")
        step = first.step("one", number=3)
        attached = second.ask("attach", session="one", token=first.tokens["one"])
        assert (attached["session"], attached["state"], attached["seq"]) == ("one", "live", 1)
        assert attached["last"] == {key: value for key, value in step.items() if key != "id"}
        event = first.receive()
        assert (event["event"], event["session"], event["error"]["error"]) == ("session_lost", "one", "SessionLost")
        assert error_of(first.step("one"))["error"] == "Unauthorized"
        second.seq["one"] = 1
        assert second.step("one")["observation"]["step_count"] == 2
        first.wire.close()
        second.assert_lives("one")


def test_attaching_to_ones_own_session_changes_nothing(talk):
    token = talk.open("one")["token"]
    attached = talk.ask("attach", session="one", token=token)
    assert set(attached) == {"id", "ok", "session", "state", "seq"}
    assert (attached["state"], attached["seq"]) == ("live", 0)
    talk.assert_lives("one")


def test_a_running_call_goes_on_at_another_connection(line):
    with line() as open_talk:
        first, second = open_talk(), open_talk()
        first.open("one")
        running, queued = first.tell_step("one", "wait", 5), first.tell_step("one")
        assert ProbeEnvironment.waiting.wait(20)
        attached = second.ask("attach", session="one", token=first.tokens["one"])
        assert (attached["state"], attached["seq"]) == ("executing", 0)
        replies = [first.receive() for _ in range(3)]
        assert {reply["id"]: error_of(reply)["error"] for reply in replies if "id" in reply} == {
            running: "SessionLost",
            queued: "SessionLost",
        }
        second.seq["one"] = 0
        repeated = second.tell_step("one", "wait", 5)
        following = second.tell_step("one", number=6)
        ProbeEnvironment.gate.set()
        one, two = second.receive(), second.receive()
        assert (one["id"], one["observation"]["value"], one["observation"]["step_count"]) == (repeated, 5, 1)
        assert (two["id"], two["observation"]["value"], two["observation"]["step_count"]) == (following, 6, 2)


@pytest.mark.parametrize("session", ["one", "nobody"])
def test_a_session_is_not_given_away(line, session):
    with line() as open_talk:
        owner, thief = open_talk(), open_talk()
        owner.open("one")
        error = error_of(thief.ask("attach", session=session, token="guéss"))
        assert error["error"] == ("Unauthorized" if session == "one" else "UnknownSession")
        owner.assert_lives("one")


def test_a_heartbeat_is_answered(talk):
    assert set(talk.ask("heartbeat")) == {"id", "ok"}
